package view

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestDeputiesAtGateways: with RoutesOnly a gateway of another namespace answers 503 where a tenant routes to a
// third one, and sidecars follow the same route.
func TestDeputiesAtGateways(t *testing.T) {
	t.Parallel()
	for _, only := range []bool{false, true} {
		w := newMeshFixture(t)
		w.service("bank", "bank.bank.internal", 80)
		bank := &mesh.Fragment{Source: "bank", Services: w.f.Services}
		w.f.Services = nil
		w.service("shop", "a.shop.internal", 80)
		w.routes("shop", "r", `{"hosts": ["a.shop.internal"], "gateways": ["mesh", "edge/a"], "http": [{"route": [{"destination": {"host": "bank.bank.internal", "port": {"number": 80}}}]}]}`)
		shop := &mesh.Fragment{Source: "shop", Services: w.f.Services, VirtualServices: w.f.VirtualServices}
		w.gateway("a", `{"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}`)
		w.f.Gateways[0].Namespace = "edge"
		s := mesh.Merge(mesh.Input{
			Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{shop, {Source: "operator", Gateways: w.f.Gateways}, bank},
			Bindings: []*mesh.Binding{
				{Namespaces: []string{"shop"}, Hosts: []mesh.Hostname{"*.shop.internal"}, RoutesOnly: only}, nil, {Namespaces: []string{"bank"}, Hosts: []mesh.Hostname{"*.bank.internal"}},
			},
		})
		r := findPart(t, NewIndex(s).Build(routerIn("edge", "a")), func(r *RouteConfiguration) bool { return r.Name == "http.80" })
		if got := r.VirtualHosts[0].Routes[0].Rule.GetDirectResponse().GetStatus() == 503; got != only {
			t.Errorf("RoutesOnly %t: the gateway refuses: %t", only, got)
		}
		sidecar := findPart(t, NewIndex(s).Build(proxyIn("third", nil)), func(r *RouteConfiguration) bool { return r.Name == "80" })
		i := slices.IndexFunc(sidecar.VirtualHosts, func(h *VirtualHost) bool { return slices.Contains(h.Domains, "a.shop.internal") })
		if got := sidecar.VirtualHosts[i].Routes[0].Rule.GetRoute()[0].GetDestination().GetHost(); got != "bank.bank.internal" {
			t.Errorf("RoutesOnly %t: a sidecar is led to %q", only, got)
		}
	}
}
