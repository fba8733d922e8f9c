package view

import (
	"reflect"
	"unsafe"

	"github.com/fairlead/fairlead/registry/mesh"
)

// shallowEqual compares all fields of two values, so a field that is added later is
// compared too. Pointers are equal if they point to the same object, because objects are
// immutable. Origins are compared by position, because they move without a change of
// content. The hash and the origins of a part are not compared.
func shallowEqual[T any](a, b *T) bool {
	return bitwiseEqual(a, b) || shallowEqualValues(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
}

// bitwiseEqual reports whether two values have the same memory representation. It is a
// cheap check before shallowEqual: equal values need not be bitwise equal.
func bitwiseEqual[T any](a, b *T) bool {
	bytes := func(v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) } //nolint:gosec // read only, within the value
	return a == b || string(bytes(a)) == string(bytes(b))
}

func shallowEqualValues(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Struct:
		if a.Type() == reflect.TypeFor[base]() {
			return true
		}
		for i := range a.NumField() {
			if !shallowEqualValues(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Pointer:
		return a.Pointer() == b.Pointer() ||
			a.Type() == reflect.TypeFor[*mesh.Origin]() && !a.IsNil() && !b.IsNil() && shallowEqualValues(a.Elem(), b.Elem())
	case reflect.Slice:
		if a.Len() != b.Len() || a.Pointer() == b.Pointer() {
			return a.Len() == b.Len()
		}
		for i := range a.Len() {
			if !shallowEqualValues(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		return shallowEqualMaps(a, b)
	default:
		return a.Equal(b)
	}
}

func shallowEqualMaps(a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.Pointer() == b.Pointer() {
		return a.Len() == b.Len()
	}
	for i := a.MapRange(); i.Next(); {
		if v := b.MapIndex(i.Key()); !v.IsValid() || !shallowEqualValues(i.Value(), v) {
			return false
		}
	}
	return true
}
