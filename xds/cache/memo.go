package cache

import (
	"sync"

	"github.com/fairlead/fairlead/internal/weakmap"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// input is everything that a value is made from, in exported fields. Values are found by
// the hash of all of it, so nothing that build reads can be missing in a key. The context c
// helps to build the value, but is not part of the result.
type input[C, V any] interface{ build(c C) V }

// memo finds the value that was built from an equal input and is still in use. If there is
// none, it builds it once, and others wait.
type memo[C, V any] struct {
	made weakmap.Map[mesh.Hash, onceValue[V]]
}

// onceValue is a value that one caller builds while others wait.
type onceValue[V any] struct {
	value V
	sync.Once
	built bool // false if the builder panicked
}

func (s *memo[C, V]) get(c C, in input[C, V]) *V {
	h := view.ContentHash(in)
	v := s.made.Get(h)
	if v == nil {
		v, _ = s.made.Keep(h, new(onceValue[V]))
	}
	v.Do(func() {
		v.value = in.build(c)
		v.built = true
	})
	if !v.built { // Envoy would remove the resources of a missing part
		panic("a part of it could not be built for another proxy")
	}
	return &v.value // keeps all of v alive
}
