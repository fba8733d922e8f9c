package mesh

import (
	"reflect"
	"slices"
	"testing"
)

// A difference of any kind is told from those that somebody names.
func TestDifferenceOfOtherKinds(t *testing.T) {
	t.Parallel()
	var d Diff
	if !d.Only() {
		t.Error("there is something where nothing differs")
	}
	note(&d, []Delta[*Sidecar]{{New: &Sidecar{}}})
	if !d.Only(reflect.TypeFor[*Service](), reflect.TypeFor[*Sidecar]()) || d.Only(reflect.TypeFor[*Service]()) {
		t.Error("a Sidecar is taken for a service")
	}
}

// An object of any kind but those that say otherwise concerns the workloads of its
// namespace.
func TestKindsConcernWorkloads(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		switch k.(type) {
		case kindOf[*Service], kindOf[*Workload], kindOf[*VirtualService], kindOf[*Gateway], kindOf[*WorkloadGroup], kindOf[*ProxyConfig]:
		default:
			if !k.policies() {
				t.Errorf("%T concerns nobody", k)
			}
		}
		k.(teller).told(t)
	}
}

type teller interface{ told(t *testing.T) }

// told: an object of a kind that concerns workloads is told when it comes, when it goes, and as
// both of its versions when it changes.
func (k kindOf[T]) told(t *testing.T) {
	t.Helper()
	fresh := func() T { return reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T) }
	var none T
	for _, c := range []Delta[T]{{New: fresh()}, {Old: fresh()}, {Old: fresh(), New: fresh()}} {
		var d Diff
		note(&d, []Delta[T]{c})
		var want []*Meta
		for _, x := range []T{c.Old, c.New} {
			if k.policies() && x != none {
				want = append(want, x.meta())
			}
		}
		if got := slices.Collect(d.Policies()); !slices.Equal(got, want) {
			t.Errorf("%T: of %v, %v are told", k, want, got)
		}
	}
}
