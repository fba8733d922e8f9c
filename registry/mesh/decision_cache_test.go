package mesh

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestSampleHasEveryWay looks for each service of a long list among the sampled ones, or
// for another one that decides the same.
func TestSampleHasEveryWay(t *testing.T) {
	t.Parallel()
	names := []Hostname{nameOf(netip.MustParsePrefix("10.9.0.1/32")), nameOf(netip.MustParsePrefix("10.9.0.0/31"))}
	var indexes [2]nameIndex[*Service]
	for i := range indexes {
		var deltas []Delta[*Service]
		for n := range 8 * maxSamples {
			svc := addressed(fmt.Sprintf("ns%d-%d", i, n%3), fmt.Sprintf("n%d", n), "10.9.0.1")
			if n%2 == 0 {
				svc.Addresses = []string{"10.9.0.0/31"}
			}
			svc.Catalog = n%5 == 0
			deltas = append(deltas, Delta[*Service]{New: svc})
		}
		none := &nameIndex[*Service]{}
		indexes[i] = none.updated(deltas, CompareServices, func(svc *Service) []Hostname {
			if svc.Namespace == fmt.Sprintf("ns%d-0", i) {
				return names[:1]
			}
			return names
		})
	}
	o := &owners{cache: newDecisionCache()}
	for range 2 { // the second answers come from the cache
		for i := range indexes {
			for _, name := range names {
				all := map[*Service]bool{}
				for _, svc := range indexes[i].get(name) {
					all[svc] = true
				}
				some := o.sample(&indexes[i], name)
				if len(some) >= len(all) || len(all) <= maxSamples {
					t.Fatalf("%d of %d services of %s", len(some), len(all), name)
				}
				for svc := range all {
					found := false
					for _, x := range some {
						if !all[x] {
							t.Fatalf("%s does not have %s in this index", x.Key, name)
						}
						found = found || x.Namespace == svc.Namespace && x.Catalog == svc.Catalog && declaresAddress(x, name) == declaresAddress(svc, name)
					}
					if !found {
						t.Errorf("nothing stands for %s, catalog %v, addresses %v, at %s", svc.Key, svc.Catalog, svc.Addresses, name)
					}
				}
			}
		}
	}
}
