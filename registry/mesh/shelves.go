package mesh

import (
	"hash/maphash"
	"maps"
)

// shelves is a map that is never written to: a change makes another one, which
// shares all but the few entries that lie on the same shelf. Its zero value is
// empty.
type shelves[K comparable, V any] struct {
	seed    maphash.Seed
	shelves []map[K]V // a power of two of them, or none
	size    int
}

// perShelf is how many entries lie on a shelf before there are more shelves: few
// enough to be copied for one change, and enough to be worth a map.
const perShelf = 32

func (m *shelves[K, V]) get(k K) V {
	if len(m.shelves) == 0 {
		var zero V
		return zero
	}
	return m.shelves[m.at(k)][k]
}

func (m *shelves[K, V]) at(k K) int {
	return int(maphash.Comparable(m.seed, k) & uint64(len(m.shelves)-1))
}

// all yields every entry, in no order.
func (m *shelves[K, V]) all(yield func(K, V) bool) {
	for _, s := range m.shelves {
		for k, v := range s {
			if !yield(k, v) {
				return
			}
		}
	}
}

// change returns a copy to write to; what it is a copy of stays as it is.
func (m *shelves[K, V]) change() *shelving[K, V] {
	next := &shelving[K, V]{shelves: *m}
	if len(m.shelves) == 0 {
		next.room(1)
		return next
	}
	next.shelves.shelves = append([]map[K]V(nil), m.shelves...)
	next.own = make([]bool, len(m.shelves))
	return next
}

// shelving is a map that is being made; its owner alone knows it.
type shelving[K comparable, V any] struct {
	shelves[K, V]
	own []bool // the shelves that nobody else has
}

// room makes all shelves anew, for so many entries.
func (m *shelving[K, V]) room(n int) {
	count := 1
	for count*perShelf < n {
		count *= 2
	}
	old := m.shelves
	m.shelves = shelves[K, V]{seed: maphash.MakeSeed(), shelves: make([]map[K]V, count)}
	m.own = make([]bool, count)
	for k, v := range old.all {
		m.put(k, v)
	}
}

// shelf is the one that k lies on, to be written to.
func (m *shelving[K, V]) shelf(k K) map[K]V {
	i := m.at(k)
	if !m.own[i] {
		m.own[i] = true
		if m.shelves.shelves[i] = maps.Clone(m.shelves.shelves[i]); m.shelves.shelves[i] == nil {
			m.shelves.shelves[i] = map[K]V{}
		}
	}
	return m.shelves.shelves[i]
}

func (m *shelving[K, V]) put(k K, v V) {
	s := m.shelf(k)
	before := len(s)
	s[k] = v
	if m.size += len(s) - before; m.size > 2*perShelf*len(m.own) {
		m.room(2 * m.size)
	}
}

func (m *shelving[K, V]) drop(k K) {
	if _, there := m.shelves.shelves[m.at(k)][k]; there {
		delete(m.shelf(k), k)
		m.size--
	}
}
