package view

import (
	"cmp"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// change is a difference between two lists: old is nil where new was added, new
// is nil where old was removed.
type change[T any] struct{ old, new *T }

// diff compares two lists in the same order by pointer.
func diff[T any](prev, next []*T, order func(a, b *T) int) []change[T] {
	if len(prev) == len(next) && (len(prev) == 0 || &prev[0] == &next[0]) {
		return nil
	}
	var out []change[T]
	i, j := 0, 0
	for i < len(prev) && j < len(next) {
		if prev[i] == next[j] {
			i++
			j++
			continue
		}
		switch c := order(prev[i], next[j]); {
		case c < 0:
			out = append(out, change[T]{old: prev[i]})
			i++
		case c > 0:
			out = append(out, change[T]{new: next[j]})
			j++
		default:
			out = append(out, change[T]{prev[i], next[j]})
			i++
			j++
		}
	}
	for ; i < len(prev); i++ {
		out = append(out, change[T]{old: prev[i]})
	}
	for ; j < len(next); j++ {
		out = append(out, change[T]{new: next[j]})
	}
	return out
}

// patched is a copy of a list in a total order with the changes made.
func patched[T any](list []*T, changes []change[T], order func(a, b *T) int) []*T {
	if len(changes) == 0 {
		return list
	}
	out := make([]*T, 0, len(list)+len(changes))
	gone := map[*T]*T{} // what is replaced where it is; nil for what is removed
	var added []*T
	for _, c := range changes {
		switch {
		case c.old == nil:
			added = append(added, c.new)
		case c.new != nil && order(c.old, c.new) == 0:
			gone[c.old] = c.new
		default:
			gone[c.old] = nil
			if c.new != nil {
				added = append(added, c.new)
			}
		}
	}
	slices.SortFunc(added, order)
	for _, x := range list {
		if instead, ok := gone[x]; ok {
			if x = instead; x == nil {
				continue
			}
		}
		for len(added) > 0 && order(added[0], x) < 0 {
			out, added = append(out, added[0]), added[1:]
		}
		out = append(out, x)
	}
	return append(out, added...)
}

// The orders of lists in a snapshot.

func byHostname(a, b *mesh.Service) int { return mesh.CompareServices(a, b) }

// byPrecedence is the order in which services win conflicts.
func byPrecedence(a, b *mesh.Service) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Hostname, b.Hostname),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func before(a, b *mesh.Meta) int {
	switch {
	case a.Before(b):
		return -1
	case b.Before(a):
		return 1
	default:
		return 0
	}
}

func byKey(a, b *mesh.Workload) int                  { return a.Compare(b.Key) }
func byKeyOfPolicy(a, b *mesh.Unenforced) int        { return a.Compare(b.Key) }
func byAgeOfRoutes(a, b *virtualService) int         { return before(&a.Meta, &b.Meta) }
func byAgeOfRule(a, b *mesh.DestinationRule) int     { return before(&a.Meta, &b.Meta) }
func byAgeOfSidecar(a, b *mesh.Sidecar) int          { return before(&a.Meta, &b.Meta) }
func byAgeOfPeers(a, b *mesh.PeerAuthentication) int { return before(&a.Meta, &b.Meta) }
