package view

import (
	"slices"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// gateway adds a Gateway of namespace shop.
func (w *meshFixture) gateway(name, spec string) *mesh.Gateway {
	g := &mesh.Gateway{Meta: w.meta(mesh.KindGateway, "shop", name), Spec: &networking.Gateway{}}
	w.decode(spec, g.Spec)
	w.f.Gateways = append(w.f.Gateways, g)
	return g
}

func routerIn(ns, edge string) Proxy {
	return Proxy{Type: Router, ServiceAccount: mesh.ServiceAccount{Namespace: ns, Name: "edge"}, Addresses: []string{"10.0.0.8"}, Labels: map[string]string{"edge": edge}}
}

// listenerNames are those of a view, sorted.
func listenerNames(v *View) []string {
	var out []string
	for p := range v.Parts() {
		if l, ok := p.(*Listener); ok {
			out = append(out, l.Name)
		}
	}
	slices.Sort(out)
	return out
}

// TestGatewayEditCostsItsGateways: an edit of a Gateway, or of a VirtualService that is for gateways alone,
// changes the views of the gateways that it selects, and of nobody else.
func TestGatewayEditCostsItsGateways(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "web.mesh", 80)
	g := w.gateway("a", `{"selector": {"edge": "a"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*.example.com"]}]}`)
	w.gateway("b", `{"selector": {"edge": "b"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*.example.com"]}]}`)
	w.routes("shop", "web", `{"hosts": ["web.example.com"], "gateways": ["shop/a"], "http": [{"route": [{"destination": {"host": "web.mesh"}}]}]}`)
	proxies := []Proxy{routerIn("shop", "a"), routerIn("shop", "b"), proxyIn("shop", nil)}
	mc := &mesh.MeshConfig{Spec: w.mc} // another one would have everything built again
	snapshot := func() *mesh.Snapshot { return mesh.NewSnapshot(nil, mc, []*mesh.Fragment{&w.f}) }
	x := NewIndex(snapshot())
	views := make([]*View, len(proxies))
	for i, p := range proxies {
		views[i] = x.Build(p)
	}
	edit := func(what string, do func(f *mesh.Fragment)) {
		t.Helper()
		f := w.f // what a snapshot has is never written to
		do(&f)
		w.f = f
		x = x.Next(snapshot())
		for i, p := range proxies {
			now := x.Rebuild(views[i], p)
			if (now.Hash() != views[i].Hash()) != (i == 0) {
				t.Errorf("%s: proxy %d: changed %v", what, i, now.Hash() != views[i].Hash())
			}
			if fresh := NewIndex(snapshot()).Build(p); fresh.Hash() != now.Hash() {
				t.Errorf("%s: proxy %d differs from one that is built anew", what, i)
			}
			views[i] = now
		}
	}
	edit("another port", func(f *mesh.Fragment) {
		next := *g
		next.Hash = mesh.Hash{1}
		next.Spec = &networking.Gateway{Selector: g.Spec.GetSelector(), Servers: append(slices.Clone(g.Spec.GetServers()), &networking.Server{
			Port: &networking.Port{Number: 8080, Name: "more", Protocol: "HTTP"}, Hosts: []string{"*"},
		})}
		f.Gateways = []*mesh.Gateway{&next, f.Gateways[1]}
	})
	if got := listenerNames(views[0]); !slices.Equal(got, []string{"0.0.0.0_80", "0.0.0.0_8080"}) {
		t.Errorf("listeners %v", got)
	}
	edit("another route", func(f *mesh.Fragment) {
		vs := *f.VirtualServices[0]
		vs.Hash, vs.Spec = mesh.Hash{1}, &networking.VirtualService{}
		w.decode(`{"hosts": ["web.example.com"], "gateways": ["shop/a"], "http": [{"directResponse": {"status": 204}}]}`, vs.Spec)
		f.VirtualServices = []*mesh.VirtualService{&vs}
	})
	vh := findPart(t, views[0], func(r *RouteConfiguration) bool { return r.Name == "http.80" }).VirtualHosts[0]
	if vh.Name != "web.example.com:80" || vh.Routes[0].Rule.GetDirectResponse().GetStatus() != 204 {
		t.Errorf("virtual host %+v", vh)
	}
}

// TestBoundGatewaysStayInTheirNamespace: who may write for one namespace opens no port on the gateway of another.
func TestBoundGatewaysStayInTheirNamespace(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.gateway("a", `{"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}`)
	for _, bound := range []bool{false, true} {
		in := mesh.Input{Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{&w.f}}
		if bound {
			in.Bindings = []*mesh.Binding{{Namespaces: []string{"shop"}}}
		}
		x := NewIndex(mesh.Merge(in))
		for ns, want := range map[string]bool{"shop": true, "edge": !bound} {
			if got := len(listenerNames(x.Build(routerIn(ns, "a")))) > 0; got != want {
				t.Errorf("bound %v: a gateway of namespace %s listens: %v, want %v", bound, ns, got, want)
			}
		}
	}
}

// TestTenantsRouteTheirHostsAtSharedGateways: at a gateway that serves every host, who may write for one
// namespace adds no routes to a host that the settings or a service give to another, however old the object says it is.
func TestTenantsRouteTheirHostsAtSharedGateways(t *testing.T) {
	t.Parallel()
	const tls = `"tls": [{"match": [{"port": 443, "sniHosts": ["NAME"]}], "route": [{"destination": {"host": "mallory.mesh"}}]}]`
	const http = `"http": [{"directResponse": {"status": 418}}]`
	for _, granted := range []bool{false, true} {
		for _, c := range []struct {
			hosts, rules string
			lands        bool // if it is granted
		}{
			{`"web.shop.example.com"`, http, false},                    // of a pattern
			{`"*.shop.example.com"`, http, false},                      // the pattern itself
			{`"*.example.com"`, http, false},                           // above the pattern
			{`"*"`, http, false},                                       // all
			{`"orders.example.net"`, http, false},                      // declared by another namespace
			{`"*.example.net"`, http, false},                           // above it
			{`"free.example.org"`, http, true},                         // nobody's
			{`"mallory.example.org"`, http, true},                      // nobody's
			{`"web.shop.example.com", "free.example.org"`, http, true}, // the second one only
			{`"web.shop.example.com"`, tls, false},
			{`"orders.example.net"`, tls, false},
			{`"free.example.org"`, tls, true},
			{`"free.example.org"`, strings.ReplaceAll(tls, "NAME", "web.shop.example.com"), false},
		} {
			w := newMeshFixture(t)
			w.service("mallory", "mallory.mesh", 80)
			w.service("shop", "orders.example.net", 80)
			own := w.f
			w.f = mesh.Fragment{}
			w.gateway("a", `{"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]},
				{"port": {"number": 443, "name": "tls", "protocol": "TLS"}, "hosts": ["*"], "tls": {"mode": "PASSTHROUGH"}}]}`)
			w.f.Gateways[0].Namespace = "edge"
			gateways := w.f
			tenants := map[string]*mesh.Fragment{"shop": {}, "mallory": {}}
			for _, svc := range own.Services {
				tenants[svc.Namespace].Services = append(tenants[svc.Namespace].Services, svc)
			}
			host, _, _ := strings.Cut(strings.Trim(c.hosts, `"`), `"`)
			w.f = mesh.Fragment{}
			w.routes("mallory", "taken", `{"hosts": [`+c.hosts+`], "gateways": ["edge/a"], `+strings.ReplaceAll(c.rules, "NAME", host)+`}`)
			tenants["mallory"].VirtualServices = w.f.VirtualServices
			pattern, err := mesh.ParseHostPattern("*.shop.example.com")
			if err != nil {
				t.Fatal(err)
			}
			var grants *mesh.Grants
			if granted {
				grants = mesh.NewGrants([]mesh.Grant{{Name: "free.example.org", Namespace: "mallory", Gateways: true}, {Name: "mallory.example.org", Namespace: "mallory"}})
			}
			s := mesh.Merge(mesh.Input{
				Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{&gateways, tenants["mallory"], tenants["shop"]},
				Bindings: []*mesh.Binding{
					nil,
					{Namespaces: []string{"mallory"}},
					{Namespaces: []string{"shop"}, Hosts: []mesh.Hostname{pattern, "orders.example.net"}},
				},
				Grants: grants,
			})
			v := NewIndex(s).Build(routerIn("edge", "a"))
			lands := false
			for p := range v.Parts() {
				switch p := p.(type) {
				case *RouteConfiguration:
					lands = lands || slices.ContainsFunc(p.VirtualHosts, func(vh *VirtualHost) bool { return len(vh.Routes) > 0 })
					if slices.ContainsFunc(p.VirtualHosts, func(vh *VirtualHost) bool { return slices.Contains(vh.Domains, "web.shop.example.com") }) {
						t.Errorf("granted %v, %s: a virtual host has the other's host", granted, c.hosts)
					}
				case *Listener:
					lands = lands || slices.ContainsFunc(p.Chains, func(ch *FilterChain) bool { return ch.HTTP == nil })
				}
			}
			if want := c.lands && granted; lands != want {
				t.Errorf("granted %v, %s, %s: routes at the gateway: %v, want %v", granted, c.hosts, c.rules, lands, want)
			}
		}
	}
}

// TestPlaintextBesideTLSForAll: both work at one port, by how connections begin.
func TestPlaintextBesideTLSForAll(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.gateway("a", `{"servers": [{"port": {"number": 80, "name": "https", "protocol": "HTTPS"}, "hosts": ["*"], "tls": {"mode": "SIMPLE", "credentialName": "c"}},
		{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}`)
	l := findPart(t, NewIndex(w.snapshot()).Build(routerIn("shop", "a")), func(*Listener) bool { return true })
	if len(l.Chains) != 2 || l.Chains[0].Match.Transport != transportTLS || l.Chains[1].Match.Transport != transportRawBuffer {
		t.Errorf("%d chains: %+v", len(l.Chains), l.Chains)
	}
}

// TestNothingPassesToPlaintext: through a server with AUTO_PASSTHROUGH, where nobody verifies clients, connections
// reach only what takes mTLS of the mesh. A service without workloads is its own host, which does not.
func TestNothingPassesToPlaintext(t *testing.T) {
	t.Parallel()
	for _, resolution := range []mesh.Resolution{mesh.ResolutionDNS, mesh.ResolutionDNSRoundRobin, mesh.ResolutionStatic} {
		for _, mtls := range []bool{false, true} {
			w := newMeshFixture(t)
			svc := w.service("shop", "db.mesh", 80)
			svc.Resolution, svc.External = resolution, false
			if !mtls {
				svc.Inline = nil
			}
			w.gateway("a", `{"servers": [{"port": {"number": 15443, "name": "tls", "protocol": "TLS"}, "hosts": ["*.mesh"], "tls": {"mode": "AUTO_PASSTHROUGH"}}]}`)
			var got []LocalityEndpoints
			for p := range NewIndex(w.snapshot()).Build(routerIn("shop", "a")).Parts() {
				switch p := p.(type) {
				case *Cluster:
					if p.Ref.Kind == SNICluster {
						got = append(got, p.Localities...)
					}
				case *Endpoints:
					if p.Ref.Kind == SNICluster {
						got = append(got, p.Localities...)
					}
				}
			}
			if (len(got) > 0) != mtls {
				t.Errorf("%v, mTLS %v: endpoints %v", resolution, mtls, got)
			}
		}
	}
}

// TestTopologyOfOneGateway: what a gateway's own ProxyConfig says of the proxies before it replaces what
// MeshConfig says, also in a view that is made again, and is for this gateway alone.
func TestTopologyOfOneGateway(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.mc.DefaultConfig = &meshconfig.ProxyConfig{GatewayTopology: &meshconfig.Topology{NumTrustedProxies: 1, ForwardClientCertDetails: meshconfig.ForwardClientCertDetails_SANITIZE}}
	w.service("shop", "web.mesh", 80)
	w.gateway("a", `{"selector": {"edge": "a"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}`)
	w.routes("shop", "web", `{"hosts": ["web.example.com"], "gateways": ["shop/a"], "http": [{"route": [{"destination": {"host": "web.mesh"}}]}]}`)
	mc := &mesh.MeshConfig{Spec: w.mc}
	x := NewIndex(mesh.NewSnapshot(nil, mc, []*mesh.Fragment{&w.f}))
	plain, own := routerIn("shop", "a"), routerIn("shop", "a")
	own.Topology = &meshconfig.Topology{NumTrustedProxies: 3, ProxyProtocol: &meshconfig.Topology_ProxyProtocolConfiguration{}}
	check := func(what string, v *View, trusted uint32, cert meshconfig.ForwardClientCertDetails, protocol bool) {
		t.Helper()
		l := findPart(t, v, func(l *Listener) bool { return l.Gateway })
		if g := l.Chains[0].HTTP.Gateway; g.TrustedProxies != trusted || g.ForwardClientCert != cert || l.ProxyProtocol != protocol {
			t.Errorf("%s: %+v, PROXY protocol %v", what, g, l.ProxyProtocol)
		}
	}
	first := x.Build(plain)
	check("without", first, 1, meshconfig.ForwardClientCertDetails_SANITIZE, false)
	check("with", x.Build(own), 3, meshconfig.ForwardClientCertDetails_UNDEFINED, true)
	check("without again", x.Build(plain), 1, meshconfig.ForwardClientCertDetails_SANITIZE, false)
	check("changed", x.Rebuild(first, own), 3, meshconfig.ForwardClientCertDetails_UNDEFINED, true)
}
