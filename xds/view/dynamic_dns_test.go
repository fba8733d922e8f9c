package view

import (
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestGatewaysLookUpNoHosts: whoever may send a request to a gateway would choose where it goes, so that a route
// there to a service with resolution DYNAMIC_DNS leads nowhere. Sidecars look up hosts.
func TestGatewaysLookUpNoHosts(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	svc := w.service("shop", "*.dyn.example", 80, 443)
	svc.Resolution, svc.External, svc.Inline = mesh.ResolutionDynamicDNS, true, nil
	svc.Ports[0].Protocol, svc.Ports[1].Protocol = mesh.HTTP, mesh.TLS
	w.rule("shop", "dyn", `{"host": "*.dyn.example", "subsets": [{"name": "v1"}]}`)
	w.gateway("a", `{"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}, {"port": {"number": 443, "name": "tls", "protocol": "TLS"}, "hosts": ["*"], "tls": {"mode": "PASSTHROUGH"}}]}`)
	w.routes("shop", "all", `{"hosts": ["*"], "gateways": ["shop/a"], "http": [{"route": [{"destination": {"host": "*.dyn.example", "port": {"number": 80}}}]}],
		"tls": [{"match": [{"sniHosts": ["*"]}], "route": [{"destination": {"host": "*.dyn.example", "port": {"number": 443}}}]}]}`)
	x := NewIndex(w.snapshot())
	sidecar := routerIn("shop", "a")
	sidecar.Type = Sidecar
	for _, c := range []struct {
		proxy Proxy
		want  int
	}{{routerIn("shop", "a"), 0}, {sidecar, 2}} {
		var found []ClusterRef
		for p := range x.Build(c.proxy).Parts() {
			switch p := p.(type) {
			case *Cluster:
				if p.Discovery == DiscoverDynamic {
					found = append(found, p.Ref)
				}
			case *Listener:
				for _, chain := range p.Chains {
					if c.proxy.Type == Router && chain.TCP != nil && chain.TCP.LookUp != 0 {
						t.Errorf("listener %s of a gateway looks up server names", p.Name)
					}
				}
			}
		}
		if len(found) != c.want {
			t.Errorf("%s: clusters %v, want %d", c.proxy.Type, found, c.want)
		}
	}
}

// TestTenantsLookUpNoHostsOfOthers: who may write for one namespace takes no host of others by a wildcard with
// resolution DYNAMIC_DNS, however old the object says it is: proxies of other namespaces have its cluster only
// if no host below the wildcard is another's, and gateways never.
func TestTenantsLookUpNoHostsOfOthers(t *testing.T) {
	t.Parallel()
	for _, granted := range []bool{false, true} {
		for _, c := range []struct {
			host string
			free bool
		}{
			{"*.shop.example.com", false},     // another's pattern
			{"*.web.shop.example.com", false}, // below it
			{"*.example.com", false},          // above it
			{"*.example.net", false},          // above a service of another
			{"*.orders.example.net", true},    // below it: nobody has these names
			{"*.central.example", false},      // declared by a source that is not bound
			{"*.example", false},              // above it
			{"*", false},
			{"*.free.example.org", true},
		} {
			s := dynamicTenant(t, c.host, granted)
			x := NewIndex(s)
			for _, proxy := range []struct {
				Proxy
				want bool
			}{
				{proxyIn("mallory", nil), true},
				{proxyIn("shop", nil), c.free && granted},
				{proxyIn("buyer", nil), c.free && granted},
				{routerIn("edge", "a"), false},
				{routerIn("mallory", "a"), false},
			} {
				v := x.Build(proxy.Proxy)
				dynamic := map[ClusterRef]bool{}
				for p := range v.Parts() {
					if p, ok := p.(*Cluster); ok && p.Discovery == DiscoverDynamic {
						dynamic[p.Ref] = true
					}
				}
				if got := len(dynamic) > 0; got != proxy.want {
					t.Errorf("granted %v, %s: a %s of namespace %s looks up hosts: %v, want %v", granted, c.host, proxy.Type, proxy.ServiceAccount.Namespace, got, proxy.want)
				}
				if proxy.ServiceAccount.Namespace == "buyer" {
					checkOthersHosts(t, v, dynamic)
				}
			}
		}
	}
}

// checkOthersHosts checks that requests for hosts of others go to their services.
func checkOthersHosts(t *testing.T, v *View, dynamic map[ClusterRef]bool) {
	t.Helper()
	left := []string{"orders.example.net", "web.shop.example.com", "api.central.example"}
	for p := range v.Parts() {
		r, ok := p.(*RouteConfiguration)
		if !ok {
			continue
		}
		for _, vh := range r.VirtualHosts {
			i := slices.IndexFunc(left, func(host string) bool { return slices.Contains(vh.Domains, host) })
			if i < 0 {
				continue
			}
			for _, route := range vh.Routes {
				for _, d := range route.Destinations {
					if dynamic[d.Cluster] {
						t.Errorf("%s is looked up", left[i])
					}
				}
			}
			left = slices.Delete(left, i, i+1)
		}
	}
	if len(left) > 0 {
		t.Errorf("no virtual hosts for %q", left)
	}
}

// dynamicTenant is a mesh in which mallory has a host looked up, and routes all hosts of a shared gateway to it.
func dynamicTenant(t *testing.T, host string, granted bool) *mesh.Snapshot {
	t.Helper()
	w := newMeshFixture(t)
	fragment := func(fill func()) *mesh.Fragment {
		w.f = mesh.Fragment{}
		fill()
		f := w.f
		return &f
	}
	later := time.Unix(1e9, 0)
	central := fragment(func() {
		w.gateway("a", `{"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}`).Namespace = "edge"
		w.service("central", "api.central.example", 80).Created = later
	})
	mallory := fragment(func() {
		svc := w.service("mallory", host, 80)
		svc.Resolution, svc.External, svc.Inline = mesh.ResolutionDynamicDNS, true, nil
		w.routes("mallory", "all", `{"hosts": ["*"], "gateways": ["edge/a"], "http": [{"route": [{"destination": {"host": "`+host+`"}}]}]}`)
		w.routes("mallory", "free", `{"hosts": ["free.example.org"], "gateways": ["edge/a"], "http": [{"route": [{"destination": {"host": "`+host+`"}}]}]}`)
	})
	shop := fragment(func() {
		w.service("shop", "orders.example.net", 80).Created = later
		w.service("shop", "web.shop.example.com", 80).Created = later
	})
	pattern, err := mesh.ParseHostPattern("*.shop.example.com")
	if err != nil {
		t.Fatal(err)
	}
	var grants *mesh.Grants
	if granted {
		grants = mesh.NewGrants([]mesh.Grant{{Name: "*.orders.example.net", Namespace: "mallory"}, {Name: "*.free.example.org", Namespace: "mallory"}, {Name: "free.example.org", Namespace: "mallory", Gateways: true}})
	}
	return mesh.Merge(mesh.Input{
		Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{central, mallory, shop},
		Bindings: []*mesh.Binding{
			nil,
			{Namespaces: []string{"mallory"}},
			{Namespaces: []string{"shop"}, Hosts: []mesh.Hostname{pattern, "orders.example.net"}},
		},
		Grants: grants,
	})
}
