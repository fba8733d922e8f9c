package stream

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"sync"
	"weak"
)

// Set is resources of one type, sorted by name. Immutable, but for what it
// remembers of comparisons, which has its own lock; a nil Set is empty.
type Set struct {
	list []*Resource

	mu    sync.Mutex // guards diffs and alone
	diffs map[weak.Pointer[Set]]Delta
	alone *union // of this set and no other, or nil

	once struct{ index, split sync.Once }
	// index is where many names are looked up; made when first needed.
	index map[string]int32
	// split are the virtual hosts by route configuration, if there are several.
	split map[string]*Set
}

// NewSet makes a set; of several resources of one name the first one counts.
// The list may be used again.
func NewSet(list []*Resource) *Set {
	list = slices.Clone(list)
	if !slices.IsSortedFunc(list, byName) {
		slices.SortStableFunc(list, byName)
	}
	return &Set{list: slices.CompactFunc(list, func(a, b *Resource) bool { return a.Name == b.Name })}
}

func byName(a, b *Resource) int { return strings.Compare(a.Name, b.Name) }

// find is where a name stands in a list that is sorted by name.
func find(list []*Resource, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(r *Resource, name string) int { return strings.Compare(r.Name, name) })
}

// With is the set with some resources changed or added, and some removed. A
// name in both is removed.
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

// Get gives a resource by name, or nil.
func (s *Set) Get(name string) *Resource {
	if s == nil {
		return nil
	}
	if i, ok := find(s.list, name); ok {
		return s.list[i]
	}
	return nil
}

// lookUp is where each name stands, for many names.
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

// tables yields virtual hosts by the route configuration that they belong to.
func (s *Set) tables() iter.Seq2[string, *Set] {
	return func(yield func(string, *Set) bool) {
		first, _, ok := cutHost(s.list[0].Name)
		last, _, _ := cutHost(s.list[len(s.list)-1].Name)
		if ok && first == last { // what has a prefix in common stands together
			yield(first, s)
			return
		}
		s.once.split.Do(func() {
			lists := map[string][]*Resource{}
			for _, r := range s.list {
				if table, _, ok := cutHost(r.Name); ok {
					lists[table] = append(lists[table], r)
				}
			}
			s.split = map[string]*Set{}
			for table, list := range lists {
				s.split[table] = &Set{list: list}
			}
		})
		for table, set := range s.split {
			if !yield(table, set) {
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

// maxDiffs bounds the differences that a Set remembers: streams are at most a few
// generations behind.
const maxDiffs = 8

// diff is what changed from prev to s. It is computed once for a pair and
// shared, so that a push costs all generations with the two sets one comparison
// together.
func (s *Set) diff(prev *Set) Delta {
	if s == prev {
		return Delta{}
	}
	if s == nil {
		return compare(prev, nil)
	}
	// A weak pointer, lest every set keep all sets before it.
	key := weak.Make(prev)
	s.mu.Lock()
	defer s.mu.Unlock()
	if d, ok := s.diffs[key]; ok {
		return d
	}
	d := compare(prev, s)
	if s.diffs == nil || len(s.diffs) >= maxDiffs {
		s.diffs = map[weak.Pointer[Set]]Delta{}
	}
	s.diffs[key] = d
	return d
}

func compare(prev, next *Set) Delta {
	var d Delta
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
			d.Changed = append(d.Changed, now...)
			return d
		case len(now) == 0:
			for _, r := range was {
				d.Removed = append(d.Removed, r.Name)
			}
			return d
		case was[0] == now[0]:
			was, now = was[1:], now[1:]
			continue
		}
		switch cmp.Compare(was[0].Name, now[0].Name) {
		case -1:
			d.Removed = append(d.Removed, was[0].Name)
			was = was[1:]
		case 1:
			d.Changed = append(d.Changed, now[0])
			now = now[1:]
		default:
			if was[0].Version != now[0].Version {
				d.Changed = append(d.Changed, now[0])
			}
			was, now = was[1:], now[1:]
		}
	}
	return d
}
