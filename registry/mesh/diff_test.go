package mesh

import (
	"reflect"
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
		case kindOf[*Service], kindOf[*Workload], kindOf[*VirtualService], kindOf[*WorkloadGroup]:
		default:
			if !k.policies() {
				t.Errorf("%T concerns nobody", k)
			}
		}
	}
}
