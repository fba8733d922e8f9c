package mesh_test

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// wrongDifference describes what is wrong with the reported difference of two fragments,
// and with what is made from it.
func wrongDifference(prev, next *mesh.Fragment) string {
	d := mesh.Compare(prev, next)
	out, in := &mesh.Fragment{}, &mesh.Fragment{}
	was, is, gone, fresh := lists(prev), lists(next), lists(out), lists(in)
	keysWas, keysIs := map[mesh.Key]bool{}, map[mesh.Key]bool{}
	objects := 0
	for name := range is {
		a, b := set(was[name]), set(is[name])
		pairs := map[string]bool{}
		for x, v := range a {
			keysWas[metaOf(v).Key] = true
			if _, stays := b[x]; !stays {
				pairs[identity(v)] = true
				gone[name].Set(reflect.Append(gone[name], v))
			}
		}
		for x, v := range b {
			keysIs[metaOf(v).Key] = true
			if _, stayed := a[x]; !stayed {
				pairs[identity(v)] = true
				fresh[name].Set(reflect.Append(fresh[name], v))
			}
		}
		objects += len(pairs)
	}
	sameSettings := true
	for name, is := range settings(next) {
		if was := settings(prev)[name]; !samePointer(was, is) {
			settings(out)[name].Set(was)
			settings(in)[name].Set(is)
			sameSettings = false
		}
	}
	if d.Unsorted() || d.Objects() != objects {
		return fmt.Sprintf("%d objects, want %d; unsorted: %v", d.Objects(), objects, d.Unsorted())
	}
	same := objects == 0 && sameSettings && slices.Equal(prev.Health, next.Health)
	if d.Same() != same {
		return fmt.Sprintf("Same is %v", d.Same())
	}
	if got, want := next.Count(""), len(keysIs); got != want || next.Empty() != (want == 0) {
		return fmt.Sprintf("Count is %d, Empty %v, want %d", got, next.Empty(), want)
	}
	if got, want := d.Growth(), len(keysIs)-len(keysWas); got != want {
		return fmt.Sprintf("Growth is %d, want %d", got, want)
	}
	removed := map[mesh.Key]bool{}
	for _, r := range d.Removed() {
		if removed[r.Key] || keysIs[r.Key] || !keysWas[r.Key] {
			return fmt.Sprintf("%s is said to be removed", r.Key)
		}
		removed[r.Key] = true
	}
	for k := range keysWas {
		if !keysIs[k] && !removed[k] {
			return fmt.Sprintf("%s is removed, and nobody says so", k)
		}
	}
	added := map[mesh.Key]bool{}
	for _, k := range d.Added() {
		if added[k] || keysWas[k] || !keysIs[k] {
			return fmt.Sprintf("%s is said to be added", k)
		}
		added[k] = true
	}
	for k := range keysIs {
		if !keysWas[k] && !added[k] {
			return fmt.Sprintf("%s is added, and nobody says so", k)
		}
	}
	if wrong := wrongLosses(prev, next, d.LostInline()); wrong != "" {
		return wrong
	}
	kept := mesh.Keep(prev, next, removed)
	if got, want := kept.Count(""), len(keysIs)+len(removed); got != want {
		return fmt.Sprintf("with what was removed there are %d objects, want %d", got, want)
	}
	replaced := prev.Replace([]*mesh.Fragment{out}, []*mesh.Fragment{in})
	for name, is := range settings(next) {
		if !samePointer(settings(replaced)[name], is) {
			return "Replace makes another " + name
		}
	}
	patched := lists(replaced)
	reversed := &mesh.Fragment{}
	for name, list := range lists(reversed) {
		for i := is[name].Len(); i > 0; i-- {
			list.Set(reflect.Append(list, is[name].Index(i-1)))
		}
		if !slices.EqualFunc(elements(patched[name]), elements(is[name]), samePointer) {
			return "Replace makes other " + name
		}
		if back := mesh.Keep(next, kept, nil); !slices.EqualFunc(elements(lists(back)[name]), elements(lists(kept)[name]), samePointer) {
			return "Keep of nothing makes other " + name
		}
	}
	for name, list := range lists(reversed.Sorted()) {
		if !slices.EqualFunc(elements(list), elements(is[name]), samePointer) {
			return "Sorted puts into another order: " + name
		}
	}
	return ""
}

// wrongLosses describes what is wrong with the inline endpoints that services are said to have
// lost.
func wrongLosses(prev, next *mesh.Fragment, got []mesh.InlineLoss) string {
	now := map[string]*mesh.Service{}
	for _, svc := range next.Services {
		now[identity(reflect.ValueOf(svc))] = svc
	}
	lost := map[string]int{}
	for _, svc := range prev.Services {
		id := identity(reflect.ValueOf(svc))
		if is := now[id]; is != nil {
			for _, w := range svc.Inline {
				lost[id+" "+w.Address]++
			}
			for _, w := range is.Inline {
				lost[id+" "+w.Address]--
			}
		}
	}
	for _, x := range got {
		for _, address := range x.Addresses {
			at := identity(reflect.ValueOf(x.Service)) + " " + address
			if lost[at]--; lost[at] < 0 {
				return at + " is said to be lost"
			}
		}
	}
	for at, n := range lost {
		if n > 0 {
			return at + " is lost, and nobody says so"
		}
	}
	return ""
}

// wrongReach describes what is wrong with the reported reach of a change, and with the
// fragment that has its changes of endpoints only. The reach of a change is the largest of
// its objects, each compared alone.
func wrongReach(prev, next *mesh.Fragment) string {
	d, only := mesh.Compare(prev, next), mesh.Compare(prev, next).EndpointsOnly()
	endpoints, config := mesh.ReachNone, mesh.ReachNone
	for name, is := range settings(next) {
		was := settings(prev)[name]
		a, b := &mesh.Fragment{}, &mesh.Fragment{}
		settings(a)[name].Set(was)
		settings(b)[name].Set(is)
		config = max(config, mesh.Compare(a, b).Reach())
		if !samePointer(settings(only)[name], was) {
			return "without its configuration, the change has another " + name
		}
	}
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
	if !slices.Equal(only.Health, next.Health) {
		return "without its configuration, the change has other health"
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
