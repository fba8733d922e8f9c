package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// provide adds an extension provider; spec is JSON.
func (w *meshFixture) provide(name, spec string) {
	p := &meshconfig.MeshConfig_ExtensionProvider{}
	w.decode(spec, p)
	p.Name = name
	w.mc.ExtensionProviders = append(w.mc.ExtensionProviders, p)
}

const asks = `{"action":"CUSTOM","provider":{"name":"%s"},"rules":[{"to":[{"operation":{"paths":["/%s"]}}]}]}`

// ask adds a CUSTOM policy.
func (w *meshFixture) ask(name, provider string) {
	w.authorize("shop", name, fmt.Sprintf(asks, provider, name))
}

// askingFixture is a workload that serves HTTP, and whose Sidecar leaves all services out.
func askingFixture(t *testing.T) *meshFixture {
	t.Helper()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80).Inline[0].Address = "10.0.0.1"
	w.service("auth", "opa.mesh", 9000, 9001)
	w.sidecar("shop", "none", `{"egress":[{"hosts":["~/*"]}]}`)
	return w
}

// slotsOf are the extensions of a view by slot, and the slots of its HTTP chains, which have to
// have them all.
func slotsOf(t *testing.T, v *View) (map[Slot]*Extension, []Slot) {
	t.Helper()
	out := map[Slot]*Extension{}
	var order []Slot
	for part := range v.Parts() {
		switch x := part.(type) {
		case *Extension:
			out[x.Slot] = x
		case *Listener:
			for _, c := range x.Chains {
				if c.HTTP == nil || c.HTTP.Inbound == nil {
					continue
				}
				if order != nil && !slices.Equal(order, c.HTTP.Slots) {
					t.Errorf("%s has the slots %v, others %v", c.Name, c.HTTP.Slots, order)
				}
				order = c.HTTP.Slots
			}
		}
	}
	if got, want := slices.Sorted(maps.Keys(out)), slices.Sorted(slices.Values(order)); !slices.Equal(got, want) {
		t.Errorf("the extensions are %v, the slots %v", got, want)
	}
	return out, order
}

// TestSlotsOfProviders: the slots for CUSTOM are there from the start, before all others, and have
// whatever one provider there is. Several have slots with their names.
func TestSlotsOfProviders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ providers, slots string }{
		{"", "custom ext_authz"},
		{"opa", "custom ext_authz"},
		{"other", "custom ext_authz"},
		{"missing", "custom ext_authz"},
		{"opa other", "custom.opa ext_authz.opa custom.other ext_authz.other"},
		{"missing opa", "custom.missing ext_authz.missing custom.opa ext_authz.opa"},
	} {
		w := askingFixture(t)
		w.provide("opa", `{"envoyExtAuthzHttp":{"service":"opa.mesh","port":9000}}`)
		w.provide("other", `{"envoyExtAuthzGrpc":{"service":"auth/opa.mesh","port":9001}}`)
		for name := range strings.FieldsSeq(c.providers) {
			w.ask("p-"+name, name)
		}
		have, order := slotsOf(t, Build(w.snapshot(), proxyIn("shop", nil)))
		short := strings.NewReplacer("envoy.filters.http.rbac.", "", "envoy.filters.http.", "")
		var got []string
		for _, s := range order {
			if kind := s.Kind(); kind == CustomSlot || kind == ExtAuthzSlot {
				got = append(got, short.Replace(string(s)))
			}
			if e := have[s]; s.Kind() == CustomSlot && c.providers != "" && (len(e.Authorization.Policies) != 1 || e.Provider != nil) {
				t.Errorf("%q: %s has %+v", c.providers, s, e)
			}
		}
		if strings.Join(got, " ") != c.slots || !slices.Equal(order[len(got):], []Slot{JWTSlot, DenySlot, AllowSlot}) {
			t.Errorf("%q: the slots are %v", c.providers, order)
		}
		for name := range strings.FieldsSeq(c.providers) {
			slot := ExtAuthzSlot
			if strings.Contains(c.providers, " ") {
				slot = slot.For(name)
			}
			p := have[slot].Provider
			if p.Name != name || (p.Fault != "") != (name == "missing") || (p.GRPC != nil) != (name == "other") || (p.HTTP != nil) != (name == "opa") {
				t.Errorf("%q: %s asks %+v", c.providers, slot, p)
			}
			if asksOwn := have[slot].Authorization != nil; asksOwn != (name == "missing") {
				t.Errorf("%q: %s has rules: %v", c.providers, slot, asksOwn)
			}
		}
	}
}

// TestProvidersHaveClusters: a provider has a cluster of its own, although the Sidecar leaves its
// service out and the namespace has another service of that host. mTLS names the workload.
func TestProvidersHaveClusters(t *testing.T) {
	t.Parallel()
	w := askingFixture(t)
	w.service("shop", "opa.mesh", 9000).Inline[0].Address = "10.0.0.66"
	w.f.Services[1].ExportTo = mesh.Exports{"auth"} // nobody else sees it
	w.provide("opa", `{"envoyExtAuthzGrpc":{"service":"auth/opa.mesh","port":9000}}`)
	proxy := proxyIn("shop", nil)
	ref := Outbound("opa.mesh", 9000, "ext_authz.opa")
	if hasCluster(Build(w.snapshot(), proxy), ref) {
		t.Error("a workload that asks nobody has the cluster of a provider")
	}
	w.ask("p", "opa")
	v := Build(w.snapshot(), proxy)
	c := findPart(t, v, func(c *Cluster) bool { return c.Ref == ref })
	if c.Protocol != mesh.GRPC || c.TLS == nil || !slices.Equal(c.TLS.Names, []string{"spiffe://cluster.local/ns/auth/sa/opa.mesh"}) || c.TLS.SNI != "outbound_.9000_._.opa.mesh" {
		t.Errorf("the cluster is %+v with %+v", c, c.TLS)
	}
	e := findPart(t, v, func(e *Endpoints) bool { return e.Ref == ref })
	if len(e.Localities) != 1 || e.Localities[0].Endpoints[0].Address != "10.0.0.9" || !e.Localities[0].Endpoints[0].MTLS {
		t.Errorf("the endpoints are %+v", e.Localities)
	}
	if hasCluster(v, Outbound("opa.mesh", 9000, "")) || hasCluster(v, Outbound("opa.mesh", 9001, "ext_authz.opa")) {
		t.Error("it has other clusters, too")
	}
	if have, _ := slotsOf(t, v); have[ExtAuthzSlot].Provider.Cluster != ref || len(have[ExtAuthzSlot].Origins()) != 1 {
		t.Errorf("asked is %+v, which comes from %v", have[ExtAuthzSlot].Provider, have[ExtAuthzSlot].Origins())
	}
}

// TestChangesOfProviders: a change reaches the proxies that ask, and only what depends on it. A change of
// policies is in the hash of the listener, one of a provider is not.
func TestChangesOfProviders(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(w *meshFixture)
		want   string // the slots, and other parts that differ
	}{
		"nothing":      {func(*meshFixture) {}, ""},
		"endpoint":     {func(w *meshFixture) { w.edit(1, func(s *mesh.Service) { s.Inline[0].Address = "10.0.0.77" }) }, "endpoints"},
		"port_gone":    {func(w *meshFixture) { w.edit(1, func(s *mesh.Service) { s.Ports = s.Ports[1:] }) }, "cluster endpoints ext_authz"},
		"service_gone": {func(w *meshFixture) { w.f.Services = append(w.f.Services[:1:1], w.f.Services[2:]...) }, "cluster endpoints ext_authz"},
		"rule_for_it": {func(w *meshFixture) {
			w.rule("shop", "opa", `{"host":"opa.mesh","trafficPolicy":{"connectionPool":{"tcp":{"maxConnections":3}}}}`)
		}, "cluster"},
		"wildcard_rule": {func(w *meshFixture) {
			w.rule("shop", "opa", `{"host":"*.mesh","trafficPolicy":{"connectionPool":{"tcp":{"maxConnections":3}}}}`)
		}, "cluster"},
		"wildcard_rule_of_its_own": {func(w *meshFixture) {
			w.rule("auth", "opa", `{"host":"*.mesh","trafficPolicy":{"connectionPool":{"tcp":{"maxConnections":3}}}}`)
		}, "cluster"},
		"mtls_off":        {func(w *meshFixture) { w.peer("auth", "off", `{"mtls":{"mode":"DISABLE"}}`) }, "cluster endpoints"},
		"setting":         {func(w *meshFixture) { w.mc.ExtensionProviders[0].GetEnvoyExtAuthzHttp().FailOpen = true }, "ext_authz"},
		"provider_gone":   {func(w *meshFixture) { w.mc.ExtensionProviders = nil }, "cluster endpoints ext_authz"},
		"policy_rules":    {func(w *meshFixture) { w.f.AuthorizationPolicies = nil; w.ask("p2", "opa") }, "custom listener"},
		"another_asked":   {func(w *meshFixture) { w.f.AuthorizationPolicies = nil; w.ask("p", "two") }, "cluster custom endpoints ext_authz listener"},
		"policy_gone":     {func(w *meshFixture) { w.f.AuthorizationPolicies = nil }, "cluster custom endpoints ext_authz listener"},
		"another_besides": {func(w *meshFixture) { w.ask("q", "two") }, "cluster custom custom.opa custom.two endpoints ext_authz ext_authz.opa ext_authz.two listener"},
	} {
		for _, ns := range []string{"shop", "istio-system"} { // of the policy
			t.Run(name+"/"+ns, func(t *testing.T) {
				t.Parallel()
				w := askingFixture(t)
				w.provide("opa", `{"envoyExtAuthzHttp":{"service":"opa.mesh","port":9000}}`)
				w.provide("two", `{"envoyExtAuthzHttp":{"service":"opa.mesh","port":9001}}`)
				w.ask("p", "opa")
				if ns != "shop" {
					for _, p := range w.f.AuthorizationPolicies {
						p.Namespace = ns
					}
				}
				// The ports are bound, so that there is no TCP but that of the Sidecar's listeners.
				w.sidecar("shop", "bound", `{"workloadSelector":{"labels":{"app":"bound"}},"ingress":[{"port":{"number":80,"name":"http","protocol":"HTTP"},"captureMode":"NONE"}],"egress":[{"hosts":["~/*"]}]}`)
				proxy := proxyIn("shop", map[string]string{"app": "bound"})
				proxy.Interception = InterceptNone
				first := w.snapshot()
				x := NewIndex(first)
				before := x.Build(proxy)
				was := contentOfView(before)
				mc := w.mc
				w.mc = proto.CloneOf(mc)
				f := w.f
				w.f.Services, w.f.AuthorizationPolicies = slices.Clone(f.Services), slices.Clone(f.AuthorizationPolicies)
				c.change(w)
				config := first.MeshConfig
				if !proto.Equal(mc, w.mc) {
					config = &mesh.MeshConfig{Spec: w.mc}
				}
				next := w.f
				second := mesh.NewSnapshot(first, config, []*mesh.Fragment{&next})
				y := x.Next(second)
				after := y.Rebuild(before, proxy)
				if fresh := Build(second, proxy); fresh.Hash() != after.Hash() {
					t.Error("a rebuilt view differs from a fresh one")
				}
				is := contentOfView(after)
				var differs []string
				for name := range maps.Keys(is) {
					if is[name] != was[name] {
						differs = append(differs, name)
					}
				}
				for name := range maps.Keys(was) {
					if _, ok := is[name]; !ok {
						differs = append(differs, name)
					}
				}
				slices.Sort(differs)
				if got := strings.Join(slices.Compact(differs), " "); got != c.want {
					t.Errorf("what differs is %q, want %q", got, c.want)
				}
			})
		}
	}
}

// edit replaces a service by an edited copy.
func (w *meshFixture) edit(i int, do func(*mesh.Service)) {
	s := *w.f.Services[i]
	s.Inline = []*mesh.Workload{new(*s.Inline[0])}
	s.Hash[0]++
	do(&s)
	w.f.Services[i] = &s
}

// contentOfView are the hashes of slots, of outbound clusters and endpoints, and of inbound
// listeners.
func contentOfView(v *View) map[string]mesh.Hash {
	short := strings.NewReplacer("envoy.filters.http.rbac.", "", "envoy.filters.http.", "")
	out := map[string]mesh.Hash{}
	for part := range v.Parts() {
		switch x := part.(type) {
		case *Extension:
			out[short.Replace(string(x.Slot))] = x.Hash()
		case *Cluster:
			if x.Ref.Kind == OutboundCluster {
				out["cluster"] = x.Hash()
			}
		case *Endpoints:
			out["endpoints"] = x.Hash()
		case *Listener:
			if x.Inbound {
				out["listener"] = x.Hash()
			}
		}
	}
	return out
}

// TestPoliciesForAllWithAProvider: a policy for the whole mesh reaches a workload that asks nobody,
// also if it comes together with a change of a provider.
func TestPoliciesForAllWithAProvider(t *testing.T) {
	t.Parallel()
	w := askingFixture(t)
	w.service("other", "b.mesh", 80).Inline[0].Address = "10.0.0.1"
	w.provide("opa", `{"envoyExtAuthzHttp":{"service":"opa.mesh","port":9000}}`)
	w.ask("p", "opa")
	proxy := proxyIn("other", nil)
	first := w.snapshot()
	x := NewIndex(first)
	before := x.Build(proxy)
	w.f.Services = slices.Clone(w.f.Services)
	w.edit(1, func(s *mesh.Service) { s.Inline[0].Address = "10.0.0.77" })
	w.authorize("istio-system", "all", `{"action":"DENY","rules":[{}]}`)
	next := w.f
	second := mesh.NewSnapshot(first, first.MeshConfig, []*mesh.Fragment{&next})
	after := x.Next(second).Rebuild(before, proxy)
	if fresh := Build(second, proxy); fresh.Hash() != after.Hash() || fresh.Hash() == before.Hash() {
		t.Error("the policy did not reach the workload")
	}
}
