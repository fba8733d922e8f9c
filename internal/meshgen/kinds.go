package meshgen

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Kind is one kind of object, as the product has it registered.
type Kind struct {
	Name       mesh.Kind
	APIVersion string
	// Fields are the fields that this build implements, as Message.field, sorted. A kind
	// that is not in force has none.
	Fields []string

	message protoreflect.MessageDescriptor
	schema  *schema.Schema // of the specification; nil for MeshConfig
	rules   []string       // what is in force; nil if that is not restricted
	paths   map[string][]string
	// whole are the fields that hold a message, whose fields are counted themselves.
	whole map[string]bool
}

// Kinds are all that documents may be of, MeshConfig among them; sorted by name.
func Kinds() []*Kind { return slices.Clone(kinds()) }

//nolint:gochecknoglobals // a read-only table, made once
var kinds = sync.OnceValue(func() []*Kind {
	set, err := schema.New()
	if err != nil {
		panic(err)
	}
	byName := map[mesh.Kind]*Kind{}
	for _, gvk := range set.Kinds() { // of a kind the last version counts
		k := &Kind{Name: mesh.Kind(gvk.Kind), APIVersion: gvk.APIVersion()}
		if s := set.Lookup(gvk); s != nil {
			k.schema = s.Properties["spec"]
		}
		byName[k.Name] = k
	}
	force := manifest.InForce()
	withoutAgents(force)
	for name := range force {
		if byName[name] == nil {
			byName[name] = &Kind{Name: name}
		}
	}
	var out []*Kind
	for name, k := range byName {
		spec := manifest.NewSpec(name)
		if spec == nil {
			continue
		}
		k.message, k.rules = spec.ProtoReflect().Descriptor(), force[name]
		k.paths, k.whole = map[string][]string{}, map[string]bool{}
		k.walk(k.message, "", nil)
		if k.rules != nil {
			k.Fields = slices.Sorted(maps.Keys(k.paths))
		}
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b *Kind) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return out
})

// withoutAgents takes out what only agents are told, one by one: nothing of it is in resources that
// proxies share, and it would take room in every random mesh. Package xds/proxyconfig tests it.
func withoutAgents(force map[mesh.Kind][]string) {
	delete(force, mesh.KindProxyConfig)
	force[mesh.KindMeshConfig] = slices.DeleteFunc(force[mesh.KindMeshConfig], func(rule string) bool { return strings.HasPrefix(rule, "defaultConfig.") })
}

// walk notes the paths of all fields that may be set.
func (k *Kind) walk(md protoreflect.MessageDescriptor, path string, above []protoreflect.FullName) {
	if slices.Contains(above, md.FullName()) {
		return
	}
	above = append(slices.Clone(above), md.FullName())
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		p := join(path, fd.JSONName())
		if in, _ := k.allows(p); !in || !writable(fd) {
			continue
		}
		name := FieldName(fd)
		k.paths[name] = append(k.paths[name], p)
		k.whole[name] = messageOf(fd) != nil && !isScalar(messageOf(fd)) && !fd.IsList() && !fd.IsMap()
		if below := messageOf(fd); below != nil && !isScalar(below) {
			k.walk(below, p, above)
		}
	}
}

// FieldName is how coverage calls a field.
func FieldName(fd protoreflect.FieldDescriptor) string {
	return string(fd.Parent().Name()) + "." + fd.JSONName()
}

// messageOf is the message that a field, a list or a map holds; or nil.
func messageOf(fd protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if fd.IsMap() {
		return fd.MapValue().Message()
	}
	return fd.Message()
}

// writable reports whether the generator can write a field. It has no values for untyped
// fields.
func writable(fd protoreflect.FieldDescriptor) bool {
	md := messageOf(fd)
	if md == nil {
		return fd.Kind() != protoreflect.BytesKind
	}
	return isScalar(md) || !strings.HasPrefix(string(md.FullName()), "google.protobuf.")
}

// isScalar reports whether a message is written as one value.
func isScalar(md protoreflect.MessageDescriptor) bool {
	name, ok := strings.CutPrefix(string(md.FullName()), "google.protobuf.")
	return ok && (name == "Duration" || strings.HasSuffix(name, "Value") && name != "Value" && name != "ListValue" && name != "NullValue")
}

// allows reports whether this build implements a path of the specification, or
// something below it, and the values it takes where it takes only some.
func (k *Kind) allows(path string) (in bool, values []string) {
	if k.rules == nil {
		return true, nil
	}
	for _, rule := range k.rules {
		rule, deny := strings.CutPrefix(rule, "!")
		at, list, some := strings.Cut(rule, "=")
		switch {
		case deny && at == path && !some:
			return false, nil
		case deny:
		case at == path && some:
			in, values = true, strings.Split(list, ",")
		case within(path, at), within(at, path):
			in = true
		}
	}
	return in, values
}

// within reports whether one path is the other, or lies below it.
func within(inner, outer string) bool {
	rest, ok := strings.CutPrefix(inner, outer)
	return ok && (rest == "" || outer == "" || rest[0] == '.')
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
