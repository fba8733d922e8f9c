package stream

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead/fairlead/internal/weakmap"
)

// wildcardName subscribes to everything of a type.
const wildcardName = "*"

// Interner shares equal sets of names between streams: a thousand streams with the same
// subscription hold one set. The zero value is ready for use, from any number of
// goroutines.
type Interner struct {
	once sync.Once // before seed is read
	seed maphash.Seed
	sets weakmap.Map[uint64, nameSet]
}

// nameSet is an immutable, sorted set.
type nameSet struct {
	names []string
	bytes int // of the names
}

// size estimates how many bytes the set takes.
func (n *nameSet) size() int {
	if n == nil {
		return 0
	}
	return n.bytes + bytesOfHeader*len(n.names)
}

// bytesOfHeader is what a string takes beside its text.
const bytesOfHeader = 16

func (n *nameSet) has(name string) bool {
	if n == nil {
		return false
	}
	_, ok := slices.BinarySearch(n.names, name)
	return ok
}

func (n *nameSet) all() []string {
	if n == nil {
		return nil
	}
	return n.names
}

// intern returns the set of some names; nil if there are none. The names must be sorted
// and unique.
func (i *Interner) intern(names []string) *nameSet {
	if len(names) == 0 {
		return nil
	}
	i.once.Do(func() { i.seed = maphash.MakeSeed() })
	var h maphash.Hash
	h.SetSeed(i.seed)
	for _, n := range names {
		_, _ = h.WriteString(n) // a hash never fails
		_ = h.WriteByte(0)
	}
	key := h.Sum64()
	if have := i.sets.Get(key); have != nil && slices.Equal(have.names, names) {
		return have
	}
	set := &nameSet{names: cloneNames(names)}
	for _, n := range names {
		set.bytes += len(n)
	}
	if one, _ := i.sets.Keep(key, set); one == set || slices.Equal(one.names, names) {
		return one
	}
	return set // hash collision
}

// cloneNames copies names and their text: each may be a part of something larger.
func cloneNames(names []string) []string {
	text := strings.Join(names, "")
	out := make([]string, len(names))
	for i, n := range names {
		out[i], text = text[:len(n)], text[len(n):]
	}
	return out
}

// with is a set with more names, which must be sorted and unique.
func (i *Interner) with(n *nameSet, names []string) *nameSet {
	if n == nil {
		return i.intern(names)
	}
	out := make([]string, 0, len(n.names)+len(names))
	old := n.names
	for _, name := range names {
		for len(old) > 0 && old[0] < name {
			out, old = append(out, old[0]), old[1:]
		}
		if len(old) > 0 && old[0] == name {
			old = old[1:]
		}
		out = append(out, name)
	}
	if out = append(out, old...); len(out) == len(n.names) {
		return n
	}
	return i.intern(out)
}

// without is a set without some names, which must be sorted.
func (i *Interner) without(n *nameSet, names []string) *nameSet {
	if n == nil {
		return nil
	}
	out := make([]string, 0, len(n.names))
	for _, name := range n.names {
		if _, ok := slices.BinarySearch(names, name); !ok {
			out = append(out, name)
		}
	}
	if len(out) == len(n.names) {
		return n
	}
	return i.intern(out)
}

// sortedNames are the names of a request, sorted, unique, and without the wildcard; all
// says whether that was among them.
func sortedNames(list []string) (names []string, all bool) {
	names = list
	if !slices.IsSorted(names) {
		names = slices.Sorted(slices.Values(names))
	}
	names = slices.Compact(slices.Clip(names))
	if at, ok := slices.BinarySearch(names, wildcardName); ok {
		return slices.Concat(names[:at], names[at+1:]), true
	}
	return names, false
}

// subscription is what a peer subscribes to of one type.
type subscription struct {
	wildcard bool
	set      *nameSet // names that are subscribed to by name
}

func (s subscription) has(name string) bool { return s.wildcard || s.set.has(name) }

func (s subscription) len() int { return len(s.set.all()) }

// normalized is the subscription without names that the wildcard covers.
func (s subscription) normalized() subscription {
	if s.wildcard {
		return subscription{wildcard: true}
	}
	return s
}
