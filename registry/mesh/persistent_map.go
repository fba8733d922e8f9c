package mesh

import (
	"hash/maphash"
	"maps"
)

// persistentMap is an immutable map. A change makes a new map, which shares all buckets but
// those of the changed keys. The zero value is empty.
type persistentMap[K comparable, V any] struct {
	seed    maphash.Seed
	buckets []map[K]V // a power of two of them, or none
	size    int
}

// perBucket is the number of entries in a bucket at which there are more buckets: few
// enough to copy for one change, and enough to be worth a map.
const perBucket = 32

func (m *persistentMap[K, V]) get(k K) V {
	if len(m.buckets) == 0 {
		var zero V
		return zero
	}
	return m.buckets[m.bucketOf(k)][k]
}

func (m *persistentMap[K, V]) bucketOf(k K) int {
	return int(maphash.Comparable(m.seed, k) & uint64(len(m.buckets)-1))
}

// all yields every entry, in no particular order.
func (m *persistentMap[K, V]) all(yield func(K, V) bool) {
	for _, s := range m.buckets {
		for k, v := range s {
			if !yield(k, v) {
				return
			}
		}
	}
}

// edit returns an editor for a copy; the map itself does not change.
func (m *persistentMap[K, V]) edit() *mapEditor[K, V] {
	next := &mapEditor[K, V]{persistentMap: *m}
	if len(m.buckets) == 0 {
		next.resize(1)
		return next
	}
	next.buckets = append([]map[K]V(nil), m.buckets...)
	next.own = make([]bool, len(m.buckets))
	return next
}

// mapEditor is a map that is being made. Only its owner has access to it.
type mapEditor[K comparable, V any] struct {
	persistentMap[K, V]
	own []bool // the buckets that are not shared
}

// resize makes all buckets again, for n entries.
func (m *mapEditor[K, V]) resize(n int) {
	count := 1
	for count*perBucket < n {
		count *= 2
	}
	old := m.persistentMap
	m.persistentMap = persistentMap[K, V]{seed: maphash.MakeSeed(), buckets: make([]map[K]V, count)}
	m.own = make([]bool, count)
	for k, v := range old.all {
		m.put(k, v)
	}
}

// bucket is the bucket of k, for writing.
func (m *mapEditor[K, V]) bucket(k K) map[K]V {
	i := m.bucketOf(k)
	if !m.own[i] {
		m.own[i] = true
		if m.buckets[i] = maps.Clone(m.buckets[i]); m.buckets[i] == nil {
			m.buckets[i] = map[K]V{}
		}
	}
	return m.buckets[i]
}

func (m *mapEditor[K, V]) put(k K, v V) {
	s := m.bucket(k)
	before := len(s)
	s[k] = v
	if m.size += len(s) - before; m.size > 2*perBucket*len(m.own) {
		m.resize(2 * m.size)
	}
}

func (m *mapEditor[K, V]) delete(k K) {
	if _, there := m.buckets[m.bucketOf(k)][k]; there {
		delete(m.bucket(k), k)
		m.size--
	}
}
