package meshgen

import (
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// allocate gives addresses to the hosts that need some. They also depend on how many hosts
// come before a host, so that one that comes or goes moves those of others; a server moves
// them more seldom. There is no chance in it, so that the meshes of a seed stay the same.
func (g *Generator) allocate() *mesh.Allocations {
	want := map[mesh.NamespacedHost]mesh.Allocation{}
	for h := range g.allocations.All {
		want[h] = mesh.Allocation{}
	}
	refused := map[mesh.NamespacedHost][]string{}
	for _, s := range g.sources {
		for _, svc := range s.fragment.Services {
			if h := svc.NamespacedHost(); svc.Allocatable() {
				refused[h] = append(refused[h], "") // none
			} else if len(svc.Addresses) > 0 && len(svc.Hostname)%3 == 0 {
				refused[h] = append(refused[h], svc.Addresses[0])
			}
		}
	}
	for i, h := range slices.SortedFunc(maps.Keys(refused), mesh.NamespacedHost.Compare) {
		f := fnv.New32a()
		_, _ = f.Write([]byte(h.Namespace + "/" + string(h.Host)))
		sum := f.Sum32()
		a := mesh.Allocation{IPv4: netip.AddrFrom4([4]byte{240, 240, byte(sum), byte(i/8%3 + 1)}), Refused: slices.DeleteFunc(refused[h], func(x string) bool { return x == "" })}
		if sum%3 > 0 {
			a.IPv6 = netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 3: 2, 14: byte(sum), 15: byte(sum >> 8)})
		}
		want[h] = a
	}
	g.allocations = g.allocations.With(want)
	return g.allocations
}
