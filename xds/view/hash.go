package view

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/mesh"
)

// base is what every part has: the hash of its content, and where that came
// from. Its fields are unexported, so that they never enter the content.
type base struct {
	hash    mesh.Hash
	origins []*mesh.Origin
}

// Hash covers all content of the part, its kind included, but no origins.
func (b *base) Hash() mesh.Hash { return b.hash }

// Origins are the objects that the part was made from; sorted.
func (b *base) Origins() []*mesh.Origin { return b.origins }

// hashed is a value that knows its hash, which stands for its content.
type hashed interface{ Hash() mesh.Hash }

// contentHash hashes everything that is exported in v, whatever there is: a
// field that is added to a part is in its hash without anybody's thought.
// Messages are encoded deterministically; parts inside parts by their hash.
func contentHash(kind string, v any) mesh.Hash {
	e := encoder{h: sha256.New()}
	e.text(kind)
	e.value(reflect.ValueOf(v))
	var out mesh.Hash
	e.h.Sum(out[:0])
	return out
}

type encoder struct {
	h   hash.Hash
	buf [9]byte
}

func (e *encoder) number(tag byte, n uint64) {
	e.buf[0] = tag
	binary.BigEndian.PutUint64(e.buf[1:], n)
	e.h.Write(e.buf[:])
}

func (e *encoder) text(s string) {
	e.number('s', uint64(len(s)))
	e.h.Write([]byte(s))
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
		n := uint64(0)
		if v.Bool() {
			n = 1
		}
		e.number('b', n)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.number('i', uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		e.number('u', v.Uint())
	case reflect.Slice, reflect.Array:
		e.number('l', uint64(v.Len()))
		for i := range v.Len() {
			e.value(v.Index(i))
		}
	case reflect.Map:
		e.entries(v)
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
		e.h.Write(h[:])
		return true
	case proto.Message:
		body, err := proto.MarshalOptions{Deterministic: true}.Marshal(x)
		if err != nil { // only a string that is not UTF-8 can do this, and decoding has refused it
			panic("view: marshaling a message: " + err.Error())
		}
		e.number('m', uint64(len(body)))
		e.h.Write(body)
		return true
	default:
		return false
	}
}

func (e *encoder) entries(v reflect.Value) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return cmp.Compare(a.String(), b.String()) })
	e.number('d', uint64(len(keys)))
	for _, k := range keys {
		e.text(k.String())
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

// originsOf sorts origins and drops what is there twice.
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
