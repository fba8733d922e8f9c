package meshgen

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Values are the possible values of types that reflection cannot know, such as string
// enumerations.
type Values map[reflect.Type][]any

// Fill sets every exported field of a struct to a random value.
func (v Values) Fill(rng *rand.Rand, x any) {
	f := filler{rng: rng, values: v}
	f.fill(reflect.ValueOf(x).Elem(), "")
}

// Mutate sets one exported field of a struct to another random value.
func (v Values) Mutate(rng *rand.Rand, x any) {
	f := filler{rng: rng, values: v}
	f.mutate(reflect.ValueOf(x))
}

// filler makes random values of Go types.
type filler struct {
	rng    *rand.Rand
	values Values
}

// opaque are the types that are not filled: keys, hashes, origins, and what no source says.
func opaque(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[mesh.Key](), reflect.TypeFor[mesh.Hash](), reflect.TypeFor[*mesh.Origin](), reflect.TypeFor[mesh.AllocatedAddresses]():
		return true
	default:
		return t.Implements(reflect.TypeFor[proto.Message]())
	}
}

func (f *filler) fill(v reflect.Value, name string) {
	t := v.Type()
	if list := f.values[t]; len(list) > 0 {
		v.Set(reflect.ValueOf(pick(f.rng, list)))
		return
	}
	if t == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(int64(f.rng.IntN(3)), 0).UTC()))
		return
	}
	if opaque(t) {
		return
	}
	switch t.Kind() { //nolint:exhaustive // no struct has others
	case reflect.Bool:
		v.SetBool(f.rng.IntN(2) == 0)
	case reflect.String:
		list := wordsFor(name)
		if list == nil {
			list = []string{"", "a", "b"}
		}
		v.SetString(pick(f.rng, list))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(f.rng.IntN(3)))
	case reflect.Uint8: // an enumeration, up to the value that has no name
		v.SetUint(uint64(f.rng.IntN(namedValues(t))))
	case reflect.Uint, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(pick(f.rng, numbersFor(name))))
	case reflect.Slice:
		f.slice(v, name)
	case reflect.Map:
		f.entries(v, name)
	case reflect.Struct:
		for i := range t.NumField() {
			if t.Field(i).IsExported() {
				f.fill(v.Field(i), t.Field(i).Name)
			}
		}
	}
}

func namedValues(t reflect.Type) int {
	for n := range 16 {
		x := reflect.New(t).Elem()
		x.SetUint(uint64(n))
		if s, ok := reflect.TypeAssert[fmt.Stringer](x); !ok {
			return 3
		} else if s.String() == "unknown" && n > 0 {
			return n
		}
	}
	return 3
}

func (f *filler) slice(v reflect.Value, name string) {
	out := reflect.MakeSlice(v.Type(), 0, 2)
	if v.Type().Elem().Kind() == reflect.Pointer {
		for i := range v.Len() { // one of them, changed
			out = reflect.Append(out, v.Index(i))
		}
		if n := out.Len(); n > 0 {
			i := f.rng.IntN(n)
			x := reflect.New(out.Index(i).Type().Elem())
			x.Elem().Set(out.Index(i).Elem())
			f.mutate(x)
			out.Index(i).Set(x)
		}
		v.Set(out)
		return
	}
	if v.Type().Elem().Kind() == reflect.Struct && v.Len() > 0 && f.rng.IntN(3) > 0 { // one field of one of them
		out = reflect.AppendSlice(out, v)
		x := out.Index(f.rng.IntN(out.Len()))
		i := f.rng.IntN(x.NumField())
		f.fill(x.Field(i), x.Type().Field(i).Name)
		v.Set(out)
		return
	}
	for range f.rng.IntN(3) {
		x := reflect.New(v.Type().Elem()).Elem()
		f.fill(x, name)
		out = reflect.Append(out, x)
	}
	if out.Len() == 0 {
		out = reflect.Zero(v.Type())
	}
	if list, ok := reflect.TypeAssert[[]string](out); ok {
		slices.Sort(list)
		out = reflect.ValueOf(slices.Compact(list)).Convert(v.Type())
	}
	v.Set(out)
}

func (f *filler) entries(v reflect.Value, name string) {
	n := f.rng.IntN(3)
	if n == 0 {
		v.SetZero()
		return
	}
	out := reflect.MakeMap(v.Type())
	for range n {
		key, x := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		if key.Kind() == reflect.String {
			list := labelKeys()
			switch {
			case x.Kind() != reflect.String:
				list = []string{"http", "tcp", "v1"}
			case f.rng.IntN(3) == 0:
				list = []string{mesh.LabelConsulService, mesh.AnnotationHost}
			}
			key.SetString(pick(f.rng, list))
		} else {
			f.fill(key, name)
		}
		if f.fill(x, name); x.Kind() == reflect.String && key.Kind() == reflect.String {
			x.SetString(pick(f.rng, labelValues(key.String())))
		}
		out.SetMapIndex(key, x)
	}
	v.Set(out)
}

// mutate sets one field of a struct to another value, and updates its hash. x is a pointer
// to a copy.
func (f *filler) mutate(x reflect.Value) {
	v := x.Elem()
	var fields []int
	for i := range v.NumField() {
		if sf := v.Type().Field(i); sf.IsExported() && !opaque(sf.Type) {
			fields = append(fields, i)
		}
	}
	i := pick(f.rng, fields)
	at, name := v.Field(i), v.Type().Field(i).Name
	if at.Type() == reflect.TypeFor[mesh.Meta]() {
		j := f.rng.IntN(at.NumField())
		at, name = at.Field(j), at.Type().Field(j).Name
	}
	was := reflect.New(at.Type()).Elem()
	was.Set(at)
	for range 8 {
		if f.fill(at, name); !reflect.DeepEqual(at.Interface(), was.Interface()) {
			break
		}
	}
	rehash(x)
}

// rehash sets the hash of an object that was changed.
func rehash(x reflect.Value) {
	meta := x.Elem().FieldByName("Meta")
	if !meta.IsValid() {
		return
	}
	origin := meta.FieldByName("Origin")
	kept := reflect.New(origin.Type()).Elem()
	kept.Set(origin)
	origin.SetZero()
	meta.FieldByName("Hash").SetZero()
	content := reflect.New(x.Type().Elem())
	content.Elem().Set(x.Elem())
	if reason := content.Elem().FieldByName("HealthReason"); reason.IsValid() {
		reason.SetZero() // it is no part of the hash
	}
	text, err := json.Marshal(content.Interface())
	if err != nil {
		panic(err)
	}
	origin.Set(kept)
	meta.FieldByName("Hash").Set(reflect.ValueOf(mesh.Hash(sha256.Sum256(text))))
}
