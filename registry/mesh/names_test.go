package mesh

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// someNames are names of all forms, many of which overlap.
func someNames() []Hostname {
	return []Hostname{
		"a.example", "b.example", "x.a.example", "y.x.a.example", "ab.example", "example", "other",
		"*", "*.example", "*.a.example", "*.x.a.example", "*b.example", "*.b.example",
		"10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.0.0/31", "10.0.0.0/24", "10.0.0.0/16", "10.0.1.0/24", "0.0.0.0/0", "11.0.0.0/8",
		"fd00::1", "fd00::2", "fd00::/64", "fd00::/16", "fd01::/64", "::/0",
	}
}

// points are what a name stands for, among some names: itself or, of a wildcard or range, what
// is below it.
func points(h Hostname) map[Hostname]bool {
	out := map[Hostname]bool{}
	p, err := netip.ParsePrefix(string(h))
	for _, x := range someNames() {
		if isWide(x) {
			continue
		}
		a, notAddress := netip.ParseAddr(string(x))
		switch {
		case h == "*": // addresses, too
			out[x] = true
		case err == nil:
			if notAddress == nil && p.Contains(a) {
				out[x] = true
			}
		case h.IsWildcard():
			if notAddress != nil && strings.HasSuffix(string(x), string(h[1:])) {
				out[x] = true
			}
		case x == h:
			out[x] = true
		}
	}
	return out
}

// TestNamesByWhatTheyStandFor compares how names overlap with what they stand for.
func TestNamesByWhatTheyStandFor(t *testing.T) {
	t.Parallel()
	for _, a := range someNames() {
		for _, b := range someNames() {
			p, q := points(a), points(b)
			common, all := false, len(q) > 0
			for x := range q {
				common, all = common || p[x], all && p[x]
			}
			if got := overlapping(a, b); common && !got {
				t.Errorf("overlapping(%s, %s) is %v", a, b, got)
			}
			if got := covering(a, b); got && !all && len(q) > 0 {
				t.Errorf("covering(%s, %s) is %v", a, b, got)
			}
			if covering(a, b) && (!overlapping(a, b) || compareWidth(b, a) > 0) || covering(a, b) && covering(b, a) != (a == b) {
				t.Errorf("%s covers %s, but it does not overlap with it, or is narrower", a, b)
			}
			if overlapping(a, b) != overlapping(b, a) || overlapping(a, b) && !covering(a, b) && !covering(b, a) {
				t.Errorf("%s and %s overlap: %v, %v", a, b, overlapping(a, b), overlapping(b, a))
			}
			if isAddress(a) != isAddress(b) && a != "*" && b != "*" && overlapping(a, b) {
				t.Errorf("%s and %s overlap", a, b)
			}
			if got, want := SameAddress(a, b), a == b && isAddress(a); got != want {
				t.Errorf("SameAddress(%s, %s) is %v", a, b, got)
			}
		}
	}
	for _, same := range [][2]Hostname{{"10.0.0.1", "::ffff:10.0.0.1"}, {"10.0.0.1", "10.0.0.1/32"}, {"10.0.0.7/24", "10.0.0.0/24"}, {"fd00::1", "fd00:0::1"}} {
		if !SameAddress(same[0], same[1]) {
			t.Errorf("%s and %s are one", same[0], same[1])
		}
	}
}

// TestNamesAreFound has names come and go at random, and compares what is found above and below
// each name with what covers it, and is covered.
func TestNamesAreFound(t *testing.T) {
	t.Parallel()
	all := someNames()
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 3))
		there := map[Hostname]bool{}
		var wide wideNames
		var order sortedNames
		for range 60 {
			added, dropped := map[Hostname]bool{}, map[Hostname]bool{}
			for range rng.IntN(4) {
				if h := all[rng.IntN(len(all))]; there[h] {
					dropped[h] = true
				} else {
					added[h] = true
				}
			}
			for h := range added {
				there[h] = true
			}
			for h := range dropped {
				delete(there, h)
			}
			wide, order = wide.with(added, dropped), order.with(added, dropped)
			if len(order) != len(there) {
				t.Fatalf("%d names are listed, want %d", len(order), len(there))
			}
			for _, h := range all {
				var above, below []Hostname
				wide.above(h, func(x Hostname) bool {
					if there[x] {
						above = append(above, x)
					}
					return true
				})
				order.below(h, func(x Hostname) bool {
					below = append(below, x)
					return true
				})
				if !slices.IsSortedFunc(above, compareWidth) {
					t.Errorf("above %s: %v, not the narrowest first", h, above)
				}
				for x := range there {
					if x == h {
						continue
					}
					if covering(x, h) != slices.Contains(above, x) || isWide(h) && covering(h, x) != slices.Contains(below, x) {
						t.Errorf("seed %d: of %v, %v are above %s, and %v below", seed, order, above, h, below)
					}
				}
			}
		}
	}
}

// TestNameIndexIsUpdated changes an index at random, and compares it with one that is made from
// nothing: several objects may have a name, and an object several names.
func TestNameIndexIsUpdated(t *testing.T) {
	t.Parallel()
	all := someNames()
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 5))
		names := map[*Service][]Hostname{}
		under := func(svc *Service) []Hostname { return names[svc] }
		var there []*Service
		var x nameIndex[*Service]
		for step := range 60 {
			var deltas []Delta[*Service]
			for range rng.IntN(4) {
				if i := rng.IntN(20); i < len(there) && !slices.ContainsFunc(deltas, func(d Delta[*Service]) bool { return d.New == there[i] }) {
					deltas = append(deltas, Delta[*Service]{Old: there[i]})
					there = slices.Delete(there, i, i+1)
					continue
				}
				svc := testService("shop", fmt.Sprint(seed, step, len(names)), "")
				for range 1 + rng.IntN(2) {
					names[svc] = append(names[svc], all[rng.IntN(len(all))])
				}
				slices.Sort(names[svc])
				names[svc] = slices.Compact(names[svc])
				deltas = append(deltas, Delta[*Service]{New: svc})
				there = append(there, svc)
			}
			x = x.updated(deltas, CompareServices, under)
			anew := (&nameIndex[*Service]{}).updated(added(there), CompareServices, under)
			if !slices.Equal(x.order, anew.order) || x.widths.dotted != anew.widths.dotted || x.widths.odd != anew.widths.odd || !maps.Equal(x.widths.ranges, anew.widths.ranges) {
				t.Fatalf("seed %d, step %d: the index has %v %+v, want %v %+v", seed, step, x.order, x.widths, anew.order, anew.widths)
			}
			for _, h := range all {
				var got, want []*Service
				x.find(h, true, func(svc *Service) bool {
					got = append(got, svc)
					return true
				})
				for _, svc := range there {
					for _, n := range names[svc] {
						if overlapping(n, h) {
							want = append(want, svc)
						}
					}
				}
				slices.SortFunc(got, CompareServices)
				slices.SortFunc(want, CompareServices)
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d, step %d: %d objects overlap with %s, want %d", seed, step, len(got), h, len(want))
				}
			}
		}
	}
}

// TestAccountsOfEndpoints: the accounts of a service are those of its endpoints, each once and
// sorted, whatever changed before.
func TestAccountsOfEndpoints(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	var s *Snapshot
	svc := testService("a", "s", "x")
	for range 200 {
		f := &Fragment{Services: []*Service{svc}}
		want := map[ServiceAccount]bool{}
		for i := range rng.IntN(6) {
			w := testWorkload("a", fmt.Sprint("w", i), "10.0.0.1", "x")
			w.Hash = Hash{byte(rng.IntN(256)), byte(rng.IntN(256))}
			if w.ServiceAccount = []string{"", "one", "two", "three"}[rng.IntN(4)]; w.ServiceAccount != "" {
				want[ServiceAccount{Namespace: "a", Name: w.ServiceAccount}] = true
			}
			f.Workloads = append(f.Workloads, w)
		}
		s = testSnapshot(s, f)
		sorted := slices.SortedFunc(maps.Keys(want), func(a, b ServiceAccount) int { return strings.Compare(a.Name, b.Name) })
		if got := s.ServiceAccountsOf(svc); !slices.Equal(got, sorted) {
			t.Fatalf("the accounts are %v, want %v", got, sorted)
		}
	}
}
