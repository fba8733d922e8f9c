package mesh

import (
	"maps"
	"slices"
)

// ranking is the objects of a kind that is owned by a namespace and not by a host, such as
// Sidecars. If several sources have some in one namespace, and any of them has a date,
// those of bound sources rank behind the others, by name: whoever writes a file can write
// any creationTimestamp.
type ranking[T object] struct {
	in, out [][]T
	// dated are, by source, the namespaces that it has objects in, and whether one of
	// them is dated; late are those in which bound sources come last.
	dated []map[string]bool
	late  map[string]bool
	// last are the objects that come last, by those that they are made from.
	last []map[T]T
}

// ranked makes the ranking of other lists; last makes of an object one that comes
// last.
func (r *ranking[T]) ranked(lists [][]T, bindings []*Binding, last func(T) T) ranking[T] {
	known := len(r.in) == len(lists)
	if known && !slices.ContainsFunc(zip(r.in, lists), func(p [2][]T) bool { return !sameSlice(p[0], p[1]) }) {
		return *r
	}
	next := ranking[T]{
		in: lists, out: make([][]T, len(lists)), dated: make([]map[string]bool, len(lists)), last: make([]map[T]T, len(lists)),
	}
	for i, list := range lists {
		if known && sameSlice(r.in[i], list) {
			next.dated[i] = r.dated[i]
		} else {
			next.dated[i] = datedIn(list)
		}
	}
	next.late = sharedAndDated(next.dated)
	same := known && maps.Equal(next.late, r.late)
	for i, list := range lists {
		switch {
		case bindings[i] == nil || len(next.late) == 0:
			next.out[i] = list
		case same && sameSlice(r.in[i], list):
			next.out[i], next.last[i] = r.out[i], r.last[i]
		default:
			var before map[T]T
			if known {
				before = r.last[i]
			}
			next.out[i], next.last[i] = putLast(list, next.late, before, last)
		}
	}
	return next
}

func zip[T any](a, b [][]T) [][2][]T {
	out := make([][2][]T, len(a))
	for i := range a {
		out[i] = [2][]T{a[i], b[i]}
	}
	return out
}

func datedIn[T object](list []T) map[string]bool {
	out := map[string]bool{}
	for _, x := range list {
		m := x.meta()
		out[m.Namespace] = out[m.Namespace] || !m.Created.IsZero()
	}
	return out
}

// sharedAndDated are the namespaces that several sources have objects in, of which
// one is dated.
func sharedAndDated(sources []map[string]bool) map[string]bool {
	count, out := map[string]int{}, map[string]bool{}
	for _, s := range sources {
		for ns := range s {
			count[ns]++
		}
	}
	for _, s := range sources {
		for ns, dated := range s {
			if dated && count[ns] > 1 {
				out[ns] = true
			}
		}
	}
	return out
}

// putLast puts the objects of some namespaces last, as before those that were.
func putLast[T object](list []T, late map[string]bool, before map[T]T, last func(T) T) ([]T, map[T]T) {
	made := map[T]T{}
	out := make([]T, len(list))
	for i, x := range list {
		out[i] = x
		if !late[x.meta().Namespace] {
			continue
		}
		y, known := before[x]
		if !known {
			y = last(x)
		}
		made[x], out[i] = y, y
	}
	if len(made) == 0 {
		return list, nil
	}
	return out, made
}

// rankings are those of all kinds that only the namespace, and no host, has, and of
// which only the first counts for a workload: what a bound source calls oldest must not
// be that. A kind of which all objects count, as of AuthorizationPolicy, needs none. Gateways have a rule of
// their own.
type rankings struct {
	destinationRules    ranking[*DestinationRule]
	sidecars            ranking[*Sidecar]
	peerAuthentications ranking[*PeerAuthentication]
	gateways            gatewayRanking
}

// rank puts into the fragments, which it may write to, what comes last.
func (r *rankings) rank(in, out []*Fragment, bindings []*Binding) rankings {
	next := rankings{
		destinationRules: r.destinationRules.ranked(lists(in, func(f *Fragment) []*DestinationRule { return f.DestinationRules }), bindings,
			func(x *DestinationRule) *DestinationRule { y := *x; y.putLast(); return &y }),
		sidecars: r.sidecars.ranked(lists(in, func(f *Fragment) []*Sidecar { return f.Sidecars }), bindings,
			func(x *Sidecar) *Sidecar { y := *x; y.putLast(); return &y }),
		peerAuthentications: r.peerAuthentications.ranked(lists(in, func(f *Fragment) []*PeerAuthentication { return f.PeerAuthentications }), bindings,
			func(x *PeerAuthentication) *PeerAuthentication { y := *x; y.putLast(); return &y }),
		gateways: r.gateways.ranked(lists(in, func(f *Fragment) []*Gateway { return f.Gateways }), bindings),
	}
	for i, b := range bindings {
		if b == nil || in[i] == nil {
			continue
		}
		f := *out[i]
		f.DestinationRules, f.Sidecars = next.destinationRules.out[i], next.sidecars.out[i]
		f.PeerAuthentications, f.Gateways = next.peerAuthentications.out[i], next.gateways.out[i]
		out[i] = &f
	}
	return next
}

// putLast makes an object come behind all others.
func (m *Meta) putLast() {
	m.Created, m.Hash = newestDate(), hashAs(m.Hash, "last")
}

// boundLast are the fragments of unbound sources, and then those of others.
func boundLast(list []*Fragment, bindings []*Binding) []*Fragment {
	out := make([]*Fragment, 0, len(list))
	for _, bound := range []bool{false, true} {
		for i, f := range list {
			if bound == (bindings[i] != nil) {
				out = append(out, f)
			}
		}
	}
	return out
}
