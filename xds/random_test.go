package xds

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

func newRandom(t *testing.T, seed uint64) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(seed, 11))
}

// scramble changes a mesh in one of the ways in which meshes change.
func scramble(rnd *rand.Rand, o *objects, step int) {
	i := rnd.IntN(len(o.services))
	host := string(o.services[i].Hostname)
	switch rnd.IntN(7) {
	case 0:
		o.service(fmt.Sprintf("new%d", step), 8080)
	case 1:
		if len(o.services) > 25 {
			o.services = slices.Delete(o.services, i, i+1)
		}
	case 2:
		o.workload(fmt.Sprintf("more%d", step), fmt.Sprintf("10.98.%d.%d", step/250, step%250), map[string]string{"app": "s0003"})
	case 3:
		j := rnd.IntN(len(o.workloads))
		if o.workloads[j].Name > "s0010" || o.workloads[j].Name < "s" {
			o.workloads = slices.Delete(o.workloads, j, j+1)
		}
	case 4, 5:
		o.route(host, fmt.Sprint("/v", step))
	default:
		o.workloads = slices.Clone(o.workloads) // nothing
	}
}

// route sets, or replaces, the VirtualService of a host.
func (o *objects) route(host, prefix string) {
	o.virtualServices = slices.DeleteFunc(slices.Clone(o.virtualServices), func(v *mesh.VirtualService) bool { return v.Name == host })
	o.virtualServices = append(o.virtualServices, &mesh.VirtualService{
		Meta: meta(mesh.KindVirtualService, host, prefix),
		Spec: &networking.VirtualService{Hosts: []string{host}, Http: []*networking.HTTPRoute{{
			Match: []*networking.HTTPMatchRequest{{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: prefix}}}},
			Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}},
		}}},
	})
	slices.SortFunc(o.virtualServices, func(a, b *mesh.VirtualService) int { return a.Compare(b.Key) })
}
