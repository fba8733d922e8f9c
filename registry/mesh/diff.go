package mesh

import (
	"iter"
	"reflect"
	"slices"
)

// Delta is one object that differs between two lists: Old is nil where New was
// added, New is nil where Old was removed.
type Delta[T comparable] struct{ Old, New T }

// newest is the object as it is, or as it was.
func newest[T comparable](d Delta[T]) T {
	var zero T
	if d.New != zero {
		return d.New
	}
	return d.Old
}

// Diff is what differs between two snapshots, or two fragments of one source, by pointer.
// An object that is not in it is the same pointer in both. An object of which only the
// origin changed is in it, with an equal Hash; Snapshot.Changes leaves it out. [DeltasOf]
// reads it by kind.
type Diff struct {
	kinds map[reflect.Type]any // []Delta[T] by T
}

// DeltasOf is what differs of one kind, such as *Service, in no particular order. An object
// of a snapshot that moved in its list is there twice, as removed and as added.
func DeltasOf[T object](d *Diff) []Delta[T] {
	list, _ := d.kinds[reflect.TypeFor[T]()].([]Delta[T])
	return list
}

// note puts down what differs of a kind.
func note[T object](d *Diff, deltas []Delta[T]) {
	if len(deltas) == 0 {
		delete(d.kinds, reflect.TypeFor[T]())
		return
	}
	if d.kinds == nil {
		d.kinds = map[reflect.Type]any{}
	}
	d.kinds[reflect.TypeFor[T]()] = deltas
}

// Policies are the old and new objects of Diff that may change how workloads of their
// namespace accept requests; those of the root namespace, how all workloads do. Services,
// workloads, and objects about workloads' own requests are not included.
func (d *Diff) Policies() iter.Seq[*Meta] {
	return func(yield func(*Meta) bool) {
		for _, k := range kinds {
			if !k.policies() || k.changed(d) == 0 {
				continue
			}
			for c := range k.changes(d) {
				if c.Old != nil && !yield(c.Old) || c.New != nil && !yield(c.New) {
					return
				}
			}
		}
	}
}

// Only reports whether all differences are of some types, such as *Service.
func (d *Diff) Only(types ...reflect.Type) bool {
	for t := range d.kinds {
		if !slices.Contains(types, t) {
			return false
		}
	}
	return true
}

func (d *Diff) objects() int {
	n := 0
	for _, k := range kinds {
		n += k.changed(d)
	}
	return n
}

// Since is what differs from another snapshot, usually the previous one. MeshConfig is
// compared by pointer. It costs nothing if s was merged from prev, otherwise it compares
// the pointers of both.
func (s *Snapshot) Since(prev *Snapshot) *Diff {
	if s.diff != nil && s.base.Value() == prev {
		return s.diff
	}
	d := &Diff{}
	for _, k := range kinds {
		k.since(d, prev, s)
	}
	return d
}

// Merged is the number of objects that were merged again for this snapshot: those that
// differ from the previous one, or all if there was none.
func (s *Snapshot) Merged() int { return s.merged }

// DiffLists compares two lists in the same strict order, by pointer.
func DiffLists[T comparable](prev, next []T, order func(a, b T) int) []Delta[T] {
	deltas, _ := diff(prev, next, order)
	return deltas
}

// PatchList is a list in some strict order with changes made; the list itself
// stays as it is. What a change takes out must be in it, by pointer.
func PatchList[T comparable](list []T, deltas []Delta[T], order func(a, b T) int) []T {
	return patched(list, deltas, order)
}

// DiffServices is what differs between two lists of services of one source, by pointer. Both
// are sorted as in a [Fragment].
func DiffServices(prev, next []*Service) []Delta[*Service] {
	return DiffLists(prev, next, compareServiceKeys)
}
