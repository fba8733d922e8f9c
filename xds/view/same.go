package view

import (
	"reflect"
	"unsafe"

	"github.com/fairlead/fairlead/registry/mesh"
)

// same compares two values in all their fields, whatever there are: a field that is
// added is compared without anybody's thought. What they point to is the same if it is
// one object, for objects do not change; but origins, which move, are compared by where
// they are. The hash and the origins of a part are not compared.
func same[T any](a, b *T) bool {
	return identical(a, b) || sameValues(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
}

// identical reports whether two values are one, or copies of one: to see that costs
// next to nothing. Equal values need not be.
func identical[T any](a, b *T) bool {
	bytes := func(v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) } //nolint:gosec // read only, within the value
	return a == b || string(bytes(a)) == string(bytes(b))
}

func sameValues(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Struct:
		if a.Type() == reflect.TypeFor[base]() {
			return true
		}
		for i := range a.NumField() {
			if !sameValues(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Pointer:
		return a.Pointer() == b.Pointer() ||
			a.Type() == reflect.TypeFor[*mesh.Origin]() && !a.IsNil() && !b.IsNil() && sameValues(a.Elem(), b.Elem())
	case reflect.Slice:
		if a.Len() != b.Len() || a.Pointer() == b.Pointer() {
			return a.Len() == b.Len()
		}
		for i := range a.Len() {
			if !sameValues(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		return sameMaps(a, b)
	default:
		return a.Equal(b)
	}
}

func sameMaps(a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.Pointer() == b.Pointer() {
		return a.Len() == b.Len()
	}
	for i := a.MapRange(); i.Next(); {
		if v := b.MapIndex(i.Key()); !v.IsValid() || !sameValues(i.Value(), v) {
			return false
		}
	}
	return true
}
