package mesh

import (
	"cmp"
	"reflect"
	"slices"
	"sort"
)

// object is what Fragment and Snapshot hold: pointers to structs that embed
// Meta.
type object interface {
	comparable
	meta() *Meta
}

func (m *Meta) meta() *Meta { return m }

// table is the objects of one kind in one snapshot, sorted by Key.
type table[T object] struct {
	// inputs are the lists of the sources.
	inputs [][]T
	// strictlySorted means that each input is sorted without duplicates, so that the next
	// table can be made from this one.
	strictlySorted bool
	// merged is sorted by Key and has no conflicts.
	merged    []T
	conflicts []Conflict
}

// tables is what a snapshot keeps for the next one.
type tables struct {
	kinds map[reflect.Type]any // *table[T] by T; see tableOf

	restrictions restrictions
	catalogs     catalogs
	// addressed are catalogs.inForce with allocated addresses; observed are these with the
	// health of inline endpoints. Workloads with health are Snapshot.Workloads.
	addressed   []*Service
	allocations *Allocations
	observed    []*Service
	health      mergedHealth
	keys        keysOf
}

func compareKeys[T object](a, b T) int { return a.meta().Compare(b.meta().Key) }

func compareServiceKeys(a, b *Service) int {
	return cmp.Or(a.Compare(b.Key), cmp.Compare(a.Hostname, b.Hostname))
}

// mergeTable merges the lists of all sources; the first source that has a Key wins. It also
// returns what differs from the previous table.
func mergeTable[T object](prev *table[T], inputs [][]T, order func(a, b T) int) (*table[T], []Delta[T]) {
	if t, deltas, ok := prev.patched(inputs, order); ok {
		return t, deltas
	}
	t := &table[T]{inputs: inputs, strictlySorted: true}
	for _, list := range inputs {
		clean := t.withoutDuplicates(sorted(list, order), order)
		t.strictlySorted = t.strictlySorted && sameSlice(clean, list)
		switch {
		case len(clean) == 0:
		case len(t.merged) == 0:
			t.merged = clean
		default:
			t.merged = t.join(clean)
		}
	}
	deltas, _ := diff(prev.merged, t.merged, order)
	if len(deltas) == 0 {
		t.merged = prev.merged
	}
	return t, deltas
}

// patched makes the table for other inputs from their changes. It reports false if that is
// not possible.
func (t *table[T]) patched(inputs [][]T, order func(a, b T) int) (*table[T], []Delta[T], bool) {
	if !t.strictlySorted || len(t.inputs) != len(inputs) {
		return nil, nil, false
	}
	var keys []Key
	var only []Delta[T] // the changes of one source that has all objects
	full, changed := 0, 0
	for i, list := range inputs {
		deltas, order := diff(t.inputs[i], list, order)
		if order != strict {
			return nil, nil, false
		}
		if len(list)+len(t.inputs[i]) > 0 {
			full++
		}
		if len(deltas) > 0 {
			changed++
			only = deltas
		}
	}
	switch {
	case changed == 0:
		return t, nil, true
	case full == 1:
		next := &table[T]{inputs: inputs, strictlySorted: true}
		for _, list := range inputs {
			if len(list) > 0 {
				next.merged = list
			}
		}
		return next, only, true
	}
	for i, list := range inputs {
		deltas, _ := diff(t.inputs[i], list, order)
		for _, d := range deltas {
			keys = append(keys, newest(d).meta().Key)
		}
	}
	slices.SortFunc(keys, Key.Compare)
	return t.decided(inputs, slices.Compact(keys), order)
}

// decided decides again which source has some keys, which are sorted.
func (t *table[T]) decided(inputs [][]T, keys []Key, order func(a, b T) int) (*table[T], []Delta[T], bool) {
	next := &table[T]{inputs: inputs, strictlySorted: true}
	fresh := &table[T]{} // the conflicts about the keys
	var deltas []Delta[T]
	for _, key := range keys {
		var winner []T
		for _, list := range inputs {
			switch have := span(list, key); {
			case len(have) == 0:
			case winner == nil:
				winner = have
			default:
				fresh.noteConflict(winner, have)
			}
		}
		change, _ := diff(span(t.merged, key), winner, order)
		deltas = append(deltas, change...)
	}
	next.conflicts = t.conflicts
	among := func(c Conflict) bool {
		_, found := slices.BinarySearchFunc(keys, c.Key, Key.Compare)
		return found
	}
	if len(fresh.conflicts) > 0 || slices.ContainsFunc(t.conflicts, among) {
		next.conflicts = slices.Concat(slices.DeleteFunc(slices.Clone(t.conflicts), among), fresh.conflicts)
	}
	var ok bool
	next.merged, ok = patch(t.merged, deltas, order)
	return next, deltas, ok
}

// span is the part of a sorted list that has the key.
func span[T object](list []T, key Key) []T {
	from, _ := slices.BinarySearchFunc(list, key, func(x T, k Key) int { return x.meta().Compare(k) })
	to := from
	for to < len(list) && list[to].meta().Key == key {
		to++
	}
	return list[from:to]
}

// sameSlice reports whether two slices are one.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
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

// noteConflict notes that the objects of a Key come from one source, and that those of
// another one are dropped.
func (t *table[T]) noteConflict(kept, dropped []T) {
	reason, differ := disagreement(kept, dropped)
	if !differ {
		return
	}
	for _, x := range dropped {
		t.conflict(kept[0], x, reason)
	}
}

func (t *table[T]) conflict(kept, dropped T, reason string) {
	c := Conflict{Key: kept.meta().Key, Kept: kept.meta().Origin, Dropped: dropped.meta().Origin, Reason: reason}
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
		t.conflict(clean[len(clean)-1], list[i], "")
	}
	return clean
}

// join merges the list of another source into the table. Whole Keys win, not single
// objects: a ServiceEntry is never assembled from two sources.
func (t *table[T]) join(list []T) []T {
	out := make([]T, 0, len(t.merged)+len(list))
	i := 0
	for j := 0; j < len(list); {
		x := list[j]
		for i < len(t.merged) && compareKeys(t.merged[i], x) < 0 {
			out = append(out, t.merged[i])
			i++
		}
		if i < len(t.merged) && t.merged[i].meta().Key == x.meta().Key {
			have := span(list[j:], x.meta().Key)
			t.noteConflict(span(t.merged[i:], x.meta().Key), have)
			j += len(have)
			continue
		}
		out = append(out, x)
		j++
	}
	return append(out, t.merged[i:]...)
}

// sortedness is how well a list is sorted.
type sortedness uint8

const (
	unsorted sortedness = iota
	ascending
	// strict: ascending, and nothing in it twice.
	strict
)

// diff compares two lists by pointer; prev must be sorted. It compares keys only where the
// lists differ, so unchanged elements cost one pointer comparison. It also returns how well
// next is sorted, assuming that prev is strictly sorted. If next is unsorted, the deltas
// are not valid.
func diff[T comparable](prev, next []T, order func(a, b T) int) ([]Delta[T], sortedness) {
	if sameSlice(prev, next) {
		return nil, strict
	}
	var out []Delta[T]
	is := strict
	i, j := 0, 0
	for j < len(next) {
		if i < len(prev) && prev[i] == next[j] { // it follows what was less than prev[i]
			i++
			j++
			continue
		}
		c := 1
		if i < len(prev) {
			c = order(prev[i], next[j])
		}
		if c < 0 {
			out = append(out, Delta[T]{Old: prev[i]})
			i++
			continue
		}
		is = min(is, follows(next, j, order))
		d := Delta[T]{New: next[j]}
		if c == 0 {
			d.Old = prev[i]
			i++
		}
		out = append(out, d)
		j++
	}
	for ; i < len(prev); i++ {
		out = append(out, Delta[T]{Old: prev[i]})
	}
	return out, is
}

// follows says how the element at j follows the one before.
func follows[T any](list []T, j int, order func(a, b T) int) sortedness {
	if j == 0 {
		return strict
	}
	switch c := order(list[j-1], list[j]); {
	case c < 0:
		return strict
	case c == 0:
		return ascending
	default:
		return unsorted
	}
}

func strictlySorted[T any](list []T, order func(a, b T) int) bool {
	for j := range list {
		if follows(list, j, order) != strict {
			return false
		}
	}
	return true
}

// reorder sorts all objects into another order. list is the result for the previous
// snapshot.
func reorder[T comparable](list, all []T, deltas []Delta[T], order func(a, b T) int) []T {
	if len(deltas) == 0 && len(list) == len(all) {
		return list
	}
	if out, ok := patch(list, deltas, order); ok && len(out) == len(all) {
		return out
	}
	return sorted(all, order)
}

// patch applies deltas to a strictly sorted list, which does not change. It reports false
// if the list lacks an object that the deltas remove.
func patch[T comparable](list []T, deltas []Delta[T], order func(a, b T) int) ([]T, bool) {
	if len(deltas) == 0 {
		return list, true
	}
	var zero T
	drop, add := make([]int, 0, len(deltas)), make([]T, 0, len(deltas))
	for _, d := range deltas {
		if d.Old != zero {
			i, ok := slices.BinarySearchFunc(list, d.Old, order)
			if !ok || list[i] != d.Old {
				return nil, false
			}
			drop = append(drop, i)
		}
		if d.New != zero {
			add = append(add, d.New)
		}
	}
	slices.Sort(drop)
	slices.SortFunc(add, order)
	out := make([]T, 0, max(0, len(list)-len(drop)+len(add)))
	at := 0 // of list is in out, or dropped
	upTo := func(end int) {
		for len(drop) > 0 && drop[0] < end {
			out = append(out, list[at:drop[0]]...)
			at = drop[0] + 1
			drop = drop[1:]
		}
		if end > at {
			out = append(out, list[at:end]...)
			at = end
		}
	}
	for _, x := range add {
		upTo(sort.Search(len(list), func(i int) bool { return order(list[i], x) > 0 }))
		out = append(out, x)
	}
	upTo(len(list))
	return out, true
}
