package meshgen

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// change makes one change, or reports that it found none to make.
func (w *World) change() (Change, bool) {
	src := w.written()
	switch n := w.rng.IntN(100); {
	case n < 62:
		return w.editTarget()
	case n < 71:
		k := pick(w.rng, w.kinds)
		if k.rules == nil { // those that only deny are many, and say little
			k = pick(w.rng, w.kinds)
		}
		return Change{Kind: string(k.Name), Op: "add"}, w.add(k, src, "")
	case n < 79:
		return w.remove()
	case n < 82:
		return w.move()
	case n < 85:
		return w.meta()
	case n < 94:
		return w.derive()
	case n < 98:
		return w.report(), true
	default:
		return w.bind(), true
	}
}

// some is an object of a source, of a kind where one is given, and one that has a
// field set if there is such; or nil.
func (w *World) some(k *Kind, field []string) (*source, *object) {
	hot := len(w.hot) > 0 && w.rng.IntN(5) > 0
	for try := range 12 {
		s := w.written()
		var of []*object
		for _, o := range s.objects {
			if (k == nil && o.kind.APIVersion != "" || o.kind == k) && (try > 6 || has(o.spec, field)) && (try > 3 || !hot || w.hot[o.path()]) {
				of = append(of, o)
			}
		}
		if len(of) > 0 {
			return s, pick(w.rng, of)
		}
	}
	return nil, nil
}

// has reports whether a field is set somewhere in a value.
func has(v any, field []string) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, func(x any) bool { return has(x, field) })
	case map[string]any:
		if len(field) == 0 {
			return true
		}
		if below, ok := v[field[0]]; ok {
			return has(below, field[1:])
		}
		for _, k := range sortedKeys(v) { // of a map
			if inner, ok := v[k].(map[string]any); ok && has(inner, field) {
				return true
			}
		}
		return false
	default:
		return len(field) == 0
	}
}

// editTarget changes the next field of all in an object of its kind. Where all above
// the field is missing it comes back to it: who adds a message cannot change what is
// in it.
func (w *World) editTarget() (Change, bool) {
	t := w.targets[w.next%len(w.targets)]
	listed := w.rng.IntN(2) == 0
	if !listed { // of kinds with few fields as often as of those with many
		if k := pick(w.rng, w.kinds); len(k.Fields) > 0 && (k.APIVersion != "" || w.rng.IntN(4) == 0) {
			t = target{k, pick(w.rng, k.paths[pick(w.rng, k.Fields)])}
		}
	}
	above := tokens(t.path)
	field := above[len(above)-1]
	above = above[:len(above)-1]
	if w.tries++; listed && w.tries > 6 {
		w.next, w.tries = w.next+1, 0
	}
	s, o := w.some(t.kind, above)
	if o == nil {
		return Change{Kind: string(t.kind.Name), Op: "add"}, w.add(t.kind, w.written(), t.path)
	}
	next := o.copy()
	writer := w.writer(t.kind, t.path)
	writer.edit(t.kind.message, t.kind.schema, next.spec, "", t.path, 0)
	if !writer.settle(next, s.name) {
		return Change{}, false
	}
	fields := w.Coverage.specs(o.message, next.message)
	if len(fields) == 0 {
		return Change{}, false
	}
	s.put(next)
	if listed && slices.ContainsFunc(fields, func(f string) bool { return strings.HasSuffix(f, "."+field) }) && has(next.spec, tokens(t.path)) {
		w.next, w.tries = w.next+1, 0
	}
	return Change{Kind: string(t.kind.Name), Op: "edit " + o.ns + "/" + o.name, Fields: fields}, true
}

func (w *World) remove() (Change, bool) {
	s, o := w.some(nil, nil)
	if o == nil {
		return Change{}, false
	}
	s.objects = slices.DeleteFunc(slices.Clone(s.objects), func(x *object) bool { return x == o })
	return Change{Kind: string(o.kind.Name), Op: "remove"}, true
}

// move moves an object within its file, or to another source.
func (w *World) move() (Change, bool) {
	s, o := w.some(nil, nil)
	if o == nil {
		return Change{}, false
	}
	next := o.copy()
	next.line++
	if w.rng.IntN(4) == 0 {
		to := w.written()
		if !slices.Contains(to.namespaces, o.ns) {
			return Change{}, false
		}
		s.objects = slices.DeleteFunc(slices.Clone(s.objects), func(x *object) bool { return x == o })
		s = to
	}
	if _, ok := next.read(s.name); !ok {
		return Change{}, false
	}
	s.put(next)
	return Change{Kind: string(o.kind.Name), Op: "move"}, true
}

// meta changes what an object has besides its specification.
func (w *World) meta() (Change, bool) {
	s, o := w.some(nil, nil)
	if o == nil {
		return Change{}, false
	}
	next := o.copy()
	switch w.rng.IntN(3) {
	case 0:
		next.created = pick(w.rng, []string{"", "2019-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "2022-01-01T00:00:00Z"})
	case 1:
		next.labels = w.labels()
	default:
		next.notes = map[string]any{mesh.AnnotationHost: pick(w.rng, []string{"h1", "h2"})}
	}
	if _, ok := next.read(s.name); !ok {
		return Change{}, false
	}
	s.put(next)
	return Change{Kind: string(o.kind.Name), Op: "metadata"}, true
}

// derive makes, or changes, or takes away an object that no manifest could write.
func (w *World) derive() (Change, bool) {
	s := w.sources[3]
	if len(s.objects) > 6 && w.rng.IntN(3) == 0 {
		i := w.rng.IntN(len(s.objects))
		o := s.objects[i]
		s.objects = slices.Delete(slices.Clone(s.objects), i, i+1)
		return Change{Kind: string(o.kind.Name), Op: "remove derived"}, true
	}
	var o *object
	if len(s.objects) > 3 && w.rng.IntN(3) > 0 {
		o = pick(w.rng, s.objects)
	} else if _, o = w.some(nil, nil); o == nil || !plain(o.piece) {
		return Change{}, false
	}
	next := o.copy()
	if !strings.HasPrefix(next.name, "derived-") { // a key of its own, or who wrote it down would win
		next.name = "derived-" + next.name
	}
	next.piece = w.tweaked(o.piece, next.name)
	s.put(next)
	return Change{Kind: string(o.kind.Name), Op: "derive"}, true
}

// plain reports whether all that a piece holds are values of package mesh alone,
// not messages: only such have more to say than a manifest can.
func plain(piece *mesh.Fragment) bool {
	v := reflect.ValueOf(piece).Elem()
	n := 0
	for _, f := range v.Fields() {
		if f.Kind() == reflect.Slice && f.Len() > 0 {
			n++
			if spec, ok := f.Type().Elem().Elem().FieldByName("Spec"); ok && opaque(spec.Type) {
				return false
			}
		}
	}
	return n > 0
}

// tweaked is a piece with its objects changed, each in some fields.
func (w *World) tweaked(piece *mesh.Fragment, name string) *mesh.Fragment {
	out := *piece
	v := reflect.ValueOf(&out).Elem()
	f := &filler{rng: w.rng}
	for _, list := range v.Fields() {
		if list.Kind() != reflect.Slice || list.Len() == 0 {
			continue
		}
		next := reflect.MakeSlice(list.Type(), list.Len(), list.Len())
		for j := range list.Len() {
			x := reflect.New(list.Type().Elem().Elem())
			x.Elem().Set(list.Index(j).Elem())
			if o := x.Elem().FieldByName("Origin"); o.IsValid() { // no two sources share one
				o.Set(reflect.ValueOf(&mesh.Origin{Source: "catalog", Path: "catalog", Line: w.rng.IntN(9)}))
				x.Elem().FieldByName("Name").SetString(name)
			}
			for range 1 + w.rng.IntN(3) {
				f.tweak(x)
			}
			next.Index(j).Set(x)
		}
		list.Set(next)
	}
	slices.SortFunc(out.Services, func(a, b *mesh.Service) int {
		return cmp.Or(a.Compare(b.Key), strings.Compare(string(a.Hostname), string(b.Hostname)))
	})
	out.Services = slices.CompactFunc(out.Services, func(a, b *mesh.Service) bool { return a.Key == b.Key && a.Hostname == b.Hostname })
	return &out
}

// report says something of the health of a workload.
func (w *World) report() Change {
	s := w.sources[4]
	var change mesh.Delta[*mesh.HealthReport]
	if len(s.reports) > 4 && w.rng.IntN(3) == 0 {
		change.Old = pick(w.rng, s.reports)
	} else {
		r := &mesh.HealthReport{}
		(&filler{rng: w.rng}).fill(reflect.ValueOf(r).Elem(), "")
		if all := w.workloads(); len(all) > 0 && w.rng.IntN(4) > 0 { // of one that is there
			x := pick(w.rng, all)
			r.ServiceAccount = mesh.ServiceAccount{Namespace: x.Namespace, Name: x.ServiceAccount}
			r.Network, r.Address, r.Workload = x.Network, x.Address, pick(w.rng, []string{"", x.Name})
		}
		change.New = r
		for _, o := range s.reports {
			if o.ServiceAccount == r.ServiceAccount && o.Network == r.Network && o.Address == r.Address && o.Workload == r.Workload {
				change.Old = o
			}
		}
	}
	s.reports = mesh.PatchReports(s.reports, []mesh.Delta[*mesh.HealthReport]{change})
	return Change{Kind: Reports, Op: "report"}
}

// bind gives a source another binding, or none.
func (w *World) bind() Change {
	s := w.sources[1+w.rng.IntN(2)]
	s.binding = nil
	if w.rng.IntN(4) > 0 {
		s.binding = &mesh.Binding{Namespaces: s.namespaces, HostsOnly: w.rng.IntN(3) == 0}
		if w.rng.IntN(2) == 0 { // no host is of two patterns
			s.binding.Hosts = []mesh.Hostname{pick(w.rng, [][]mesh.Hostname{{"c.mesh", "*.w.mesh"}, {"d.mesh", "*.cluster.local"}}[len(s.name+s.namespaces[0])%2])}
		}
	}
	return Change{Kind: Bindings, Op: "bind"}
}
