package cache

import (
	"sync"

	"github.com/fairlead/fairlead/internal/weakmap"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// input is everything that a value is made from, in exported fields: it is found by the
// hash of all of it, and nothing that was read can be missing in a key. Besides the input
// its build gets c, by which it gets its work done: that is no part of what it makes.
type input[C, V any] interface{ build(c C) V }

// shared finds what somebody else has from an equal input, and has it built where nobody
// does, once: others wait.
type shared[C, V any] struct {
	made weakmap.Map[mesh.Hash, once[V]]
}

// once is a value that one builds and others wait for.
type once[V any] struct {
	value V
	sync.Once
	built bool // false where the builder met a fault
}

func (s *shared[C, V]) of(c C, in input[C, V]) *V {
	h := view.ContentHash(in)
	v := s.made.Get(h)
	if v == nil {
		v, _ = s.made.Keep(h, new(once[V]))
	}
	v.Do(func() {
		v.value = in.build(c)
		v.built = true
	})
	if !v.built { // without a part, what is made from it would be removed
		panic("a part of it met a fault when another proxy's view was built")
	}
	return &v.value // who holds it holds all of v
}
