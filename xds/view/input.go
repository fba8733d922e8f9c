package view

import (
	"unsafe"

	"github.com/fairlead/fairlead/internal/weakmap"
	"github.com/fairlead/fairlead/registry/mesh"
)

// input is everything that something is made from: what is the same for all that is
// made with C, and the input's own content. So it is the key by which others find
// what was made, and nothing that was read can be missing in it. What it refers to
// never changes (see TestInputsAreValues).
type input[C, V any] interface {
	comparable
	build(c C) *V
}

// memo finds what somebody else has from an equal input, and has it built where
// nobody does.
type memo[I input[C, V], C, V any] struct{ weakmap.Map[I, V] }

func (m *memo[I, C, V]) of(c C, in I) *V {
	if have := m.Get(in); have != nil {
		return have
	}
	v, _ := m.Keep(in, in.build(c))
	return v
}

// digested is an input that holds lists, maps or messages: it is known by the hash of
// all that is exported in it. Its origins are not, and count for nothing.
type digested[C, V any] interface{ build(c C) *V }

// digests is a memo of such inputs.
type digests[I digested[C, V], C, V any] struct {
	weakmap.Map[mesh.Hash, V]
	_ [0]I
}

func (m *digests[I, C, V]) of(c C, in I) *V {
	h := contentHash("input", in)
	if have := m.Get(h); have != nil {
		return have
	}
	v, _ := m.Keep(h, in.build(c))
	return v
}

// content is one copy of what is equal, so that a pointer to it can be a part of an
// input. T has only exported fields.
type content[T any] struct {
	weakmap.Map[mesh.Hash, T]
	_ [0]T
}

func (c *content[T]) of(v T) *T {
	h := contentHash("content", &v)
	if have := c.Get(h); have != nil {
		return have
	}
	one, _ := c.Keep(h, &v)
	return one
}

// hints finds what most likely is the same as something that was made from the same
// input, where to build it costs less than to hash it. A hint says where to look; all
// fields say whether it is.
type hints[H comparable, V any] struct{ weakmap.Map[H, V] }

func (m *hints[H, V]) of(hint H, v *V, finish func() *V) *V {
	if have := m.Get(hint); have != nil && same(have, v) {
		return have
	}
	v = finish()
	m.Keep(hint, v)
	return v
}

// list is a slice that nobody writes to as a part of an input: two are equal if they
// are one.
type list[T any] struct {
	first *T
	n     int
}

func listOf[T any](items []T) list[T] {
	if len(items) == 0 {
		return list[T]{}
	}
	return list[T]{&items[0], len(items)}
}

func (l list[T]) items() []T { return unsafe.Slice(l.first, l.n) } //nolint:gosec // what listOf took apart
