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
