package capture

import (
	"cmp"
	"slices"
)

// interval is a closed interval of keys of a set.
type interval struct{ lo, hi uint32 }

// merge sorts intervals, and joins those that touch.
func merge(in []interval) []interval {
	in = slices.Clone(in)
	slices.SortFunc(in, func(a, b interval) int { return cmp.Compare(a.lo, b.lo) })
	var out []interval
	for _, i := range in {
		if n := len(out); n > 0 && (out[n-1].hi >= i.lo || out[n-1].hi+1 == i.lo) {
			out[n-1].hi = max(out[n-1].hi, i.hi)
			continue
		}
		out = append(out, i)
	}
	return out
}

// without is everything from lo to hi but the given keys.
func without[K uint16 | uint32](lo, hi uint32, keys []K) []interval {
	sorted := slices.Compact(slices.Sorted(slices.Values(keys)))
	var out []interval
	next := uint64(lo)
	for _, k := range sorted {
		key := uint64(k)
		if key < next || key > uint64(hi) {
			continue
		}
		if key > next {
			out = append(out, interval{uint32(next), uint32(key - 1)})
		}
		next = key + 1
	}
	if next <= uint64(hi) {
		out = append(out, interval{uint32(next), hi})
	}
	return out
}

// singles are intervals of one key each, joined where they touch.
func singles[K uint16 | uint32](keys []K) []interval {
	var out []interval
	for _, k := range keys {
		out = append(out, interval{uint32(k), uint32(k)})
	}
	return merge(out)
}
