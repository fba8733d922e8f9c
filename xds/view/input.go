package view

import (
	"unsafe"

	"github.com/fairlead/fairlead/internal/weakmap"
	"github.com/fairlead/fairlead/registry/mesh"
)

// input is the complete input of a cached value, without the context C that is the same for
// all values of the cache. The input is also the cache key, so nothing that build reads can
// be missing in the key. What an input refers to never changes (see
// TestCacheKeysAreImmutable).
type input[C, V any] interface {
	comparable
	build(c C) *V
}

// memo finds the value that was built from an equal input and is still in use. If there is
// none, it builds it.
type memo[I input[C, V], C, V any] struct{ weakmap.Map[I, V] }

func (m *memo[I, C, V]) get(c C, in I) *V {
	if have := m.Get(in); have != nil {
		return have
	}
	v, _ := m.Keep(in, in.build(c))
	return v
}

// hashedInput is an input that holds lists, maps or messages. Its key is the hash of all
// its exported fields. Its origins are not exported and do not count.
type hashedInput[C, V any] interface{ build(c C) *V }

// hashedMemo is a memo for hashed inputs.
type hashedMemo[I hashedInput[C, V], C, V any] struct {
	weakmap.Map[mesh.Hash, V]
	_ [0]I
}

func (m *hashedMemo[I, C, V]) get(c C, in I) *V {
	h := contentHash("input", in)
	if have := m.Get(h); have != nil {
		return have
	}
	v, _ := m.Keep(h, in.build(c))
	return v
}

// interned keeps one copy of equal values, so that a pointer to it can be part of an input.
// All fields of T are exported.
type interned[T any] struct {
	weakmap.Map[mesh.Hash, T]
	_ [0]T
}

func (c *interned[T]) intern(v T) *T {
	h := contentHash("content", &v)
	if have := c.Get(h); have != nil {
		return have
	}
	one, _ := c.Keep(h, &v)
	return one
}

// hints finds a value that is probably equal, where building a value is cheaper than
// hashing it. The hint says where to look; comparing all fields decides.
type hints[H comparable, V any] struct{ weakmap.Map[H, V] }

func (m *hints[H, V]) get(hint H, v *V, finish func() *V) *V {
	if have := m.Get(hint); have != nil && shallowEqual(have, v) {
		return have
	}
	v = finish()
	m.Keep(hint, v)
	return v
}

// sliceRef is a read-only slice as a part of an input. Two of them are equal if they are
// the same slice.
type sliceRef[T any] struct {
	first *T
	n     int
}

func sliceRefOf[T any](items []T) sliceRef[T] {
	if len(items) == 0 {
		return sliceRef[T]{}
	}
	return sliceRef[T]{&items[0], len(items)}
}

func (l sliceRef[T]) items() []T { return unsafe.Slice(l.first, l.n) } //nolint:gosec // the slice that sliceRefOf got
