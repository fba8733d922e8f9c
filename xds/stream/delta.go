package stream

import (
	"slices"
	"weak"
)

// maxDeltas bounds the deltas that a merged set keeps.
const maxDeltas = 32

// subscribedDelta is what must be sent to a peer that has one merged set and is to have
// another, as far as it subscribes to it. Immutable, and shared by all streams with the
// same two sets and subscription.
type subscribedDelta struct {
	add      []*Resource // sorted by name
	remove   []string    // sorted
	newCount int         // how many of add the peer does not have in any version
}

type deltaKey struct {
	from weak.Pointer[mergedSet]
	set  weak.Pointer[nameSet]
	all  bool
}

// deltaFrom returns the delta from another merged set to this one.
func (m *mergedSet) deltaFrom(from *mergedSet, sub subscription) *subscribedDelta {
	sub = sub.normalized()
	if m == nil || from != nil && from.private {
		return m.computeDelta(from, sub)
	}
	key := deltaKey{weak.Make(from), weak.Make(sub.set), sub.wildcard}
	m.mu.Lock()
	defer m.mu.Unlock()
	if d, ok := m.deltas[key]; ok {
		return d
	}
	d := m.computeDelta(from, sub)
	if m.deltas == nil || len(m.deltas) >= maxDeltas {
		m.deltas = map[deltaKey]*subscribedDelta{}
	}
	m.deltas[key] = d
	return d
}

func (m *mergedSet) computeDelta(from *mergedSet, sub subscription) *subscribedDelta {
	if from == nil {
		list := m.subscribed(sub)
		return &subscribedDelta{add: list, newCount: len(list)}
	}
	out := &subscribedDelta{}
	d := m.diff(from)
	out.add, out.remove = d.changed, d.removed
	if !sub.wildcard {
		out.add, out.remove = nil, nil
		for _, r := range d.changed {
			if sub.has(r.Name) {
				out.add = append(out.add, r)
			}
		}
		for _, name := range d.removed {
			if sub.has(name) {
				out.remove = append(out.remove, name)
			}
		}
	}
	for _, r := range out.add {
		if from.get(r.Name) == nil {
			out.newCount++
		}
	}
	return out
}

// subscribed lists the resources of a subscription, sorted by name.
func (m *mergedSet) subscribed(sub subscription) []*Resource {
	if m == nil {
		return nil
	}
	var parts [][]*Resource
	for _, s := range m.sets {
		list := s.list
		if !sub.wildcard {
			list = s.named(sub.set.all())
		}
		if len(list) > 0 {
			parts = append(parts, list)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	if len(parts) == 1 {
		return parts[0]
	}
	list := slices.Concat(parts...) // stable: the first set with a name counts
	slices.SortStableFunc(list, byName)
	return slices.CompactFunc(list, func(a, b *Resource) bool { return a.Name == b.Name })
}

// named lists the resources with some names, which are sorted. If that is all of them, the
// list is the set's own.
func (s *Set) named(names []string) []*Resource {
	var out []*Resource
	for i, r := range s.list {
		for len(names) > 0 && names[0] < r.Name {
			names = names[1:]
		}
		if len(names) > 0 && names[0] == r.Name {
			if out != nil {
				out = append(out, r)
			}
			continue
		}
		if out == nil { // the first one that is not among them
			out = make([]*Resource, i, len(s.list))
			copy(out, s.list)
		}
	}
	if out == nil {
		return s.list
	}
	return out
}

// withPrivate is the merged set with resources that only one stream has.
func (m *mergedSet) withPrivate(extra []*Resource) *mergedSet {
	out := &mergedSet{private: true}
	if m != nil {
		out.sets, out.layers = slices.Clone(m.sets), slices.Clone(m.layers)
		out.duplicates = m.duplicates
	}
	out.sets = append(out.sets, NewSet(extra))
	out.layers = append(out.layers, "")
	return out
}

// mergeLists merges two lists that are sorted by name. If both have a name, the resource
// of the first list counts.
func mergeLists(a, b []*Resource) []*Resource {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := make([]*Resource, 0, len(a)+len(b))
	for _, r := range a {
		for len(b) > 0 && b[0].Name < r.Name {
			out, b = append(out, b[0]), b[1:]
		}
		if len(b) > 0 && b[0].Name == r.Name {
			b = b[1:]
		}
		out = append(out, r)
	}
	return append(out, b...)
}

// subtract is a list without the names of another; both are sorted by name.
func subtract(list, gone []*Resource) []*Resource {
	if len(list) == 0 || len(gone) == 0 {
		return list
	}
	var out []*Resource
	for _, r := range list {
		for len(gone) > 0 && gone[0].Name < r.Name {
			gone = gone[1:]
		}
		if len(gone) == 0 || gone[0].Name != r.Name {
			out = append(out, r)
		}
	}
	return out
}
