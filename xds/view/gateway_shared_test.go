package view

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestTenantsTakeNothingAtSharedGateways: what an unbound source routes at a gateway that serves every host stays
// as it is, whatever a tenant adds there, however old its object says it is and to whom it exports it.
func TestTenantsTakeNothingAtSharedGateways(t *testing.T) {
	t.Parallel()
	const (
		http     = `"http": [{"match": [{"uri": {"prefix": "/login"}}], "directResponse": {"status": 418}}, {"directResponse": {"status": 418}}]`
		tcp      = `"tcp": [{"route": [{"destination": {"host": "mallory.mesh", "port": {"number": 80}}}]}]`
		tls      = `"tls": [{"match": [{"port": 443, "sniHosts": [%q]}], "route": [{"destination": {"host": "mallory.mesh", "port": {"number": 80}}}]}]`
		platform = `"http": [{"directResponse": {"status": 204}}],
			"tcp": [{"route": [{"destination": {"host": "web.mesh", "port": {"number": 80}}}]}],
			"tls": [{"match": [{"port": 443, "sniHosts": ["shop.example.com"]}], "route": [{"destination": {"host": "web.mesh", "port": {"number": 80}}}]}]`
	)
	build := func(gateways, tenant string, exports ...string) *View {
		w := newMeshFixture(t)
		w.service("mallory", "mallory.mesh", 80)
		if tenant != "" {
			w.routes("mallory", "a", tenant, exports...) // older than all others
		}
		mallory := w.f
		w.f = mesh.Fragment{}
		w.service("edge", "web.mesh", 80)
		w.gateway("a", `{"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["shop.example.com"]},
			{"port": {"number": 9000, "name": "tcp", "protocol": "TCP"}, "hosts": ["*"]},
			{"port": {"number": 443, "name": "tls", "protocol": "TLS"}, "hosts": ["*"], "tls": {"mode": "PASSTHROUGH"}}]}`)
		w.f.Gateways[0].Namespace = "edge"
		w.routes("edge", "shop", `{"hosts": ["shop.example.com"], "gateways": [`+gateways+`], `+platform+`}`)
		return NewIndex(mesh.Merge(mesh.Input{
			Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{&w.f, &mallory},
			Bindings: []*mesh.Binding{nil, {Namespaces: []string{"mallory"}}},
		})).Build(routerIn("edge", "a"))
	}
	// answers is where requests and connections for the host of the platform go.
	answers := func(v *View) (out []string) {
		for p := range v.Parts() {
			switch p := p.(type) {
			case *RouteConfiguration:
				for _, vh := range p.VirtualHosts {
					for _, r := range vh.Routes {
						if slices.Contains(vh.Domains, "shop.example.com") {
							out = append(out, fmt.Sprint(p.Name, " ", r.Rule.GetDirectResponse().GetStatus()))
						}
					}
				}
			case *Listener:
				for _, c := range p.Chains {
					if c.TCP != nil && (len(c.Match.ServerNames) == 0 || slices.Contains(c.Match.ServerNames, "shop.example.com")) {
						out = append(out, fmt.Sprint(p.Name, " ", c.TCP.Destinations[0].Cluster.Host))
					}
				}
			}
		}
		return out
	}
	for _, gateways := range []string{`"edge/a"`, `"mesh", "edge/a"`} {
		want := answers(build(gateways, ""))
		if len(want) != 3 {
			t.Fatalf("without a tenant: %q", want)
		}
		for _, host := range []string{"shop.example.com", "*.example.com", "*", "mallory.example.org"} {
			for _, exports := range [][]string{nil, {"edge"}, {"edge", "mallory"}} {
				for _, own := range []string{`"edge/a"`, `"edge/a", "mesh"`} {
					for _, rules := range []string{http, tcp, fmt.Sprintf(tls, "shop.example.com"), fmt.Sprintf(tls, host)} {
						tenant := fmt.Sprintf(`{"hosts": [%q], "gateways": [%s], %s}`, host, own, rules)
						if got := answers(build(gateways, tenant, exports...)); !slices.Equal(got, want) {
							t.Errorf("with gateways %s, exported to %q, beside %s: %q, want %q", gateways, exports, tenant, got, want)
						}
					}
				}
			}
		}
	}
}
