package view

import (
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestRequestsAnnounceHTTPWhereMTLSMayBe: requests to a port without a declared protocol
// announce themselves as HTTP if their connection may have mTLS of the mesh.
func TestRequestsAnnounceHTTPWhereMTLSMayBe(t *testing.T) {
	t.Parallel()
	const host = "a.mesh"
	rule := func(spec string) func(*meshFixture, *mesh.Service) {
		return func(w *meshFixture, _ *mesh.Service) { w.rule("shop", "a", `{"host":"a.mesh",`+spec+`}`) }
	}
	for name, c := range map[string]struct {
		edit func(*meshFixture, *mesh.Service)
		want bool
	}{
		"automatic":         {func(*meshFixture, *mesh.Service) {}, true},
		"declared":          {func(_ *meshFixture, s *mesh.Service) { s.Ports[0].Protocol = mesh.HTTP }, false},
		"external":          {func(_ *meshFixture, s *mesh.Service) { s.External = true }, false},
		"not automatic":     {func(w *meshFixture, _ *mesh.Service) { w.mc.EnableAutoMtls = wrapperspb.Bool(false) }, false},
		"SIMPLE":            {rule(`"trafficPolicy":{"tls":{"mode":"SIMPLE"}}`), false},
		"MUTUAL":            {rule(`"trafficPolicy":{"tls":{"mode":"MUTUAL"}}`), false},
		"DISABLE":           {rule(`"trafficPolicy":{"tls":{"mode":"DISABLE"}}`), false},
		"ISTIO_MUTUAL":      {rule(`"trafficPolicy":{"tls":{"mode":"ISTIO_MUTUAL"}}`), true},
		"SIMPLE elsewhere":  {rule(`"trafficPolicy":{"portLevelSettings":[{"port":{"number":81},"tls":{"mode":"SIMPLE"}}]}`), true},
		"SIMPLE here":       {rule(`"trafficPolicy":{"portLevelSettings":[{"port":{"number":80},"tls":{"mode":"SIMPLE"}}]}`), false},
		"SIMPLE for others": {rule(`"subsets":[{"name":"v1","trafficPolicy":{"tls":{"mode":"SIMPLE"}}}]`), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, routed := range []bool{false, true} {
				w := newMeshFixture(t)
				svc := w.service("shop", host, 80)
				svc.Ports[0].Protocol = mesh.Undeclared
				w.service("shop", "b.mesh", 80)
				c.edit(w, svc)
				from := host
				if routed {
					from = "b.mesh"
					w.routes("shop", "b", `{"hosts":["b.mesh"],"http":[{"route":[{"destination":{"host":"a.mesh"}}]}]}`)
				}
				v := Build(w.snapshot(), proxyIn("shop", nil))
				table := findPart(t, v, func(c *RouteConfiguration) bool { return c.Name == "80" })
				found := false
				for _, h := range table.VirtualHosts {
					if h.Name != vhostName(from, 80) {
						continue
					}
					found = true
					if got := h.Routes[0].Destinations[0]; got.Cluster.Host != host || got.AnnounceHTTP != c.want {
						t.Errorf("routed %v: got %+v, want it to announce HTTP: %v", routed, got, c.want)
					}
				}
				if !found {
					t.Errorf("no virtual host for %s", from)
				}
			}
		})
	}
}
