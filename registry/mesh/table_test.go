package mesh

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// A listed number is in a list by its key only: others may have the same.
type listed struct{ key int }

func compareListed(a, b *listed) int { return cmp.Compare(a.key, b.key) }

// randomList is sorted, strictly or not, or not sorted.
func randomList(rng *rand.Rand, is sortedness) []*listed {
	var out []*listed
	for range rng.IntN(12) {
		x := &listed{rng.IntN(20)}
		if is == strict && slices.ContainsFunc(out, func(y *listed) bool { return y.key == x.key }) {
			continue
		}
		out = append(out, x)
	}
	if is != unsorted {
		slices.SortStableFunc(out, compareListed)
	}
	return out
}

func sortednessOf(list []*listed) sortedness {
	is := strict
	for i := range list[:max(0, len(list)-1)] {
		switch c := compareListed(list[i], list[i+1]); {
		case c > 0:
			return unsorted
		case c == 0:
			is = ascending
		}
	}
	return is
}

// TestDiffOfLists compares what diff reports with its definition.
func TestDiffOfLists(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		prev, next := randomList(rng, strict), randomList(rng, sortedness(rng.IntN(3)))
		for _, x := range prev { // most stay
			at := slices.IndexFunc(next, func(y *listed) bool { return y.key == x.key })
			switch {
			case rng.IntN(4) == 0:
			case at >= 0:
				next[at] = x
			default:
				at, _ = slices.BinarySearchFunc(next, x, compareListed)
				next = slices.Insert(next, at, x)
			}
		}
		if rng.IntN(8) == 0 && len(next) > 1 { // two that stay, in the wrong order
			i := rng.IntN(len(next) - 1)
			next[i], next[i+1] = next[i+1], next[i]
		}
		deltas, is := diff(prev, next, compareListed)
		if want := sortednessOf(next); is != want {
			t.Fatalf("seed %d: sortedness %d, want %d", seed, is, want)
		}
		if is != unsorted {
			left := slices.Clone(prev)
			for _, d := range deltas {
				left = slices.DeleteFunc(left, func(x *listed) bool { return x == d.Old })
				if d.New != nil {
					left = append(left, d.New)
				}
			}
			slices.SortStableFunc(left, compareListed)
			if !slices.Equal(left, next) {
				t.Fatalf("seed %d: the differences do not make the list", seed)
			}
		}
	}
}

// TestPatchedLists patches lists in which several objects may have one key.
func TestPatchedLists(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		list := randomList(rng, ascending+sortedness(rng.IntN(2)))
		var deltas []Delta[*listed]
		want := map[*listed]bool{}
		for _, x := range list {
			want[x] = true
			switch rng.IntN(4) {
			case 0:
				deltas = append(deltas, Delta[*listed]{Old: x})
				delete(want, x)
			case 1:
				y := &listed{x.key}
				deltas = append(deltas, Delta[*listed]{Old: x, New: y})
				delete(want, x)
				want[y] = true
			}
		}
		if rng.IntN(2) == 0 {
			x := &listed{rng.IntN(20)}
			deltas = append(deltas, Delta[*listed]{New: x})
			want[x] = true
		}
		before := slices.Clone(list)
		got := patched(list, deltas, compareListed)
		if len(got) != len(want) || !slices.IsSortedFunc(got, compareListed) || slices.ContainsFunc(got, func(x *listed) bool { return !want[x] }) {
			t.Fatalf("seed %d: %d objects, want %d", seed, len(got), len(want))
		}
		if !slices.Equal(list, before) {
			t.Fatalf("seed %d: the list itself changed", seed)
		}
	}
}

func TestPatchWithoutTheObject(t *testing.T) {
	t.Parallel()
	list := []*listed{{1}, {3}}
	for _, x := range []*listed{{0}, {1}, {2}, {9}} {
		if out, ok := patch(list, []Delta[*listed]{{Old: x}}, compareListed); ok {
			t.Errorf("patched to %d objects without an object of key %d that was not there", len(out), x.key)
		}
	}
}
