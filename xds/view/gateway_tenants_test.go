package view

import (
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestOperatorsRoutesComeFirstAtGateways: at a gateway, the routes of who speaks for the whole mesh come before
// those of a tenant for the same host, whatever else either is for and however old the tenant's object is.
func TestOperatorsRoutesComeFirstAtGateways(t *testing.T) {
	t.Parallel()
	forms := []string{`["edge/a"]`, `["mesh", "edge/a"]`, `["edge/a", "edge/other"]`}
	for _, operator := range forms {
		for _, tenant := range forms {
			w := newMeshFixture(t)
			w.gateway("a", `{"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}`)
			w.f.Gateways[0].Namespace = "edge"
			fragment := func(ns, gateways, status string) *mesh.Fragment {
				w.f.VirtualServices = nil
				w.routes(ns, "routes", `{"hosts": ["free.example.org"], "gateways": `+gateways+`, "http": [{"match": [{"uri": {"prefix": "/a"}}], "directResponse": {"status": `+status+`}}]}`)
				return &mesh.Fragment{VirtualServices: w.f.VirtualServices}
			}
			theirs, ours := fragment("mallory", tenant, "418"), fragment("shop", operator, "200") // the tenant's is older
			ours.Gateways = w.f.Gateways
			s := mesh.Merge(mesh.Input{
				Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{theirs, ours},
				Bindings: []*mesh.Binding{{Namespaces: []string{"mallory"}}, nil},
			})
			r := findPart(t, NewIndex(s).Build(routerIn("edge", "a")), func(r *RouteConfiguration) bool { return r.Name == "http.80" })
			if got := r.VirtualHosts[0].Routes[0].Rule.GetDirectResponse().GetStatus(); got != 200 {
				t.Errorf("operator for %s, tenant for %s: the first route answers %d", operator, tenant, got)
			}
		}
	}
}

// TestTenantsAddNoRoutesAtGateways: what who speaks for the whole mesh routes at gateways gets no routes of a tenant there,
// although the tenant may route that name: it was granted, or is declared in its namespace; also where it is an address.
func TestTenantsAddNoRoutesAtGateways(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"free.example.org", "10.9.0.1"} {
		for _, tenant := range []string{`["edge/a"]`, `["mesh", "edge/a"]`} {
			w := newMeshFixture(t)
			w.gateway("a", `{"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}`)
			w.f.Gateways[0].Namespace = "edge"
			fragment := func(ns, gateways, path string) *mesh.Fragment {
				w.f.VirtualServices = nil
				w.routes(ns, "routes", `{"hosts": ["`+host+`"], "gateways": `+gateways+`, "http": [{"match": [{"uri": {"prefix": "`+path+`"}}], "directResponse": {"status": 200}}]}`)
				return &mesh.Fragment{VirtualServices: w.f.VirtualServices}
			}
			in := mesh.Input{
				Fallback: &mesh.MeshConfig{Spec: w.mc}, Bindings: []*mesh.Binding{{Namespaces: []string{"mallory"}}, nil},
				Grants: mesh.NewGrants([]mesh.Grant{{Name: mesh.Hostname(host), Namespace: "mallory"}}),
			}
			theirs, ours := fragment("mallory", tenant, "/theirs"), fragment("shop", `["edge/a"]`, "/ours")
			gateways := w.f.Gateways
			for _, alone := range []bool{true, false} {
				in.Fragments = []*mesh.Fragment{theirs, {Gateways: gateways}}
				if !alone {
					in.Fragments[1] = &mesh.Fragment{Gateways: gateways, VirtualServices: ours.VirtualServices}
				}
				s := mesh.Merge(in)
				r := findPart(t, NewIndex(s).Build(routerIn("edge", "a")), func(r *RouteConfiguration) bool { return r.Name == "http.80" })
				if got := len(r.VirtualHosts[0].Routes); got != 1 {
					t.Errorf("%s, tenant for %s, alone %t: there are %d routes; conflicts: %v", host, tenant, alone, got, s.Conflicts)
				}
				if foreign := len(s.Conflicts) > 0; foreign == alone {
					t.Errorf("%s, tenant for %s, alone %t: conflicts: %v", host, tenant, alone, s.Conflicts)
				}
				in.Prev = s
			}
		}
	}
}
