package mesh

import (
	"crypto/sha256"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// TestFingerprintCoversEveryField: of each kind of object in a snapshot, another value in
// any one field gives another fingerprint. Fingerprints tell tests that nobody wrote to a
// snapshot, so a field that is left out is one that anybody may write to.
func TestFingerprintCoversEveryField(t *testing.T) {
	t.Parallel()
	lists := reflect.TypeFor[Snapshot]()
	tried := 0
	for i := range lists.NumField() {
		field := lists.Field(i)
		if !field.IsExported() || field.Type.Kind() != reflect.Slice || !field.Type.Elem().Implements(reflect.TypeFor[interface{ meta() *Meta }]()) {
			continue
		}
		of := field.Type.Elem().Elem()
		tried++
		fingerprint := func(x reflect.Value) string {
			s := &Snapshot{}
			list := reflect.ValueOf(s).Elem().Field(i)
			list.Set(reflect.Append(list, x))
			p := &printer{h: sha256.New()}
			switch x := x.Interface().(type) {
			case *Service:
				p.service(x)
			case *Workload:
				p.workload(x)
			default:
				for _, k := range kinds {
					k.fingerprint(p, s)
				}
			}
			return string(p.h.Sum(nil))
		}
		object := func() reflect.Value {
			x := reflect.New(of)
			for j := range of.NumField() { // a message is never nil
				if m := x.Elem().Field(j); m.Type().Implements(reflect.TypeFor[proto.Message]()) {
					m.Set(reflect.New(m.Type().Elem()))
				}
			}
			return x
		}
		before := fingerprint(object())
		eachField(of, nil, func(path []int, name string) {
			x := object()
			fillField(t, x.Elem().FieldByIndex(path))
			if fingerprint(x) == before {
				t.Errorf("%s: another %s has the same fingerprint", of.Name(), name)
			}
		})
	}
	if tried != len(kinds) {
		t.Errorf("snapshots have lists of %d kinds of %d", tried, len(kinds))
	}
}

// eachField calls f for the exported fields of a struct, and those of structs in it.
func eachField(of reflect.Type, at []int, f func(path []int, name string)) {
	for i := range of.NumField() {
		field, path := of.Field(i), slices.Concat(at, []int{i})
		switch {
		case !field.IsExported():
		case field.Type.Kind() == reflect.Struct && field.Type != reflect.TypeFor[time.Time]():
			eachField(field.Type, path, func(p []int, name string) { f(p, field.Name+"."+name) })
		default:
			f(path, field.Name)
		}
	}
}

// fillField sets a field to something else than its zero value.
func fillField(t *testing.T, v reflect.Value) {
	t.Helper()
	switch x := v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(1, 0)))
		return
	case proto.Message:
		m := x.ProtoReflect().New()
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			if d := fields.Get(i); d.IsList() && d.Kind() == protoreflect.StringKind {
				m.Mutable(d).List().Append(protoreflect.ValueOfString("x"))
			} else if !d.IsList() && !d.IsMap() && d.Kind() == protoreflect.MessageKind {
				m.Mutable(d)
			} else if d.IsList() && d.Kind() == protoreflect.MessageKind {
				m.Mutable(d).List().AppendMutable()
			}
		}
		v.Set(reflect.ValueOf(m.Interface()))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Array:
		fillField(t, v.Index(0))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillField(t, v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillField(t, key)
		fillField(t, value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		fillField(t, v.Field(0))
	default:
		t.Fatalf("no value for %s", v.Type())
	}
}

// TestTextsDoNotLookAlike writes lists of strings that differ only in where one ends.
func TestTextsDoNotLookAlike(t *testing.T) {
	t.Parallel()
	seen := map[Hash][][]string{}
	for _, lists := range [][][]string{{{}}, {{""}}, {{"", ""}}, {{""}, {""}}, {{"a", "b"}}, {{"ab"}}, {{"a"}, {"b"}}, {{"ab", ""}}, {{"", "ab"}}, {{"a", "", "b"}}, {{"a", "\x01b"}}, {{"a\x01", "b"}}} {
		p := &printer{h: sha256.New()}
		for _, list := range lists {
			p.text(list...)
		}
		sum := Hash(p.h.Sum(nil))
		if was, ok := seen[sum]; ok {
			t.Errorf("%q looks like %q", lists, was)
		}
		seen[sum] = lists
	}
}
