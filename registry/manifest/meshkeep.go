package manifest

import (
	"encoding/json"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Over is the settings in force if last was in force before: a field of the file that is invalid
// or not in force has its value of last, which may be nil. Everything else is as in Config.
func (s *MeshSettings) Over(last *mesh.MeshConfig) *mesh.MeshConfig {
	if last == nil || len(s.keep) == 0 {
		return s.Config
	}
	spec := proto.CloneOf(s.Config.Spec)
	for _, fields := range s.keep {
		copyField(spec.ProtoReflect(), last.Spec.ProtoReflect(), fields)
	}
	return newMeshConfig(s.Config.Origin, spec)
}

// copyField gives a field the value that it has in src, or none. If src does not have the
// message around it, dst must not, either: in a policy of retries that has some field, a number of
// attempts that is not set is none, and without a policy there are two.
func copyField(dst, src protoreflect.Message, fields []protoreflect.FieldDescriptor) {
	for _, fd := range fields[:len(fields)-1] {
		if !src.Has(fd) {
			dst.Clear(fd)
			return
		}
		dst, src = dst.Mutable(fd).Message(), src.Get(fd).Message()
	}
	switch fd := fields[len(fields)-1]; {
	case !src.Has(fd):
		dst.Clear(fd)
	case fd.Message() != nil && !fd.IsMap() && !fd.IsList():
		dst.Set(fd, protoreflect.ValueOfMessage(proto.Clone(src.Get(fd).Message().Interface()).ProtoReflect()))
	default:
		dst.Set(fd, src.Get(fd))
	}
}

// prune gives everything that is not a part of the settings in force its default.
func prune(spec *meshconfig.MeshConfig) {
	pruneMessage(spec.ProtoReflect(), defaultMeshSpec().ProtoReflect(), "")
	spec.ExtensionProviders = slices.DeleteFunc(spec.ExtensionProviders, func(p *meshconfig.MeshConfig_ExtensionProvider) bool {
		return p.GetProvider() == nil
	})
	if len(spec.ExtensionProviders) == 0 {
		spec.ExtensionProviders = nil
	}
}

func pruneMessage(m, standard protoreflect.Message, at string) {
	var drop []protoreflect.FieldDescriptor
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		name := join(at, fd.JSONName())
		rows := meshRows()[name]
		switch {
		case slices.ContainsFunc(rows, func(f *meshField) bool { return f.verdict == fieldInForce || f.verdict == fieldKept }):
		case len(rows) > 0 || !meshHasAny(name):
			drop = append(drop, fd)
		case !m.Has(fd):
		case fd.IsList() && fd.Message() != nil:
			for j := range m.Get(fd).List().Len() {
				pruneMessage(m.Get(fd).List().Get(j).Message(), nil, name)
			}
		case fd.Message() != nil && !fd.IsMap():
			pruneMessage(m.Mutable(fd).Message(), messageOf(standard, fd), name)
		}
	}
	for _, fd := range drop {
		if standard != nil && standard.Has(fd) {
			m.Set(fd, standard.Get(fd))
		} else {
			m.Clear(fd)
		}
	}
}

// EncodeMeshConfig writes settings as texts that [ReadMeshConfig] reads back to them, without a
// fault: the last one has all of them. The one before, if there are two, leaves out what
// releases before decision 57 refuse and what they lose nothing by, so that they can start with
// it.
func EncodeMeshConfig(c *mesh.MeshConfig) [][]byte {
	var out [][]byte
	if len(c.Spec.GetExtensionProviders()) > 0 {
		spec := proto.CloneOf(c.Spec)
		spec.ExtensionProviders = nil // nothing used them
		out = append(out, encodeMeshSpec(spec))
	}
	return append(out, encodeMeshSpec(c.Spec))
}

// encodeMeshSpec writes what differs from the defaults.
func encodeMeshSpec(spec *meshconfig.MeshConfig) []byte {
	differs, standard := &meshconfig.MeshConfig{}, defaultMeshSpec().ProtoReflect()
	var empty []string
	fields := standard.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		value, has := spec.ProtoReflect().Get(fd), spec.ProtoReflect().Has(fd)
		switch {
		case has == standard.Has(fd) && value.Equal(standard.Get(fd)): // an empty message equals none
		case has:
			differs.ProtoReflect().Set(fd, value)
		default:
			empty = append(empty, fd.JSONName())
		}
	}
	doc := map[string]any{}
	// What was read from a text can be written as one.
	if text, err := protojson.Marshal(differs); err == nil {
		_ = json.Unmarshal(text, &doc)
	}
	for _, name := range empty {
		doc[name] = emptyOf(fields.ByJSONName(name))
	}
	text, _ := json.Marshal(doc)
	return append(text, '\n')
}

// emptyOf is how a field is written that has no value.
func emptyOf(fd protoreflect.FieldDescriptor) any {
	switch {
	case fd.IsList():
		return []any{}
	case fd.Message() != nil:
		return nil
	default:
		return fd.Default().Interface()
	}
}
