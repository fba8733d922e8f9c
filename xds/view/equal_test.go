package view

import (
	"reflect"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// differing calls f with a copy of v for each of its fields, in which that field has
// another value. Anonymous structs are handled field by field.
func differing[T any](v T, f func(field string, w T)) {
	var each func(w *T, at reflect.Value, prefix string)
	each = func(w *T, at reflect.Value, prefix string) {
		for i := range at.NumField() {
			field := at.Type().Field(i)
			if !field.IsExported() {
				continue
			}
			if field.Anonymous && field.Type.Kind() == reflect.Struct {
				each(w, at.Field(i), prefix+field.Name+".")
				continue
			}
			before := reflect.New(field.Type).Elem()
			before.Set(at.Field(i))
			fill(at.Field(i), 0)
			f(prefix+field.Name, *w)
			at.Field(i).Set(before)
		}
	}
	each(&v, reflect.ValueOf(&v).Elem(), "")
}

// TestComparisonsCoverEveryField: objects that are replaced in place differ only in the
// fields that are named here. A new field counts until it is named.
func TestComparisonsCoverEveryField(t *testing.T) {
	t.Parallel()
	service := []string{"Meta.Hash", "Meta.Origin", "SubjectAltNames", "Selector", "Inline"}
	differing(mesh.Service{}, func(field string, svc mesh.Service) {
		if got := sameRouting(mesh.Service{}, svc); got != slices.Contains(service, field) {
			t.Errorf("a service with another %s is routed alike: %v", field, got)
		}
	})
	routes := []string{"Meta.Hash", "Meta.Origin", "Spec"}
	plain := virtualService{VirtualService: &mesh.VirtualService{}}
	differing(mesh.VirtualService{}, func(field string, vs mesh.VirtualService) {
		if got := sameExceptRoutes(plain, virtualService{VirtualService: &vs}); got != slices.Contains(routes, field) {
			t.Errorf("a VirtualService with another %s stays in its place: %v", field, got)
		}
	})
	differing(Proxy{}, func(field string, p Proxy) {
		if was := new(Proxy); was.reuseIfEqual(&p) == was {
			t.Errorf("a proxy with another %s is taken for the same", field)
		}
	})
	origin := func() *mesh.Origin { return &mesh.Origin{Path: "a.yaml", Line: 1} }
	if a, b := (Warning{Origin: origin()}), (Warning{Origin: origin()}); !shallowEqual(&a, &b) {
		t.Error("an origin at the same place is another one")
	}
	differing(*origin(), func(field string, o mesh.Origin) {
		if a, b := (Warning{Origin: origin()}), (Warning{Origin: &o}); shallowEqual(&a, &b) {
			t.Errorf("an origin with another %s is the same", field)
		}
	})
	for _, o := range []*mesh.Origin{nil, origin()} {
		a, b := Warning{Origin: o}, Warning{Origin: origin()}
		if got, want := shallowEqual(&a, &b), o != nil; got != want || shallowEqual(&b, &a) != want {
			t.Errorf("origins %v and %v are equal: %v", o, b.Origin, got)
		}
	}
	type origins struct{ m map[string]*mesh.Origin }
	a, b := origins{map[string]*mesh.Origin{"app": origin()}}, origins{map[string]*mesh.Origin{"tier": origin()}}
	if shallowEqual(&a, &b) {
		t.Error("maps with different keys are equal")
	}
}
