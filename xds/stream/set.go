package stream

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"sync"
	"weak"
)

// Set has resources of one type, sorted by name. Immutable, except for deltas that it
// caches under its own lock; a nil Set is empty.
type Set struct {
	list []*Resource

	mu     sync.Mutex // guards deltas and single
	deltas map[weak.Pointer[Set]]setDelta
	single *mergedSet // the merged set of this set alone, or nil

	once struct{ index, split sync.Once }
	// index is for looking up many names; made when first needed.
	index map[string]int32
	// split are the virtual hosts by route configuration, if there are several route
	// configurations.
	split map[string]*Set
}

// NewSet makes a set. If several resources have a name, the first one counts. The list may
// be reused.
func NewSet(list []*Resource) *Set {
	list = slices.Clone(list)
	if !slices.IsSortedFunc(list, byName) {
		slices.SortStableFunc(list, byName)
	}
	return &Set{list: slices.CompactFunc(list, func(a, b *Resource) bool { return a.Name == b.Name })}
}

func byName(a, b *Resource) int { return strings.Compare(a.Name, b.Name) }

// find returns the index of a name in a list that is sorted by name.
func find(list []*Resource, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(r *Resource, name string) int { return strings.Compare(r.Name, name) })
}

// With is the set with some resources changed or added and some removed. A name in both
// lists is removed.
func (s *Set) With(changed []*Resource, removed []string) *Set {
	gone := make(map[string]struct{}, len(removed))
	for _, name := range removed {
		gone[name] = struct{}{}
	}
	if !slices.IsSortedFunc(changed, byName) {
		changed = slices.Clone(changed)
		slices.SortStableFunc(changed, byName)
	}
	out := make([]*Resource, 0, s.Len()+len(changed))
	add := func(r *Resource) {
		if _, ok := gone[r.Name]; !ok && (len(out) == 0 || out[len(out)-1].Name != r.Name) {
			out = append(out, r)
		}
	}
	for r := range s.All() {
		for len(changed) > 0 && changed[0].Name <= r.Name {
			add(changed[0])
			changed = changed[1:]
		}
		add(r)
	}
	for _, r := range changed {
		add(r)
	}
	return &Set{list: out}
}

// Get returns a resource by name, or nil.
func (s *Set) Get(name string) *Resource {
	if s == nil {
		return nil
	}
	if i, ok := find(s.list, name); ok {
		return s.list[i]
	}
	return nil
}

// lookUp returns the index of each name, for many names.
func (s *Set) lookUp() map[string]int32 {
	if s == nil {
		return nil
	}
	s.once.index.Do(func() {
		s.index = make(map[string]int32, len(s.list))
		for i, r := range s.list {
			s.index[r.Name] = int32(i)
		}
	})
	return s.index
}

// routeConfigs yields the virtual hosts by route configuration.
func (s *Set) routeConfigs() iter.Seq2[string, *Set] {
	return func(yield func(string, *Set) bool) {
		first, _, ok := splitHostName(s.list[0].Name)
		last, _, _ := splitHostName(s.list[len(s.list)-1].Name)
		if ok && first == last { // names with a common prefix are neighbours
			yield(first, s)
			return
		}
		s.once.split.Do(func() {
			lists := map[string][]*Resource{}
			for _, r := range s.list {
				if routeConfig, _, ok := splitHostName(r.Name); ok {
					lists[routeConfig] = append(lists[routeConfig], r)
				}
			}
			s.split = map[string]*Set{}
			for routeConfig, list := range lists {
				s.split[routeConfig] = &Set{list: list}
			}
		})
		for routeConfig, set := range s.split {
			if !yield(routeConfig, set) {
				return
			}
		}
	}
}

// Len is how many resources there are.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.list)
}

// All yields the resources, sorted by name.
func (s *Set) All() iter.Seq[*Resource] {
	if s == nil {
		return func(func(*Resource) bool) {}
	}
	return slices.Values(s.list)
}

// maxSetDeltas bounds the deltas that a Set caches: streams are at most a few generations
// behind.
const maxSetDeltas = 8

// diff is what changed from prev to s. It is computed once for a pair and shared, so that
// all generations with the two sets cost one comparison.
func (s *Set) diff(prev *Set) setDelta {
	if s == prev {
		return setDelta{}
	}
	if s == nil {
		return diffSets(prev, nil)
	}
	// Weak, so that a set does not keep its predecessors in memory.
	key := weak.Make(prev)
	s.mu.Lock()
	defer s.mu.Unlock()
	if d, ok := s.deltas[key]; ok {
		return d
	}
	d := diffSets(prev, s)
	if s.deltas == nil || len(s.deltas) >= maxSetDeltas {
		s.deltas = map[weak.Pointer[Set]]setDelta{}
	}
	s.deltas[key] = d
	return d
}

func diffSets(prev, next *Set) setDelta {
	var d setDelta
	var was, now []*Resource
	if prev != nil {
		was = prev.list
	}
	if next != nil {
		now = next.list
	}
	for len(was) > 0 || len(now) > 0 {
		switch {
		case len(was) == 0:
			d.changed = append(d.changed, now...)
			return d
		case len(now) == 0:
			for _, r := range was {
				d.removed = append(d.removed, r.Name)
			}
			return d
		case was[0] == now[0]:
			was, now = was[1:], now[1:]
			continue
		}
		switch cmp.Compare(was[0].Name, now[0].Name) {
		case -1:
			d.removed = append(d.removed, was[0].Name)
			was = was[1:]
		case 1:
			d.changed = append(d.changed, now[0])
			now = now[1:]
		default:
			if was[0].Version != now[0].Version {
				d.changed = append(d.changed, now[0])
			}
			was, now = was[1:], now[1:]
		}
	}
	return d
}
