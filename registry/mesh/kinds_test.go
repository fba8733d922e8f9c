package mesh

import (
	"reflect"
	"testing"
)

// TestEveryListHasItsKind holds the table of kinds to the lists that a Fragment and
// a Snapshot have: a list without a kind would be merged, guarded and compared by
// nobody.
func TestEveryListHasItsKind(t *testing.T) {
	objects := reflect.TypeFor[interface{ meta() *Meta }]()
	lists := func(x any) map[string]bool {
		out := map[string]bool{}
		for f := range reflect.TypeOf(x).Fields() {
			if f.IsExported() && f.Type.Kind() == reflect.Slice && f.Type.Elem().Implements(objects) {
				out[f.Name] = true
			}
		}
		return out
	}
	inFragment, inSnapshot := lists(Fragment{}), lists(Snapshot{})
	if len(inFragment) != len(kinds) || len(inSnapshot) != len(kinds) {
		t.Errorf("%d lists in Fragment and %d in Snapshot, but %d kinds", len(inFragment), len(inSnapshot), len(kinds))
	}
	for name := range inFragment {
		f := &Fragment{}
		field := reflect.ValueOf(f).Elem().FieldByName(name)
		x := reflect.New(field.Type().Elem().Elem())
		x.Elem().FieldByName("Meta").FieldByName("Name").SetString("x")
		field.Set(reflect.Append(field, x))
		var seen []any
		for _, x := range f.Objects() {
			seen = append(seen, x)
		}
		if len(seen) != 1 || seen[0] != x.Interface() || f.Empty() || f.Count("") != 1 || f.Same(&Fragment{}) {
			t.Errorf("an object of %s is %v of the kinds", name, seen)
		}
		s := NewSnapshot(nil, testMeshConfig(), []*Fragment{f})
		if got := reflect.ValueOf(s).Elem().FieldByName(name); got.Len() != 1 {
			t.Errorf("an object of %s is not in Snapshot.%s", name, name)
		}
	}
}
