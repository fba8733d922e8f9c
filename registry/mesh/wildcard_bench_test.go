package mesh

import (
	"fmt"
	"slices"
	"testing"
)

// manyWildcards is a mesh of two tenants: one with wildcards and ranges, and one with
// hosts and addresses, most of them elsewhere.
func manyWildcards(wildcards, hosts int) []*Fragment {
	a, b := &Fragment{Source: "a"}, &Fragment{Source: "b"}
	for i := range wildcards {
		svc := testService("a", fmt.Sprintf("w%05d", i), "")
		svc.Hostname = Hostname(fmt.Sprintf("*.w%05d.shop.internal", i))
		svc.Addresses = []string{fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)}
		a.Services = append(a.Services, svc)
	}
	for i := range hosts {
		svc := testService("b", fmt.Sprintf("h%05d", i), "")
		svc.Hostname = Hostname(fmt.Sprintf("h%05d.other.internal", i))
		svc.Addresses = []string{fmt.Sprintf("11.%d.%d.1", i/256, i%256)}
		if i%100 == 0 { // below a wildcard, and in a range
			svc.Hostname = Hostname(fmt.Sprintf("h.w%05d.shop.internal", i%max(wildcards, 1)))
			svc.Addresses = []string{fmt.Sprintf("10.%d.%d.1", i%max(wildcards, 1)/256, i%256)}
		}
		b.Services = append(b.Services, svc)
	}
	return []*Fragment{a.Sorted(), b.Sorted()}
}

func wildcardInput(fragments []*Fragment) Input {
	return Input{Fallback: testMeshConfig(), Fragments: fragments, Bindings: []*Binding{patterns("a", "*.shop.internal"), patterns("b", "*.other.internal")}}
}

// TestWildcardCostDependsOnCoveredNames counts the names that are looked at for all
// wildcards of a mesh: those that they cover, and not all for each.
func TestWildcardCostDependsOnCoveredNames(t *testing.T) {
	t.Parallel()
	const wildcards, hosts = 200, 2000
	s := Merge(wildcardInput(manyWildcards(wildcards, hosts)))
	index := &s.tables.restrictions.owners.claims[1]
	looked := 0
	for _, svc := range s.tables.restrictions.inputs[0].Services {
		for _, names := range []sortedNames{index.services.order, index.addresses.order} {
			for _, h := range append(addressNames(svc), svc.Hostname) {
				names.below(h, func(Hostname) bool { looked++; return true })
			}
		}
		ups := 0
		index.services.widths.above(svc.Hostname, func(Hostname) bool { ups++; return true })
		if ups > 0 {
			t.Fatalf("%d names above %s are looked up where there is no wildcard", ups, svc.Hostname)
		}
	}
	if most := 2 * hosts / 100; looked == 0 || looked > most {
		t.Errorf("%d names were looked at for %d wildcards and ranges, at most %d are below them", looked, wildcards, most)
	}
}

// BenchmarkWildcards is the price of 2,000 wildcards and ranges of a tenant beside
// 10,000 hosts and addresses of another: all anew, and one host more and less.
func BenchmarkWildcards(b *testing.B) {
	for _, n := range []int{0, 2000} {
		fragments := manyWildcards(n, 10_000)
		b.Run(fmt.Sprintf("anew/wildcards=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Merge(wildcardInput(fragments))
			}
		})
		b.Run(fmt.Sprintf("host/wildcards=%d", n), func(b *testing.B) {
			in := wildcardInput(fragments)
			in.Prev = Merge(in)
			svc := testService("b", "zz", "")
			svc.Hostname, svc.Addresses = "zz.w00001.shop.internal", []string{"10.0.1.77"}
			more := *fragments[1]
			more.Services = append(slices.Clone(more.Services), svc)
			both := [2][]*Fragment{{fragments[0], &more}, fragments}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				in.Fragments = both[i%2]
				in.Prev = Merge(in)
			}
		})
	}
}
