package mesh_test

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// wrongReach describes what is wrong with the reported reach of a change, and with the
// fragment that has its changes of endpoints only. The reach of a change is the largest of
// its objects, each compared alone.
func wrongReach(prev, next *mesh.Fragment) string {
	d, only := mesh.Compare(prev, next), mesh.Compare(prev, next).EndpointsOnly()
	endpoints, config := mesh.ReachNone, mesh.Compare(&mesh.Fragment{MeshConfig: prev.MeshConfig}, &mesh.Fragment{MeshConfig: next.MeshConfig}).Reach()
	if !slices.EqualFunc(prev.Health, next.Health, func(a, b *mesh.HealthReport) bool { return *a == *b }) {
		endpoints = mesh.ReachHealth
	}
	was, is, has := lists(prev), lists(next), lists(only)
	for name := range is {
		pairs := map[string]*[2]reflect.Value{}
		for i, list := range []reflect.Value{was[name], is[name]} {
			for _, x := range elements(list) {
				if pairs[identity(x)] == nil {
					pairs[identity(x)] = &[2]reflect.Value{}
				}
				pairs[identity(x)][i] = x
			}
		}
		taken := set(has[name])
		for id, pair := range pairs {
			alone := mesh.Compare(fragmentOfOne(name, pair[0]), fragmentOfOne(name, pair[1]))
			endpoints, config = max(endpoints, alone.EndpointsReach()), max(config, alone.ConfigReach())
			want := pair[1]
			if alone.ConfigReach() == mesh.ReachConfig {
				want = pair[0]
			}
			if want.IsValid() {
				if _, ok := taken[want.Interface()]; !ok && alone.Reach() == mesh.ReachNone {
					want = pair[0] // either has the same content
				}
				if _, ok := taken[want.Interface()]; !ok {
					return "without its configuration, the change has not the right version of " + id
				}
				delete(taken, want.Interface())
			}
		}
		if len(taken) > 0 {
			return "without its configuration, the change has too many " + name
		}
	}
	if got := d.EndpointsReach(); got != endpoints {
		return fmt.Sprintf("EndpointsReach is %s, want %s", got, endpoints)
	}
	if got := d.ConfigReach(); got != config {
		return fmt.Sprintf("ConfigReach is %s, want %s", got, config)
	}
	if only.MeshConfig != prev.MeshConfig || !slices.Equal(only.Health, next.Health) {
		return "without its configuration, the change has another MeshConfig or other health"
	}
	return ""
}

// fragmentOfOne is a fragment with one object, or none.
func fragmentOfOne(list string, x reflect.Value) *mesh.Fragment {
	f := &mesh.Fragment{}
	if x.IsValid() {
		lists(f)[list].Set(reflect.Append(lists(f)[list], x))
	}
	return f
}
