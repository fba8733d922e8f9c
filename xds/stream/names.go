package stream

import (
	"crypto/sha256"
	"io"
	"iter"
	"maps"
	"slices"
	"sync"
	"weak"
)

// wildcardName asks for everything of a type.
const wildcardName = "*"

// Interner shares equal sets of names between streams, so that a thousand
// streams of one class hold one set. The zero value is ready for use, from any
// number of goroutines.
type Interner struct {
	mu   sync.Mutex // guards sets
	sets map[[sha256.Size]byte]weak.Pointer[nameSet]
}

// nameSet is an immutable, sorted set.
type nameSet struct{ names []string }

func (n *nameSet) has(name string) bool {
	if n == nil {
		return false
	}
	_, ok := slices.BinarySearch(n.names, name)
	return ok
}

func (i *Interner) intern(names []string) *nameSet {
	h := sha256.New()
	for _, n := range names {
		_, _ = io.WriteString(h, n) // a hash never fails
		_, _ = h.Write([]byte{0})
	}
	key := [sha256.Size]byte(h.Sum(nil))
	i.mu.Lock()
	defer i.mu.Unlock()
	if p, ok := i.sets[key]; ok {
		if set := p.Value(); set != nil {
			return set
		}
	}
	if i.sets == nil {
		i.sets = map[[sha256.Size]byte]weak.Pointer[nameSet]{}
	}
	// Sets that no stream holds any more go when the map has doubled since.
	if n := len(i.sets); n >= 64 && n&(n-1) == 0 {
		maps.DeleteFunc(i.sets, func(_ [sha256.Size]byte, p weak.Pointer[nameSet]) bool { return p.Value() == nil })
	}
	set := &nameSet{names: names}
	i.sets[key] = weak.Make(set)
	return set
}

// subscription is what a peer asks for of one type.
type subscription struct {
	wildcard bool
	set      *nameSet            // the names while they stand still, or nil
	edit     map[string]struct{} // the names while they change, or nil
}

func (s *subscription) has(name string) bool { return s.wildcard || s.named(name) }

func (s *subscription) named(name string) bool {
	if s.edit != nil {
		_, ok := s.edit[name]
		return ok
	}
	return s.set.has(name)
}

func (s *subscription) len() int {
	if s.edit != nil {
		return len(s.edit)
	}
	if s.set != nil {
		return len(s.set.names)
	}
	return 0
}

// all yields the names, in any order; the wildcard is not one of them.
func (s *subscription) all() iter.Seq[string] {
	if s.edit != nil {
		return maps.Keys(s.edit)
	}
	if s.set != nil {
		return slices.Values(s.set.names)
	}
	return func(func(string) bool) {}
}

func (s *subscription) add(name string) {
	s.open()
	s.edit[name] = struct{}{}
}

func (s *subscription) remove(name string) {
	if s.named(name) {
		s.open()
		delete(s.edit, name)
	}
}

func (s *subscription) open() {
	if s.edit != nil {
		return
	}
	s.edit = map[string]struct{}{}
	if s.set != nil {
		for _, n := range s.set.names {
			s.edit[n] = struct{}{}
		}
		s.set = nil
	}
}

// rest turns the names into a shared set.
func (s *subscription) rest(i *Interner) {
	if s.edit == nil {
		return
	}
	s.set = nil
	if len(s.edit) > 0 {
		s.set = i.intern(slices.Sorted(maps.Keys(s.edit)))
	}
	s.edit = nil
}
