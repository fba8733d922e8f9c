package mesh_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/fairlead/fairlead/internal/meshgen"
	"github.com/fairlead/fairlead/registry/mesh"
)

// These property tests check that what a snapshot reuses from the previous one never changes
// a result, and that it reports exactly what changed. They use reflection for lists, fields
// and look-ups, and know no kind by name. See xds/cache/equivalence_test.go for the seeds.

// TestMergesEqualMerge changes meshes at random. It compares each snapshot with one that is
// built from nothing, and the changes that it reports with the real ones.
func TestMergesEqualMerge(t *testing.T) {
	t.Parallel()
	coverage := meshgen.NewCoverage()
	for _, seed := range meshgen.Seeds(t, 5, 40) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			w := meshgen.New(seed, coverage)
			var s, older *mesh.Snapshot
			fragments := w.Fragments()
			for step := range 60 {
				prev, before := s, fragments
				w.Step(1 + 2*(w.Rand().IntN(3)/2) + 8*(w.Rand().IntN(20)/19))
				fragments = w.Fragments()
				if w.Rand().IntN(3) == 0 { // not every change is looked at by itself
					continue
				}
				in := w.Input(prev)
				if seed%4 == 3 {
					for i, f := range in.Fragments {
						in.Fragments[i] = untidy(w.Rand(), f)
					}
				}
				s = mesh.Merge(in)
				in.Prev = nil
				anew := mesh.Merge(in)
				after := fmt.Sprintf("FAIRLEAD_NETS_SEED=%d, step %d, after %s", seed, step, strings.Join(w.Log, "\n"))
				if d := differ(anew, s); d != "" {
					t.Fatalf("%s: the snapshot differs from one built from nothing: %s", after, d)
				}
				for _, from := range []*mesh.Snapshot{prev, older} {
					if from == nil {
						continue
					}
					if d := wrongSince(from, s); d != "" {
						t.Fatalf("%s: what differs from the snapshot %d in %d: %s", after, from.Generation, s.Generation, d)
					}
				}
				if !slices.IsSortedFunc(s.Conflicts, func(a, b mesh.Conflict) int { return a.Key.Compare(b.Key) }) {
					t.Fatalf("%s: the conflicts are not sorted", after)
				}
				if older = prev; prev != nil {
					if d := wrongDiff(prev, s); d != "" {
						t.Fatalf("%s: what the snapshot says of the change: %s", after, d)
					}
				}
				for i, f := range fragments {
					if d := wrongDifference(before[i], f); d != "" {
						t.Fatalf("%s: what differs in the fragment %q: %s", after, f.Source, d)
					}
					if d := wrongReach(before[i], f); d != "" {
						t.Fatalf("%s: the reach of the change of the fragment %q: %s", after, f.Source, d)
					}
				}
			}
		})
	}
}

// untidy is a fragment of which some lists are not sorted, and some have an object twice.
func untidy(rng *rand.Rand, f *mesh.Fragment) *mesh.Fragment {
	out := *f
	for _, list := range lists(&out) {
		if list.Len() == 0 {
			continue
		}
		copied := reflect.MakeSlice(list.Type(), 0, list.Len()+1)
		copied = reflect.AppendSlice(copied, list)
		if rng.IntN(4) == 0 {
			again := reflect.New(list.Type().Elem().Elem())
			again.Elem().Set(list.Index(rng.IntN(list.Len())).Elem())
			metaOf(again).Origin = &mesh.Origin{Path: "twice.yaml", Line: rng.IntN(100)}
			copied = reflect.Append(copied, again)
		}
		if rng.IntN(4) == 0 {
			rng.Shuffle(copied.Len(), reflect.Swapper(copied.Interface()))
		}
		list.Set(copied)
	}
	return &out
}

// pathDependent reports whether a field or method of a snapshot depends on the previous
// snapshot, and not only on the state of the mesh.
func pathDependent(name string) bool {
	return slices.Contains([]string{"Generation", "Changed", "Changes", "Since", "Merged", "Decided"}, name)
}

// differ tells in what two snapshots of the same mesh differ: in a field, or in an
// answer.
func differ(want, got *mesh.Snapshot) string {
	a, b := reflect.ValueOf(want).Elem(), reflect.ValueOf(got).Elem()
	for i := range a.NumField() {
		f := a.Type().Field(i)
		if !f.IsExported() || pathDependent(f.Name) {
			continue
		}
		if !equal(a.Field(i), b.Field(i)) {
			return f.Name + " (-want +got):\n" + cmp.Diff(summaries(a.Field(i)), summaries(b.Field(i)))
		}
	}
	x, y := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range x.NumMethod() {
		m := x.Type().Method(i)
		if pathDependent(m.Name) {
			continue
		}
		calls := arguments(want, got, m.Type)
		if calls == nil {
			return "the method " + m.Name + " has parameters that this test has no values for: " + m.Type.String()
		}
		for _, c := range calls {
			p, q := x.Method(i).Call(c.want), y.Method(i).Call(c.got)
			for j := range p {
				if !equal(p[j], q[j]) {
					return fmt.Sprintf("%s(%v) is %v, want %v", m.Name, c.got, q[j], p[j])
				}
			}
		}
	}
	return ""
}

// summaries are the objects of a list, for people.
func summaries(list reflect.Value) []string {
	var out []string
	for i := range list.Len() {
		x := list.Index(i)
		if x.Kind() != reflect.Pointer {
			out = append(out, fmt.Sprintf("%+v", x.Interface()))
			continue
		}
		m := metaOf(x)
		out = append(out, fmt.Sprintf("%s %s %s %x", identity(x), m.Created, m.Origin, m.Hash[:4]))
	}
	return out
}

// call is the arguments of a method, for each of two snapshots.
type call struct{ want, got []reflect.Value }

// arguments are all useful arguments of a method.
func arguments(want, got *mesh.Snapshot, method reflect.Type) []call {
	calls := []call{{}}
	for i := 1; i < method.NumIn(); i++ {
		var values [][2]reflect.Value
		switch t := method.In(i); t {
		case reflect.TypeFor[string]():
			for _, s := range []string{"shop", "other", "istio-system", "elsewhere", "10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.5", "c.mesh", "n0", "n1", "n2"} {
				values = append(values, [2]reflect.Value{reflect.ValueOf(s), reflect.ValueOf(s)})
			}
		case reflect.TypeFor[uint32]():
			for _, n := range []uint32{80, 443} {
				values = append(values, [2]reflect.Value{reflect.ValueOf(n), reflect.ValueOf(n)})
			}
		case reflect.TypeFor[mesh.Hostname]():
			seen := map[mesh.Hostname]bool{"no.mesh": true}
			for _, svc := range want.Services {
				seen[svc.Hostname] = true
			}
			for h := range seen {
				values = append(values, [2]reflect.Value{reflect.ValueOf(h), reflect.ValueOf(h)})
			}
		default: // an object of the snapshot
			a, b := reflect.ValueOf(want).Elem(), reflect.ValueOf(got).Elem()
			has := false
			for j := range a.NumField() {
				if a.Field(j).Type() != reflect.SliceOf(t) {
					continue
				}
				has = true
				for k := range a.Field(j).Len() {
					values = append(values, [2]reflect.Value{a.Field(j).Index(k), b.Field(j).Index(k)})
				}
			}
			if !has {
				return nil
			}
		}
		var next []call
		for _, c := range calls {
			for _, v := range values {
				next = append(next, call{append(slices.Clip(c.want), v[0]), append(slices.Clip(c.got), v[1])})
			}
		}
		calls = next
		if calls == nil {
			calls = []call{}
		}
	}
	return calls
}

// equal compares by content; equal pointers are equal.
func equal(a, b reflect.Value) bool {
	if x, ok := reflect.TypeAssert[error](a); ok && x != nil {
		y, ok := reflect.TypeAssert[error](b)
		return ok && y != nil && x.Error() == y.Error()
	}
	switch a.Kind() {
	case reflect.Pointer:
		return a.Pointer() == b.Pointer() || !a.IsNil() && !b.IsNil() && cmp.Equal(a.Interface(), b.Interface(), protocmp.Transform())
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !equal(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	default:
		return cmp.Equal(a.Interface(), b.Interface(), protocmp.Transform())
	}
}

// lists are the lists of objects in a struct, by the names of its fields. An object
// has a Meta.
func lists(x any) map[string]reflect.Value {
	out := map[string]reflect.Value{}
	v := reflect.ValueOf(x).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() || f.Type.Kind() != reflect.Slice || f.Type.Elem().Kind() != reflect.Pointer {
			continue
		}
		if _, ok := f.Type.Elem().Elem().FieldByName("Meta"); ok {
			out[f.Name] = v.Field(i)
		}
	}
	return out
}

// settings are the objects of a fragment or snapshot of which there is one at most.
func settings(x any) map[string]reflect.Value {
	out := map[string]reflect.Value{}
	v := reflect.ValueOf(x).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() || f.Type.Kind() != reflect.Pointer || f.Type.Elem().Kind() != reflect.Struct {
			continue
		}
		if _, ok := f.Type.Elem().FieldByName("Meta"); ok {
			out[f.Name] = v.Field(i)
		}
	}
	return out
}

func metaOf(x reflect.Value) *mesh.Meta {
	m, _ := reflect.TypeAssert[*mesh.Meta](x.Elem().FieldByName("Meta").Addr())
	return m
}

// set is the objects of a list.
func set(list reflect.Value) map[any]reflect.Value {
	out := map[any]reflect.Value{}
	if list.IsValid() {
		for i := range list.Len() {
			out[list.Index(i).Interface()] = list.Index(i)
		}
	}
	return out
}

// wrongSince describes what is wrong with the changes that a snapshot reports since another
// one.
func wrongSince(prev, s *mesh.Snapshot) string {
	diff := mesh.Deltas(s.Since(prev))
	was, is := lists(prev), lists(s)
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if d := applied(set(was[name]), set(is[name]), reflect.ValueOf(diff[is[name].Type().Elem()])); d != "" {
			return name + ": " + d
		}
	}
	return ""
}

// wrongDiff describes what is wrong with the changes that a snapshot reports since the
// previous one.
func wrongDiff(prev, s *mesh.Snapshot) string {
	was, is := lists(prev), lists(s)
	type state struct{ was, is, wasHash, isHash map[string]bool }
	keys := map[mesh.Key]*state{}
	note := func(list reflect.Value, of func(*state) (content, hash map[string]bool)) {
		for i := range list.Len() {
			x := list.Index(i)
			m := metaOf(x)
			if keys[m.Key] == nil {
				keys[m.Key] = &state{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
			}
			contents, hashes := of(keys[m.Key])
			hashes[identity(x)+m.Hash.String()] = true
			contents[contentOf(x)] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		note(was[name], func(x *state) (a, b map[string]bool) { return x.was, x.wasHash })
		note(is[name], func(x *state) (a, b map[string]bool) { return x.is, x.isHash })
	}
	var want, may []string // may: what no proxy could notice, such as a label that is written elsewhere now
	for key, x := range keys {
		switch {
		case maps.Equal(x.was, x.is) && !maps.Equal(x.wasHash, x.isHash):
			may = append(may, fmt.Sprint(key, " ", mesh.Updated))
		case maps.Equal(x.was, x.is):
		case len(x.was) == 0:
			want = append(want, fmt.Sprint(key, " ", mesh.Added))
		case len(x.is) == 0:
			want = append(want, fmt.Sprint(key, " ", mesh.Removed))
		default:
			want = append(want, fmt.Sprint(key, " ", mesh.Updated))
		}
	}
	for name, is := range settings(s) {
		switch was := settings(prev)[name]; {
		case was.IsNil() && is.IsNil():
		case was.IsNil():
			want = append(want, fmt.Sprint(metaOf(is).Key, " ", mesh.Added))
		case is.IsNil():
			want = append(want, fmt.Sprint(metaOf(was).Key, " ", mesh.Removed))
		case metaOf(was).Hash != metaOf(is).Hash:
			want = append(want, fmt.Sprint(metaOf(is).Key, " ", mesh.Updated))
		}
	}
	var got []string
	for i, c := range s.Changes {
		got = append(got, fmt.Sprint(c.Key, " ", c.Op))
		if c.Reach == mesh.ReachNone || s.Changed[i] != c.Key {
			return fmt.Sprintf("the change %+v beside the key %v", c, s.Changed[i])
		}
	}
	got = slices.DeleteFunc(got, func(c string) bool { return slices.Contains(may, c) })
	slices.Sort(want)
	slices.Sort(got)
	if slices.Equal(want, got) {
		return ""
	}
	return cmp.Diff(want, got)
}

// contentOf is what a proxy can notice of an object: all fields of a value, and the hash of
// an object with a specification.
func contentOf(x reflect.Value) string {
	if x.Elem().FieldByName("Spec").IsValid() {
		return metaOf(x).Hash.String()
	}
	next := reflect.New(x.Type().Elem())
	next.Elem().Set(x.Elem())
	m := metaOf(next)
	m.Hash, m.Origin = mesh.Hash{}, nil
	if f := next.Elem().FieldByName("HealthReason"); f.IsValid() {
		f.SetZero()
	}
	if f := next.Elem().FieldByName("Inline"); f.IsValid() {
		list := reflect.MakeSlice(f.Type(), 0, f.Len())
		for _, w := range elements(f) {
			list = reflect.Append(list, reflect.ValueOf(withoutHash(w)))
		}
		f.Set(list)
	}
	withoutEmpty(next.Elem())
	behind := inline(next)
	return fmt.Sprintf("%#v %s", next.Elem().Interface(), behind) // an object has a String
}

// applied tells what is wrong with deltas that are to make one list of another.
func applied(was, is map[any]reflect.Value, deltas reflect.Value) string {
	n := 0
	if deltas.IsValid() {
		n = deltas.Len()
	}
	for i := range n {
		old, now := deltas.Index(i).Field(0), deltas.Index(i).Field(1)
		if !old.IsNil() {
			if _, there := was[old.Interface()]; !there {
				return fmt.Sprintf("%s goes, and was not there", metaOf(old).Key)
			}
			delete(was, old.Interface())
		}
		if !now.IsNil() {
			if _, there := was[now.Interface()]; there {
				return fmt.Sprintf("%s comes, and was there", metaOf(now).Key)
			}
			was[now.Interface()] = now
		}
	}
	for x, v := range is {
		if _, ok := was[x]; !ok {
			return fmt.Sprintf("%s is new, and nobody says so", metaOf(v).Key)
		}
	}
	for x, v := range was {
		if _, ok := is[x]; !ok {
			return fmt.Sprintf("%s is gone, and nobody says so", metaOf(v).Key)
		}
	}
	return ""
}

// withoutEmpty makes empty lists and maps nil, which means the same.
func withoutEmpty(x reflect.Value) {
	for _, f := range x.Fields() {
		if (f.Kind() == reflect.Map || f.Kind() == reflect.Slice) && f.Len() == 0 {
			f.SetZero()
		}
	}
}

func withoutHash(w reflect.Value) *mesh.Workload {
	x, _ := reflect.TypeAssert[*mesh.Workload](w)
	next := *x
	next.Hash, next.Origin, next.HealthReason = mesh.Hash{}, nil, ""
	withoutEmpty(reflect.ValueOf(&next).Elem())
	return &next
}

func inline(x reflect.Value) string {
	f := x.Elem().FieldByName("Inline")
	if !f.IsValid() {
		return ""
	}
	var out []string
	for _, w := range elements(f) {
		out = append(out, fmt.Sprintf("%#v", w.Elem().Interface()))
	}
	f.SetZero()
	return strings.Join(out, " ")
}

func samePointer(a, b reflect.Value) bool { return a.Pointer() == b.Pointer() }

func elements(list reflect.Value) []reflect.Value {
	out := make([]reflect.Value, list.Len())
	for i := range out {
		out[i] = list.Index(i)
	}
	return out
}

// identity distinguishes an object of a list from the others.
func identity(x reflect.Value) string {
	p := metaOf(x).String()
	if h := x.Elem().FieldByName("Hostname"); h.IsValid() {
		p += " " + h.String()
	}
	return p
}
