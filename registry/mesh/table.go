package mesh

import (
	"cmp"
	"slices"
	"sort"
)

// patchLimit is the number of changed objects up to which a list or an index is
// patched; beyond it, building anew is cheaper.
const patchLimit = 64

// object is what Fragment and Snapshot hold: pointers to structs that embed
// Meta.
type object interface {
	comparable
	meta() *Meta
}

func (m *Meta) meta() *Meta { return m }

// table is the objects of one kind in one snapshot, before they are put into
// the order that the kind wants.
type table[T object] struct {
	// inputs are the sources' lists, as they were given.
	inputs [][]T
	// merged is sorted by Key and has no conflicts.
	merged    []T
	conflicts []Conflict
}

// tables is what a snapshot remembers for the sake of the next one.
type tables struct {
	services            table[*Service]
	workloads           table[*Workload]
	workloadGroups      table[*WorkloadGroup]
	virtualServices     table[*VirtualService]
	destinationRules    table[*DestinationRule]
	sidecars            table[*Sidecar]
	peerAuthentications table[*PeerAuthentication]
	unenforced          table[*Unenforced]

	// judged are services.merged with the health of inline endpoints; those of
	// workloads are Snapshot.Workloads.
	judged []*Service
	// reports is the sources' lists; verdicts is what became of them, one a
	// workload, sorted.
	reports  [][]HealthReport
	verdicts []HealthReport
}

func compareKeys[T object](a, b T) int { return a.meta().Compare(b.meta().Key) }

func compareServiceKeys(a, b *Service) int {
	return cmp.Or(a.Compare(b.Key), cmp.Compare(a.Hostname, b.Hostname))
}

// mergeTable merges the lists of all sources; the first source that has a Key
// wins it. Lists that are not sorted cost a copy.
func mergeTable[T object](prev *table[T], inputs [][]T, order func(a, b T) int) table[T] {
	if slices.EqualFunc(prev.inputs, inputs, slices.Equal[[]T]) {
		return *prev
	}
	t := table[T]{inputs: inputs}
	for _, list := range inputs {
		list = t.withoutDuplicates(sorted(list, order), order)
		switch {
		case len(list) == 0:
		case len(t.merged) == 0:
			t.merged = list
		default:
			t.merged = t.join(list)
		}
	}
	if slices.Equal(prev.merged, t.merged) {
		t.merged = prev.merged
	}
	return t
}

// sorted returns the list itself where it is sorted already.
func sorted[T any](list []T, order func(a, b T) int) []T {
	if slices.IsSortedFunc(list, order) {
		return list
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, order)
	return list
}

func (t *table[T]) conflict(kept, dropped T) {
	c := Conflict{Key: kept.meta().Key, Kept: kept.meta().Origin, Dropped: dropped.meta().Origin}
	if n := len(t.conflicts); n > 0 && t.conflicts[n-1] == c {
		return // several hosts of one ServiceEntry
	}
	t.conflicts = append(t.conflicts, c)
}

// withoutDuplicates returns the list itself where it has none.
func (t *table[T]) withoutDuplicates(list []T, order func(a, b T) int) []T {
	clean := list
	for i := 1; i < len(list); i++ {
		if order(list[i-1], list[i]) != 0 {
			if len(clean) != len(list) {
				clean = append(clean, list[i])
			}
			continue
		}
		if len(clean) == len(list) {
			clean = append(make([]T, 0, len(list)), list[:i]...)
		}
		t.conflict(clean[len(clean)-1], list[i])
	}
	return clean
}

// join merges the list of a further source into the table. Whole Keys win, not
// single objects: a ServiceEntry is never put together from two sources.
func (t *table[T]) join(list []T) []T {
	out := make([]T, 0, len(t.merged)+len(list))
	i := 0
	for _, x := range list {
		for i < len(t.merged) && compareKeys(t.merged[i], x) < 0 {
			out = append(out, t.merged[i])
			i++
		}
		if i < len(t.merged) && t.merged[i].meta().Key == x.meta().Key {
			t.conflict(t.merged[i], x)
			continue
		}
		out = append(out, x)
	}
	return append(out, t.merged[i:]...)
}

// diff compares two lists in the same order by pointer.
func diff[T object](prev, next []T, order func(a, b T) int) []Delta[T] {
	if len(prev) == len(next) && (len(prev) == 0 || &prev[0] == &next[0]) {
		return nil
	}
	var out []Delta[T]
	i, j := 0, 0
	for i < len(prev) && j < len(next) {
		if prev[i] == next[j] {
			i++
			j++
			continue
		}
		switch c := order(prev[i], next[j]); {
		case c < 0:
			out = append(out, Delta[T]{Old: prev[i]})
			i++
		case c > 0:
			out = append(out, Delta[T]{New: next[j]})
			j++
		default:
			out = append(out, Delta[T]{Old: prev[i], New: next[j]})
			i++
			j++
		}
	}
	for ; i < len(prev); i++ {
		out = append(out, Delta[T]{Old: prev[i]})
	}
	for ; j < len(next); j++ {
		out = append(out, Delta[T]{New: next[j]})
	}
	return out
}

// reorder puts the objects of all into an order of their own. list is the
// result for the snapshot before; where little changed it is patched.
func reorder[T object](list, all []T, deltas []Delta[T], order func(a, b T) int) []T {
	if len(deltas) == 0 && len(list) == len(all) {
		return list
	}
	if len(deltas) <= patchLimit && len(list) > 0 {
		if out, ok := patch(list, deltas, order); ok {
			return out
		}
	}
	return sorted(all, order)
}

// patch applies deltas to a copy of a list in some total order. It reports
// false where the list does not have what the deltas take out.
func patch[T object](list []T, deltas []Delta[T], order func(a, b T) int) ([]T, bool) {
	var zero T
	out := slices.Clone(list)
	for _, d := range deltas {
		if d.Old != zero {
			i, ok := slices.BinarySearchFunc(out, d.Old, order)
			if !ok || out[i] != d.Old {
				return nil, false
			}
			if d.New != zero && order(d.Old, d.New) == 0 {
				out[i] = d.New
				continue
			}
			out = slices.Delete(out, i, i+1)
		}
		if d.New != zero {
			i := sort.Search(len(out), func(i int) bool { return order(out[i], d.New) > 0 })
			out = slices.Insert(out, i, d.New)
		}
	}
	return out, true
}
