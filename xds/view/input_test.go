package view

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/mesh"
)

// immutable are the types of this package that an input may refer to: they are never
// changed, but replaced when something in them differs.
func immutable() []reflect.Type {
	return []reflect.Type{
		reflect.TypeFor[rule](), reflect.TypeFor[namespaceAuthn](), reflect.TypeFor[serviceWorkloads](),
		reflect.TypeFor[Layer](), reflect.TypeFor[portSet](), reflect.TypeFor[labelSet](), reflect.TypeFor[addressSet](), reflect.TypeFor[Telemetry](),
		reflect.TypeFor[proxyHeaders](), reflect.TypeFor[gatewayPolicies](), reflect.TypeFor[portTargets](), reflect.TypeFor[proxyTopology](), reflect.TypeFor[networkTable](),
	}
}

// TestCacheKeysAreImmutable checks every cache: its key is the whole input of the value,
// and refers only to what does not change. It finds the caches by reflection.
func TestCacheKeysAreImmutable(t *testing.T) {
	t.Parallel()
	inputs, caches := 0, 0
	for _, holder := range []reflect.Type{reflect.TypeFor[internPool](), reflect.TypeFor[meshContext](), reflect.TypeFor[scopeState](), reflect.TypeFor[outboundView]()} {
		for f := range holder.Fields() {
			generic, _, _ := strings.Cut(f.Type.Name(), "[")
			if f.Type.Kind() != reflect.Struct || f.Anonymous || generic == f.Type.Name() {
				continue
			}
			caches++
			where := holder.Name() + "." + f.Name
			switch generic {
			case "memo":
				inputs++
				holdsValues(t, where, f.Type.Field(0).Type.Field(1).Type.Key())
			case "hashedMemo":
				inputs++
				isContent(t, where, f.Type.Field(1).Type.Elem())
			case "interned":
				isContent(t, where, f.Type.Field(1).Type.Elem())
			case "hints", "internedParts": // a hint is no key; what is known by the hash of its own content needs none
			case "Map":
				key := f.Type.Field(1).Type.Key()
				if key != reflect.TypeFor[mesh.Hash]() {
					t.Errorf("%s: what is found by %s is not known to be made from it alone: make it a memo", where, key)
				}
			default:
				t.Errorf("%s: nobody knows by what %s finds things", where, f.Type)
			}
		}
	}
	if inputs < 8 || caches < 16 {
		t.Errorf("%d inputs and %d caches are too few: the test does not find them any more", inputs, caches)
	}
}

// holdsValues fails if an input could refer to something that changes, or to more than is
// compared.
func holdsValues(t *testing.T, where string, typ reflect.Type) {
	t.Helper()
	switch typ.Kind() {
	case reflect.String, reflect.Bool, reflect.Uint8, reflect.Uint32, reflect.Uint64, reflect.Int, reflect.Int64:
	case reflect.Struct:
		for f := range typ.Fields() {
			holdsValues(t, where+"."+f.Name, f.Type)
		}
	case reflect.Pointer:
		to := typ.Elem()
		message := typ.Implements(reflect.TypeFor[proto.Message]())
		object := to.PkgPath() == reflect.TypeFor[mesh.Snapshot]().PkgPath() && to != reflect.TypeFor[mesh.Snapshot]()
		item := to.Kind() == reflect.Pointer // of a list
		if item {
			holdsValues(t, where, to)
		} else if !message && !object && !slices.Contains(immutable(), to) {
			t.Errorf("%s: %s is not known to stay as it is", where, typ)
		}
	default:
		t.Errorf("%s: %s is no value", where, typ)
	}
}

// isContent fails if a field of an input is not in its hash, except origins.
func isContent(t *testing.T, where string, typ reflect.Type) {
	t.Helper()
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		if typ.Implements(reflect.TypeFor[proto.Message]()) || typ.Implements(reflect.TypeFor[hashed]()) {
			return
		}
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct {
		return
	}
	for f := range typ.Fields() {
		if !f.IsExported() && f.Type != reflect.TypeFor[[]*mesh.Origin]() {
			t.Errorf("%s.%s is not in the hash of the input", where, f.Name)
		} else if f.IsExported() {
			isContent(t, where+"."+f.Name, f.Type)
		}
	}
}
