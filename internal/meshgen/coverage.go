package meshgen

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Coverage counts what a generator did: by fields of messages and structs, named
// Message.field and Struct.Field, and by kinds.
type Coverage struct {
	// Set and Changed count how often a field was set and changed.
	Set, Changed map[string]int
	// Steps are the changes that were made alone, by kind. Effects are those of them that
	// made a difference, and FieldEffects are their fields.
	Steps, Effects map[string]int
	FieldEffects   map[string]int
}

// NewCoverage returns an empty Coverage.
func NewCoverage() *Coverage {
	return &Coverage{
		Set: map[string]int{}, Changed: map[string]int{}, Steps: map[string]int{}, Effects: map[string]int{}, FieldEffects: map[string]int{},
	}
}

// Effect notes whether changes made a difference. Several changes that were made together
// do not count.
func (c *Coverage) Effect(changes []Change, effect bool) {
	if len(changes) != 1 {
		return
	}
	x := changes[0]
	c.Steps[x.Kind]++
	if !effect {
		return
	}
	c.Effects[x.Kind]++
	for _, f := range x.Fields {
		c.FieldEffects[f]++
	}
}

// Missing are the fields that were not set, or not changed; sorted. They are those
// of the specifications of all kinds in force, and of all structs of package mesh
// that a source may fill.
func (c *Coverage) Missing() []string {
	var out []string
	for _, f := range Fields() {
		switch {
		case c.Set[f] == 0:
			out = append(out, f+" was never set")
		case c.Changed[f] == 0:
			out = append(out, f+" was never changed")
		}
	}
	return out
}

// Fields are all fields that a generator has to set and change.
func Fields() []string {
	var out []string
	for _, k := range Kinds() {
		out = append(out, k.Fields...)
	}
	types(reflect.TypeFor[mesh.Fragment](), map[reflect.Type]bool{}, func(f string) { out = append(out, f) })
	slices.Sort(out)
	return slices.Compact(out)
}

// types calls note for the fields of all structs that a type leads to.
func types(t reflect.Type, seen map[reflect.Type]bool, note func(string)) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if opaque(t) {
			return
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || seen[t] || opaque(t) || t == reflect.TypeFor[time.Time]() {
		return
	}
	seen[t] = true
	for f := range t.Fields() {
		if !f.IsExported() {
			continue
		}
		if counted(t, f) {
			note(t.Name() + "." + f.Name)
		}
		types(f.Type, seen, note)
	}
}

// counted reports whether a source can fill a field. Fields that identify an object do not
// change, and specifications are counted by their messages.
func counted(t reflect.Type, f reflect.StructField) bool {
	return !f.Anonymous && f.Type != reflect.TypeFor[mesh.AllocatedAddresses]() && !slices.Contains(identities(), f.Name) && !f.Type.Implements(reflect.TypeFor[proto.Message]()) &&
		(t != reflect.TypeFor[mesh.Fragment]() || f.Name != "Source")
}

// fragments counts what differs between two fragments of a source, of which the
// first may be nil: the objects of a key by their fields.
func (c *Coverage) fragments(was, is *mesh.Fragment) {
	if was == nil {
		was = &mesh.Fragment{}
	}
	a, b := reflect.ValueOf(was).Elem(), reflect.ValueOf(is).Elem()
	for i := range b.NumField() {
		name := "Fragment." + b.Type().Field(i).Name
		if b.Field(i).Kind() != reflect.Slice {
			if b.Field(i).Kind() == reflect.Pointer && !b.Field(i).IsNil() {
				c.Set[name]++
				if !a.Field(i).IsNil() && a.Field(i).Pointer() != b.Field(i).Pointer() {
					c.Changed[name]++
				}
				c.compare(a.Field(i), b.Field(i))
			}
			continue
		}
		before := map[string]reflect.Value{}
		for j := range a.Field(i).Len() {
			x := a.Field(i).Index(j)
			before[identity(x)] = x
		}
		if b.Field(i).Len() > 0 {
			c.Set[name]++
		}
		if a.Field(i).Len() != b.Field(i).Len() {
			c.Changed[name]++
		}
		for j := range b.Field(i).Len() {
			x := b.Field(i).Index(j)
			c.compare(before[identity(x)], x)
		}
	}
}

// identities are the fields by which an object of a fragment is known: one that has
// another is another object.
func identities() []string { return []string{"Key", "Hostname"} }

// identity is what an object of a fragment is known by from one to the next.
func identity(x reflect.Value) string {
	v := x.Elem()
	var out []string
	for _, name := range identities() {
		if f := v.FieldByName(name); f.IsValid() {
			out = append(out, fmt.Sprint(f.Interface()))
		}
	}
	return strings.Join(out, " ")
}

// compare counts what differs between two values of a type, of which the first may
// be invalid.
func (c *Coverage) compare(was, is reflect.Value) {
	if !is.IsValid() || is.Kind() == reflect.Pointer && is.IsNil() {
		return
	}
	if was.IsValid() && was.Kind() == reflect.Pointer && was.IsNil() {
		was = reflect.Value{}
	}
	if is.Kind() == reflect.Pointer {
		if was.IsValid() {
			if was.Pointer() == is.Pointer() {
				return
			}
			was = was.Elem()
		}
		is = is.Elem()
	}
	if is.Kind() == reflect.Struct {
		c.fields(was, is)
	}
	if is.Kind() == reflect.Slice {
		for i := range is.Len() {
			var before reflect.Value
			if was.IsValid() && i < was.Len() {
				before = was.Index(i)
			}
			c.compare(before, is.Index(i))
		}
	}
}

func (c *Coverage) fields(was, is reflect.Value) {
	t := is.Type()
	if opaque(t) || opaque(reflect.PointerTo(t)) || t == reflect.TypeFor[time.Time]() {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name := t.Name() + "." + f.Name
		if !is.Field(i).IsZero() {
			c.Set[name]++
		}
		var before reflect.Value
		if was.IsValid() {
			before = was.Field(i)
			if counted(t, f) && !reflect.DeepEqual(before.Interface(), is.Field(i).Interface()) {
				c.Changed[name]++
			}
		}
		if !opaque(f.Type) {
			c.compare(before, is.Field(i))
		}
	}
}

// messages notes the fields of a message, and gives those that differ from the one
// before, which may be nil.
func (c *Coverage) messages(was, is protoreflect.Message) []string {
	var out []string
	is.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		c.Set[FieldName(fd)]++
		if messageOf(fd) == nil || isScalar(messageOf(fd)) {
			return true
		}
		var before protoreflect.Value
		if was != nil && was.Has(fd) {
			before = was.Get(fd)
		}
		each(fd, before, v, func(a, b protoreflect.Message) { out = append(out, c.messages(a, b)...) })
		return true
	})
	if was == nil {
		return out
	}
	fields := is.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if was.Has(fd) == is.Has(fd) && was.Get(fd).Equal(is.Get(fd)) {
			continue
		}
		c.Changed[FieldName(fd)]++
		out = append(out, FieldName(fd))
	}
	return out
}

// each pairs the messages in two values of a field.
func each(fd protoreflect.FieldDescriptor, was, is protoreflect.Value, do func(was, is protoreflect.Message)) {
	switch {
	case fd.IsList():
		for i := range is.List().Len() {
			var before protoreflect.Message
			if was.IsValid() && i < was.List().Len() {
				before = was.List().Get(i).Message()
			}
			do(before, is.List().Get(i).Message())
		}
	case fd.IsMap():
		is.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			var before protoreflect.Message
			if was.IsValid() && was.Map().Has(k) {
				before = was.Map().Get(k).Message()
			}
			do(before, v.Message())
			return true
		})
	default:
		var before protoreflect.Message
		if was.IsValid() {
			before = was.Message()
		}
		do(before, is.Message())
	}
}

func (c *Coverage) specs(was, is proto.Message) []string {
	if was == nil {
		return c.messages(nil, is.ProtoReflect())
	}
	out := c.messages(was.ProtoReflect(), is.ProtoReflect())
	slices.Sort(out)
	return slices.Compact(out)
}
