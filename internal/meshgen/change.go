package meshgen

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// change makes one change, or reports false if it found none.
func (g *Generator) change() (Change, bool) {
	src := g.documentSource()
	switch n := g.rng.IntN(100); {
	case n < 62:
		return g.editNextField()
	case n < 71:
		k := pick(g.rng, g.kinds)
		if k.rules == nil { // those that only deny are many, and say little
			k = pick(g.rng, g.kinds)
		}
		return Change{Kind: string(k.Name), Op: "add"}, g.add(k, src, "")
	case n < 79:
		return g.remove()
	case n < 82:
		return g.move()
	case n < 84:
		return g.editMetadata()
	case n < 85:
		return g.changeNetworks()
	case n < 94:
		return g.changeDerived()
	case n < 98:
		return g.changeReport(), true
	default:
		return g.changeBinding(), true
	}
}

// pickObject returns an object of a source: of a kind, if one is given, and preferably with
// a field set; or nil.
func (g *Generator) pickObject(k *Kind, field []string) (*source, *object) {
	hot := len(g.preferred) > 0 && g.rng.IntN(5) > 0
	for try := range 12 {
		s := g.documentSource()
		var of []*object
		for _, o := range s.objects {
			if (k == nil && o.kind.APIVersion != "" || o.kind == k) && (try > 6 || has(o.spec, field)) && (try > 3 || !hot || g.preferred[o.path()]) {
				of = append(of, o)
			}
		}
		if len(of) > 0 {
			return s, pick(g.rng, of)
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

// editNextField changes the next of all fields in an object of its kind. If what contains
// the field is missing, it tries the field again later: who adds a message cannot change
// what is in it.
func (g *Generator) editNextField() (Change, bool) {
	t := g.fields[g.next%len(g.fields)]
	listed := g.rng.IntN(2) == 0
	if !listed { // of kinds with few fields as often as of those with many
		if k := pick(g.rng, g.kinds); len(k.Fields) > 0 && (k.APIVersion != "" || g.rng.IntN(4) == 0) {
			t = fieldPath{k, pick(g.rng, k.paths[pick(g.rng, k.Fields)])}
		}
	}
	above := tokens(t.path)
	field := above[len(above)-1]
	above = above[:len(above)-1]
	if g.tries++; listed && g.tries > 6 {
		g.next, g.tries = g.next+1, 0
	}
	s, o := g.pickObject(t.kind, above)
	if o == nil {
		return Change{Kind: string(t.kind.Name), Op: "add"}, g.add(t.kind, g.documentSource(), t.path)
	}
	next := o.copy()
	writer := g.writer(t.kind, t.path)
	writer.edit(t.kind.message, t.kind.schema, next.spec, "", t.path, 0)
	if !writer.makeValid(next, s.name) {
		return Change{}, false
	}
	fields := g.Coverage.specs(o.message, next.message)
	if len(fields) == 0 {
		return Change{}, false
	}
	s.put(next)
	if listed && slices.ContainsFunc(fields, func(f string) bool { return strings.HasSuffix(f, "."+field) }) && has(next.spec, tokens(t.path)) {
		g.next, g.tries = g.next+1, 0
	}
	return Change{Kind: string(t.kind.Name), Op: "edit " + o.ns + "/" + o.name, Fields: fields}, true
}

func (g *Generator) remove() (Change, bool) {
	s, o := g.pickObject(nil, nil)
	if o == nil {
		return Change{}, false
	}
	s.objects = slices.DeleteFunc(slices.Clone(s.objects), func(x *object) bool { return x == o })
	return Change{Kind: string(o.kind.Name), Op: "remove"}, true
}

// move moves an object within its file, or to another source.
func (g *Generator) move() (Change, bool) {
	s, o := g.pickObject(nil, nil)
	if o == nil {
		return Change{}, false
	}
	next := o.copy()
	next.line++
	if g.rng.IntN(4) == 0 {
		to := g.documentSource()
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

// editMetadata changes the metadata of an object.
func (g *Generator) editMetadata() (Change, bool) {
	s, o := g.pickObject(nil, nil)
	if o == nil {
		return Change{}, false
	}
	next := o.copy()
	switch g.rng.IntN(3) {
	case 0:
		next.created = pick(g.rng, []string{"", "2019-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "2022-01-01T00:00:00Z"})
	case 1:
		next.labels = g.labels()
	default:
		next.annotations = map[string]any{mesh.AnnotationHost: pick(g.rng, []string{"h1", "h2"})}
	}
	if _, ok := next.read(s.name); !ok {
		return Change{}, false
	}
	s.put(next)
	return Change{Kind: string(o.kind.Name), Op: "metadata"}, true
}

// changeDerived adds, changes or removes an object that no manifest can write.
func (g *Generator) changeDerived() (Change, bool) {
	s := g.sources[3]
	if len(s.objects) > 6 && g.rng.IntN(3) == 0 {
		i := g.rng.IntN(len(s.objects))
		o := s.objects[i]
		s.objects = slices.Delete(slices.Clone(s.objects), i, i+1)
		return Change{Kind: string(o.kind.Name), Op: "remove derived"}, true
	}
	var o *object
	if len(s.objects) > 3 && g.rng.IntN(3) > 0 {
		o = pick(g.rng, s.objects)
	} else if _, o = g.pickObject(nil, nil); o == nil || !hasMeshTypesOnly(o.fragment) {
		return Change{}, false
	}
	next := o.copy()
	if !strings.HasPrefix(next.name, "derived-") { // a key of its own, or who wrote it down would win
		next.name = "derived-" + next.name
	}
	next.fragment = g.mutatedFragment(o.fragment, next.name)
	s.put(next)
	return Change{Kind: string(o.kind.Name), Op: "derive"}, true
}

// hasMeshTypesOnly reports whether a fragment has values of package mesh only, and no
// messages. Only these can have more than a manifest can write.
func hasMeshTypesOnly(piece *mesh.Fragment) bool {
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

// mutatedFragment is a fragment with its objects changed, each in some fields.
func (g *Generator) mutatedFragment(piece *mesh.Fragment, name string) *mesh.Fragment {
	out := *piece
	v := reflect.ValueOf(&out).Elem()
	f := &filler{rng: g.rng}
	for _, list := range v.Fields() {
		if list.Kind() != reflect.Slice || list.Len() == 0 {
			continue
		}
		next := reflect.MakeSlice(list.Type(), list.Len(), list.Len())
		for j := range list.Len() {
			x := reflect.New(list.Type().Elem().Elem())
			x.Elem().Set(list.Index(j).Elem())
			if o := x.Elem().FieldByName("Origin"); o.IsValid() { // no two sources share one
				o.Set(reflect.ValueOf(&mesh.Origin{Source: "catalog", Path: "catalog", Line: g.rng.IntN(9)}))
				x.Elem().FieldByName("Name").SetString(name)
			}
			for range 1 + g.rng.IntN(3) {
				f.mutate(x)
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

// changeReport changes a report of the health of a workload.
func (g *Generator) changeReport() Change {
	s := g.sources[4]
	var change mesh.Delta[*mesh.HealthReport]
	if len(s.reports) > 4 && g.rng.IntN(3) == 0 {
		change.Old = pick(g.rng, s.reports)
	} else {
		r := &mesh.HealthReport{}
		(&filler{rng: g.rng}).fill(reflect.ValueOf(r).Elem(), "")
		if all := g.workloads(); len(all) > 0 && g.rng.IntN(4) > 0 { // of one that is there
			x := pick(g.rng, all)
			r.ServiceAccount = mesh.ServiceAccount{Namespace: x.Namespace, Name: x.ServiceAccount}
			r.Network, r.Address, r.Workload = x.Network, x.Address, pick(g.rng, []string{"", x.Name})
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

// changeBinding gives a source another binding, or none.
func (g *Generator) changeBinding() Change {
	s := g.sources[1+g.rng.IntN(2)]
	s.binding = nil
	if g.rng.IntN(4) > 0 {
		s.binding = &mesh.Binding{Namespaces: s.namespaces}
		if g.rng.IntN(2) == 0 { // no host is of two patterns
			s.binding.Hosts = []mesh.Hostname{pick(g.rng, [][]mesh.Hostname{{"c.mesh", "*.w.mesh"}, {"d.mesh", "*.cluster.local"}}[len(s.name+s.namespaces[0])%2])}
		}
	}
	return Change{Kind: Bindings, Op: "bind"}
}
