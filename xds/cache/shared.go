package cache

import (
	"runtime"
	"sync"
	"weak"
)

// shared finds values by their keys for as long as somebody holds them, so that
// equal work is done once and nothing is kept that nobody uses.
type shared[K comparable, V any] struct {
	mu sync.Mutex // guards of
	of map[K]weak.Pointer[V]
}

// get finds the value of a key, or makes a zero one.
func (s *shared[K, V]) get(k K) *V {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.of[k].Value(); v != nil {
		return v
	}
	if s.of == nil {
		s.of = map[K]weak.Pointer[V]{}
	}
	v := new(V)
	s.of[k] = weak.Make(v)
	runtime.AddCleanup(v, s.forget, k)
	return v
}

// forget drops a key whose value has gone; another may have come in its place.
func (s *shared[K, V]) forget(k K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.of[k]; ok && p.Value() == nil {
		delete(s.of, k)
	}
}

func (s *shared[K, V]) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.of)
}
