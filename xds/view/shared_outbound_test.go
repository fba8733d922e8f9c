package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestNamespaceSharesOutboundLayers: in a mesh without Sidecars, all proxies of a namespace
// share their outbound layers by pointer, whatever their labels, accounts, addresses and
// localities are, also after changes. Where services fail over, only the endpoints layer
// differs by locality, and in it only the parts of such services.
func TestNamespaceSharesOutboundLayers(t *testing.T) {
	t.Parallel()
	places := []string{"eu/a", "eu/b", "us/a"}
	f := newFleet(t, 60, 90)
	for i := range f.proxies {
		f.proxies[i].Locality = mesh.ParseLocality(places[i%len(places)])
	}
	x := NewIndex(f.s)
	check := func(after string, sets, failover int) {
		t.Helper()
		f.rebuildViews(x)
		of := map[string]map[any]bool{}
		note := func(what string, part any) {
			if of[what] == nil {
				of[what] = map[any]bool{}
			}
			of[what][part] = true
		}
		for i, p := range f.proxies {
			ns, out := p.ServiceAccount.Namespace, f.views[i].outbound
			note("sets of "+ns, fmt.Sprintf("%p %p %p %p %p", out.clusters, out.endpoints, out.fixed, out.listeners, out.routeConfigurations[0]))
			note("listeners of "+ns, out.listeners)
			for _, l := range out.routeConfigurations {
				note("route configurations of "+ns, l)
			}
			note("clusters", out.clusters) // that everybody sees the same is known, too
			note("endpoints", out.endpoints)
			for _, part := range out.endpoints.Parts {
				note("parts of endpoints", part)
			}
		}
		services := len(f.views[0].outbound.endpoints.Parts)
		for what, list := range of {
			want := 1
			switch {
			case what == "endpoints" || strings.HasPrefix(what, "sets"):
				want = sets
			case what == "parts of endpoints":
				want = services + failover*(len(places)-1)
			}
			if len(list) != want {
				t.Errorf("after %s: %d %s, want %d", after, len(list), what, want)
			}
		}
	}
	check("start", 1, 0)
	f.editRoutes(0, 5)
	x = x.Next(f.next())
	check("routes", 1, 0)
	f.editWorkload(0, 5)
	x = x.Next(f.next())
	check("workload", 1, 0)
	f.addService(60)
	slices.SortFunc(f.w.f.Workloads, byKey)
	x = x.Next(f.next())
	check("service", 1, 0)
	svc := f.w.f.Services[1] // which has no rule
	f.w.rule(svc.Namespace, "failover", `{"host":"`+string(svc.Hostname)+`","trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":1}}}`)
	x = x.Next(f.next())
	check("failover", len(places), 1)
}
