package view

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestDeclaredServiceReplacesCatalogService: a namespace that sees a declared service for a
// host gets its endpoints only. Another namespace gets those of the catalog's service only.
func TestDeclaredServiceReplacesCatalogService(t *testing.T) {
	t.Parallel()
	const host = "web.service.consul"
	for i, home := range []string{"shop", "other", "other"} { // where the written one lies
		w := newMeshFixture(t)
		derived := w.service("shop", host, 80)
		derived.Name, derived.Catalog = "consul/web", true
		derived.Inline[0].Address = "10.0.0.1"
		mine := w.service(home, host, 80)
		mine.Name, mine.ExportTo = "mine", mesh.Exports{home}
		if i == 2 { // for those at the catalog's home, whom only routes lead to it
			mine.ExportTo = mesh.Exports{"other", "shop"}
			w.sidecar("istio-system", "default", `{"egress":[{"hosts":["*/lead.example"]}]}`)
		}
		mine.Inline[0].Address = "10.0.0.2"
		w.routes("shop", "lead", `{"hosts":["lead.example"],"http":[{"route":[{"destination":{"host":"web.service.consul"}}]}]}`)
		w.routes("third", "lead", `{"hosts":["lead.example"],"http":[{"route":[{"destination":{"host":"web.service.consul"}}]}]}`)
		x := NewIndex(w.snapshot())
		for _, ns := range []string{"shop", "other", "third"} {
			want := "10.0.0.1"
			if mine.ExportTo.To(ns) {
				want = "10.0.0.2"
			}
			v := x.Build(proxyIn(ns, nil))
			var got []string
			for p := range v.Parts() {
				if e, ok := p.(*Endpoints); ok && e.Ref.Host == host {
					for _, l := range e.Localities {
						for _, ep := range l.Endpoints {
							got = append(got, ep.Address)
						}
					}
				}
			}
			if len(got) != 1 || got[0] != want {
				t.Errorf("written in %s: %s gets %v, want %s", home, ns, got, want)
			}
		}
	}
}

// TestCatalogLabelsNeverLowerMTLSMode: labels of a registration may raise the mTLS mode,
// but not lower it. Labels of the catalog source may do both.
func TestCatalogLabelsNeverLowerMTLSMode(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.peer("shop", "legacy", `{"selector":{"matchLabels":{"app":"legacy"}},"mtls":{"mode":"DISABLE"},"portLevelMtls":{"82":{"mode":"STRICT"}}}`)
	w.peer("shop", "safe", `{"selector":{"matchLabels":{"app":"safe"}},"mtls":{"mode":"STRICT"}}`)
	w.peer("shop", "plain", `{"selector":{"matchLabels":{"consul.fairlead.io/service":"plain"}},"mtls":{"mode":"DISABLE"},"portLevelMtls":{"81":{"mode":"STRICT"}}}`)
	a := newAuthn(&authn{}, w.snapshot())
	for _, c := range []struct {
		app, service string
		port         uint32
		want         mesh.MTLSMode
	}{
		{"legacy", "", 80, mesh.Disable}, // written in a file
		{"legacy", "web", 80, mesh.Permissive},
		{"legacy", "web", 82, mesh.Strict},
		{"safe", "web", 80, mesh.Strict},
		{"other", "web", 80, mesh.Permissive},
		{"other", "plain", 80, mesh.Disable},
		{"other", "plain", 81, mesh.Strict},
		{"legacy", "plain", 80, mesh.Disable},
		{"legacy", "plain", 81, mesh.Strict},
		{"safe", "plain", 80, mesh.Strict},
	} {
		labels := map[string]string{"app": c.app}
		if c.service != "" {
			labels[mesh.LabelConsulService] = c.service
		}
		p := a.in("shop").forWorkload(labels)
		if got := p.forPort(c.port); got != c.want {
			t.Errorf("%+v: mode %d", c, got)
		}
	}
}

// TestCatalogServiceAtOtherHostIsNotInbound: whoever registers a service at the address of
// another host does not change what that host serves.
func TestCatalogServiceAtOtherHostIsNotInbound(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	add := func(name, account, address string, port uint32, protocol mesh.Protocol) {
		w.f.Services = append(w.f.Services, &mesh.Service{
			Meta: w.meta(mesh.KindServiceEntry, "shop", "consul/"+name), Hostname: mesh.Hostname(name + ".service.consul"), Catalog: true,
			Ports: []mesh.Port{{Name: "p", Number: port, Protocol: protocol}}, Resolution: mesh.ResolutionStatic,
			Selector: map[string]string{mesh.LabelConsulService: name},
		})
		meta := w.meta(mesh.KindWorkloadEntry, "shop", "consul/dc1/n1/"+name)
		meta.Labels = map[string]string{mesh.LabelConsulService: name}
		w.f.Workloads = append(w.f.Workloads, &mesh.Workload{
			Meta: meta, Address: address, Ports: map[string]uint32{"p": port}, ServiceAccount: account,
		})
	}
	add("evil", "evil", "10.0.0.1", 8080, mesh.TCP)
	add("evil-admin", "evil", "10.0.0.1", 9999, mesh.HTTP)
	add("web", "web", "10.0.0.1", 8080, mesh.HTTP)
	add("web-too", "web", "10.0.0.1", 8081, mesh.HTTP)
	f := *w.f.Sorted()
	w.f = f
	v := NewIndex(w.snapshot()).Build(proxyIn("shop", nil))
	got := map[uint32]mesh.Protocol{}
	for p := range v.Parts() {
		if c, ok := p.(*Cluster); ok && c.Ref.Kind == InboundCluster {
			got[c.Ref.Port] = c.Protocol
		}
	}
	if diff := cmp.Diff(map[uint32]mesh.Protocol{8080: mesh.HTTP, 8081: mesh.HTTP}, got); diff != "" {
		t.Errorf("inbound ports (-want +got):\n%s", diff)
	}
}

// TestCatalogServiceTakesNoWholePort: a registered service gets only connections that name
// it, and never all connections to its port, with capture and without.
func TestCatalogServiceTakesNoWholePort(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	add := func(name string, catalog bool, port uint32, protocol mesh.Protocol, addresses ...string) {
		s := w.service("shop", name+".service.consul", port)
		s.Catalog, s.Ports[0].Protocol, s.Addresses = catalog, protocol, addresses
	}
	add("a-bare", true, 5432, mesh.Undeclared)
	add("a-mysql", true, 3306, mesh.MySQL)
	add("a-tcp", true, 5432, mesh.TCP)
	add("a-tls", true, 443, mesh.TLS)
	add("a-vip", true, 5432, mesh.TCP, "240.0.0.5")
	add("a-sni", true, 6443, mesh.Undeclared)
	add("db", false, 5432, mesh.TCP)
	add("mail", false, 3306, mesh.TCP)
	add("old", false, 8080, mesh.TCP) // though it may speak HTTP
	add("a-http", true, 8080, mesh.HTTP)
	add("any", false, 9090, mesh.Undeclared)
	add("a-more", true, 9090, mesh.HTTP)
	add("web", true, 80, mesh.HTTP)
	s := w.snapshot()
	for _, mode := range []Interception{InterceptRedirect, InterceptNone} {
		p := proxyIn("shop", nil)
		p.Interception = mode
		v := NewIndex(s).Build(p)
		got := map[string][]string{}
		for part := range v.Parts() {
			l, ok := part.(*Listener)
			if !ok || l.UseOriginalDst || strings.HasPrefix(l.Name, "virtual") {
				continue
			}
			for _, c := range append(slices.Clone(l.Chains), l.Default) {
				switch {
				case c == nil:
				case c.HTTP != nil:
					got[l.Name] = append(got[l.Name], "http")
				default:
					got[l.Name] = append(got[l.Name], strings.Join(append(c.Match.ServerNames, string(c.TCP.Destinations[0].Cluster.Host)), " "))
				}
			}
		}
		want := map[string][]string{
			"0.0.0.0_80":     {"http", ""},
			"0.0.0.0_443":    {"a-tls.service.consul a-tls.service.consul", ""},
			"0.0.0.0_3306":   {"mail.service.consul"},
			"0.0.0.0_5432":   {"db.service.consul"},
			"0.0.0.0_6443":   {"http", ""},
			"0.0.0.0_8080":   {"old.service.consul"},
			"0.0.0.0_9090":   {"http", "any.service.consul"},
			"240.0.0.5_5432": {"a-vip.service.consul"},
		}
		if mode == InterceptNone {
			want = map[string][]string{
				"127.0.0.1_80":   {"http"},
				"127.0.0.1_3306": {"mail.service.consul"},
				"127.0.0.1_5432": {"db.service.consul"},
				"127.0.0.1_6443": {"http", ""},
				"127.0.0.1_8080": {"old.service.consul"},
				"127.0.0.1_9090": {"http", "any.service.consul"},
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: chains of listeners (-want +got):\n%s", mode, diff)
		}
	}
}

// TestCatalogServiceNeedsSidecarHostForPort: a Sidecar's listener is for the hosts that it
// names. A wildcard does not give its port to a registered service.
func TestCatalogServiceNeedsSidecarHostForPort(t *testing.T) {
	t.Parallel()
	for hosts, want := range map[string]mesh.Hostname{
		`"./db.service.consul"`: "db.service.consul", `"*/db.service.consul"`: "db.service.consul", `"*/*"`: "mine.service.consul",
		`"./a.service.consul","./db.service.consul"`: "a.service.consul",
	} {
		w := newMeshFixture(t)
		for _, name := range []string{"a", "db", "mine"} {
			s := w.service("shop", name+".service.consul", 5432)
			s.Catalog, s.Ports[0].Protocol = name != "mine", mesh.TCP
		}
		if hosts == `"*/*"` { // its port is nobody's
			s := w.service("shop", "b.service.consul", 5433)
			s.Catalog, s.Ports[0].Protocol = true, mesh.TCP
			w.sidecar("shop", "other", `{"workloadSelector":{"labels":{"app":"other"}},"egress":[{"port":{"number":5433,"name":"tcp","protocol":"TCP"},"bind":"127.0.0.1","hosts":["*/*"]}]}`)
			v := NewIndex(w.snapshot()).Build(proxyIn("shop", map[string]string{"app": "other"}))
			for p := range v.Parts() {
				if l, ok := p.(*Listener); ok && l.Port == 5433 {
					t.Errorf("a listener with chains %+v", l.Chains)
				}
			}
			if len(v.Warnings) != 1 || v.Warnings[0].Key.Name != "b.service.consul" {
				t.Errorf("warnings %+v", v.Warnings)
			}
		}
		w.sidecar("shop", "default", `{"egress":[{"port":{"number":5432,"name":"tcp","protocol":"TCP"},"bind":"127.0.0.1","hosts":[`+hosts+`]}]}`)
		l := findPart(t, NewIndex(w.snapshot()).Build(proxyIn("shop", nil)), func(l *Listener) bool { return l.Port == 5432 })
		if len(l.Chains) != 1 || l.Chains[0].TCP == nil || l.Chains[0].TCP.Destinations[0].Cluster.Host != want {
			t.Errorf("%s: chains %+v", hosts, l.Chains)
		}
	}
}
