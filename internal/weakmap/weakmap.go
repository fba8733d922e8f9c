// Package weakmap finds values by their keys for as long as somebody holds them, so
// that equal work is done once and nothing is kept that nobody uses.
package weakmap

import (
	"sync"
	"weak"
)

// Map finds what somebody else holds, and forgets it when nobody does. The keys of
// what is forgotten may stay for a while: they should refer to nothing large. The zero
// Map is ready for use, from any number of goroutines.
type Map[K comparable, V any] struct {
	mu    sync.Mutex // guards all following fields
	m     map[K]weak.Pointer[V]
	limit int // entries at which those of the dead are swept out
}

// sweepAt is the smallest number of entries that is worth a sweep.
const sweepAt = 256

// Get gives the value of a key, or nil.
func (w *Map[K, V]) Get(k K) *V {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.m[k].Value()
}

// Keep puts a value in and returns it, or the one that is there already. It
// reports whether it is the new one.
func (w *Map[K, V]) Keep(k K, v *V) (*V, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if have := w.m[k].Value(); have != nil {
		return have, false
	}
	if w.m == nil {
		w.m, w.limit = map[K]weak.Pointer[V]{}, sweepAt
	}
	w.m[k] = weak.Make(v)
	if len(w.m) > w.limit {
		for k, p := range w.m {
			if p.Value() == nil {
				delete(w.m, k)
			}
		}
		w.limit = max(sweepAt, 2*len(w.m))
	}
	return v, true
}

// All are the values that are alive.
func (w *Map[K, V]) All() []*V {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*V
	for _, p := range w.m {
		if v := p.Value(); v != nil {
			out = append(out, v)
		}
	}
	return out
}
