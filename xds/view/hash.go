package view

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/mesh"
)

// base is what every part has: the hash of its content, and its origins. The fields are not
// exported, so they are not part of the content.
type base struct {
	hash    mesh.Hash
	origins []*mesh.Origin
}

func (b *base) seal(h mesh.Hash) { b.hash = h }

// Hash covers all content of the part, its kind included, but no origins.
func (b *base) Hash() mesh.Hash { return b.hash }

// Origins are the objects that the part was made from; sorted.
func (b *base) Origins() []*mesh.Origin { return b.origins }

// hashed is a value that has a hash of its own, which stands for its content.
type hashed interface{ Hash() mesh.Hash }

// ContentHash covers the type of v, which is a struct, and all its exported fields. Parts
// in it are covered by their own hash.
func ContentHash(v any) mesh.Hash { return contentHash(reflect.TypeOf(v).Name(), v) }

// contentHash covers all exported fields of v, so a field that is added to a part later is
// in its hash too. Messages are encoded deterministically, and parts in parts by their
// hash. v is a struct, or a pointer to one.
func contentHash(kind string, v any) mesh.Hash {
	e, _ := encoders.Get().(*encoder)
	if e == nil {
		e = &encoder{b: make([]byte, 0, 1024)}
	}
	defer func() {
		e.b = e.b[:0]
		encoders.Put(e)
	}()
	e.text(kind)
	rv := reflect.ValueOf(v)
	if rv.Kind() == reflect.Pointer {
		rv = rv.Elem()
	}
	e.value(rv)
	return sha256.Sum256(e.b)
}

// hashLayer covers a name, and the hashes of all parts, in order.
func hashLayer(name string, parts []Part) mesh.Hash {
	d := sha256.New()
	title := sha256.Sum256([]byte(name))
	d.Write(title[:])
	var block [32 * sha256.Size]byte
	b := block[:0]
	for _, p := range parts {
		h := p.Hash()
		if b = append(b, h[:]...); len(b) == len(block) {
			d.Write(b)
			b = block[:0]
		}
	}
	d.Write(b)
	var out mesh.Hash
	d.Sum(out[:0])
	return out
}

func hashLayers(layers []*Layer) mesh.Hash {
	b := make([]byte, 0, len(layers)*sha256.Size)
	for _, l := range layers {
		b = append(b, l.hash[:]...)
	}
	return sha256.Sum256(b)
}

type encoder struct{ b []byte }

// encoders are unused encoders, kept for their buffers.
//
//nolint:gochecknoglobals // scratch memory
var encoders sync.Pool

func (e *encoder) number(tag byte, n uint64) {
	e.b = binary.BigEndian.AppendUint64(append(e.b, tag), n)
}

func (e *encoder) text(s string) {
	e.number('s', uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) flag(b bool) {
	n := uint64(0)
	if b {
		n = 1
	}
	e.number('b', n)
}

func (e *encoder) message(m proto.Message) {
	e.number('m', 0)
	at := len(e.b)
	var err error
	e.b, err = proto.MarshalOptions{Deterministic: true}.MarshalAppend(e.b, m)
	if err != nil { // only for a string that is not UTF-8, which decoding has rejected
		panic("view: marshaling a message: " + err.Error())
	}
	binary.BigEndian.PutUint64(e.b[at-8:], uint64(len(e.b)-at))
}

func (e *encoder) value(v reflect.Value) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			e.number('0', 0)
			return
		}
		if e.known(v) {
			return
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.String:
		e.text(v.String())
	case reflect.Bool:
		e.flag(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.number('i', uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		e.number('u', v.Uint())
	case reflect.Float64:
		e.number('r', math.Float64bits(v.Float()))
	case reflect.Slice, reflect.Array:
		e.number('l', uint64(v.Len()))
		for i := range v.Len() {
			e.value(v.Index(i))
		}
	case reflect.Map:
		e.entries(v)
	case reflect.Interface:
		if v.IsNil() {
			e.number('0', 0)
			return
		}
		e.value(v.Elem())
	case reflect.Struct:
		e.fields(v)
	default:
		panic("view: a part cannot have a field of " + v.Type().String())
	}
}

// known writes messages and parts, which have an encoding of their own.
func (e *encoder) known(v reflect.Value) bool {
	switch x := v.Interface().(type) {
	case hashed:
		h := x.Hash()
		e.number('h', 0)
		e.b = append(e.b, h[:]...)
		return true
	case proto.Message:
		e.message(x)
		return true
	default:
		return false
	}
}

func (e *encoder) entries(v reflect.Value) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int {
		if a.CanUint() {
			return cmp.Compare(a.Uint(), b.Uint())
		}
		return cmp.Compare(a.String(), b.String())
	})
	e.number('d', uint64(len(keys)))
	for _, k := range keys {
		e.value(k)
		e.value(v.MapIndex(k))
	}
}

func (e *encoder) fields(v reflect.Value) {
	t := v.Type()
	for i := range t.NumField() {
		if t.Field(i).IsExported() {
			e.number('f', uint64(i))
			e.value(v.Field(i))
		}
	}
}

// originsOf sorts origins and removes duplicates.
func originsOf(list ...*mesh.Origin) []*mesh.Origin {
	out := make([]*mesh.Origin, 0, len(list))
	for _, o := range list {
		if o != nil {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *mesh.Origin) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Path, b.Path),
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.CompactFunc(out, func(a, b *mesh.Origin) bool { return *a == *b })
}
