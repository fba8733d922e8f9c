package meshgen

import (
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/mesh"
)

// IndependentFields are the fields that can change alone: the innermost ones, except those
// computed from others.
func IndependentFields() []string {
	return slices.DeleteFunc(Fields(), func(field string) bool {
		return strings.HasPrefix(field, "Fragment.") || field == "Meta.Hash" || slices.ContainsFunc(kinds(), func(k *Kind) bool { return k.whole[field] })
	})
}

// Vary changes one of the IndependentFields in one object, and nothing else in the mesh. It
// reports false if it did not succeed; then it may have added an object.
func (g *Generator) Vary(field string) (Change, bool) {
	defer g.publish()
	var kinds []*Kind
	for _, k := range g.kinds {
		if len(k.paths[field]) > 0 {
			kinds = append(kinds, k)
		}
	}
	if len(kinds) == 0 {
		return g.varyDerived(field)
	}
	t := fieldPath{kind: pick(g.rng, kinds)}
	t.path = pick(g.rng, t.kind.paths[field])
	above := tokens(t.path)
	if g.rng.IntN(2) == 0 { // parts do not name all that they were made from
		defer func(hot map[string]bool) { g.preferred = hot }(g.preferred)
		g.preferred = nil
	}
	s, o := g.pickObject(t.kind, above[:len(above)-1])
	if o == nil || !has(o.spec, above[:len(above)-1]) {
		g.add(t.kind, g.documentSource(), t.path)
		return Change{}, false
	}
	next := o.copy()
	writer := g.writer(t.kind, t.path)
	writer.edit(t.kind.message, t.kind.schema, next.spec, "", t.path, 0)
	if _, ok := next.read(s.name); !ok || next.fragment == nil {
		return Change{}, false
	}
	if fields := ChangedFields(o.message.ProtoReflect(), next.message.ProtoReflect()); !slices.Equal(fields, []string{field}) {
		return Change{}, false
	}
	s.put(next)
	return Change{Kind: string(t.kind.Name), Op: "vary " + o.ns + "/" + o.name, Fields: []string{field}}, true
}

// ChangedFields are the innermost fields that differ between two messages.
func ChangedFields(was, is protoreflect.Message) []string {
	var out []string
	fields := is.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		a, b := was.Get(fd), is.Get(fd)
		if was.Has(fd) == is.Has(fd) && a.Equal(b) {
			continue
		}
		var below []string
		inner := messageOf(fd) != nil && !isScalar(messageOf(fd)) && was.Has(fd) && is.Has(fd)
		switch {
		case inner && fd.IsList() && a.List().Len() == b.List().Len():
			for j := range b.List().Len() {
				below = append(below, ChangedFields(a.List().Get(j).Message(), b.List().Get(j).Message())...)
			}
		case inner && !fd.IsList() && !fd.IsMap():
			below = ChangedFields(a.Message(), b.Message())
		}
		if len(below) == 0 {
			below = []string{FieldName(fd)}
		}
		out = append(out, below...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// varyDerived changes a field of a struct, as no manifest could: in an object that a
// source derived, or in a report.
func (g *Generator) varyDerived(field string) (Change, bool) {
	if reports := g.sources[4]; strings.HasPrefix(field, "HealthReport.") || strings.HasPrefix(field, "ServiceAccount.") {
		if len(reports.reports) < 3 || g.rng.IntN(2) == 0 {
			g.changeReport() // of what is there now
			return Change{}, false
		}
		was := pick(g.rng, reports.reports)
		is := *was
		if !g.varyIn(reflect.ValueOf(&is).Elem(), field) {
			return Change{}, false
		}
		reports.reports = mesh.PatchReports(reports.reports, []mesh.Delta[*mesh.HealthReport]{{Old: was, New: &is}})
		return Change{Kind: Reports, Op: "vary", Fields: []string{field}}, true
	}
	s := g.sources[3]
	if len(s.objects) < 4 {
		g.changeDerived()
		return Change{}, false
	}
	o := pick(g.rng, s.objects)
	next := o.copy()
	piece := *o.fragment
	if !g.varyIn(reflect.ValueOf(&piece).Elem(), field) {
		if g.rng.IntN(4) == 0 {
			g.changeDerived()
		}
		return Change{}, false
	}
	next.fragment = &piece
	s.put(next)
	return Change{Kind: string(o.kind.Name), Op: "vary derived", Fields: []string{field}}, true
}

// varyIn changes the field somewhere in a value, in copies of what pointers lead to.
func (g *Generator) varyIn(v reflect.Value, field string) bool {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || opaque(v.Type()) {
			return false
		}
		x := reflect.New(v.Type().Elem())
		x.Elem().Set(v.Elem())
		if !g.varyIn(x.Elem(), field) {
			return false
		}
		rehash(x)
		v.Set(x)
		return true
	case reflect.Slice:
		if v.Len() == 0 {
			return false
		}
		list := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(list, v)
		if !g.varyIn(list.Index(g.rng.IntN(v.Len())), field) {
			return false
		}
		v.Set(list)
		return true
	case reflect.Struct:
		return g.varyStruct(v, field)
	default:
		return false
	}
}

func (g *Generator) varyStruct(v reflect.Value, field string) bool {
	t := v.Type()
	if t == reflect.TypeFor[mesh.Key]() {
		return false
	}
	name, of, _ := strings.Cut(field, ".")
	if f, ok := t.FieldByName(of); ok && t.Name() == name && len(f.Index) == 1 {
		at := v.FieldByIndex(f.Index)
		was := reflect.New(at.Type()).Elem()
		was.Set(at)
		for range 8 {
			if (&filler{rng: g.rng}).fill(at, of); !reflect.DeepEqual(at.Interface(), was.Interface()) {
				return true
			}
		}
		return false
	}
	for _, i := range g.rng.Perm(v.NumField()) {
		if t.Field(i).IsExported() && !t.Field(i).Type.Implements(reflect.TypeFor[proto.Message]()) && g.varyIn(v.Field(i), field) {
			return true
		}
	}
	return false
}
