package manifest

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// LostField names a field of mesh settings, or of networks, that has a value and then its default or none, a list that
// became shorter, or a map that lost a key: what a text that is cut off at the end of a line lacks. Empty means that
// there is none.
func LostField(was, is proto.Message) string {
	var standard protoreflect.Message
	if _, settings := was.(*meshconfig.MeshConfig); settings {
		standard = defaultMeshSpec().ProtoReflect()
	}
	return lostField(was.ProtoReflect(), is.ProtoReflect(), standard, "")
}

// lostField is LostField of messages; standard has the defaults, or is nil. Of several fields it is the first.
func lostField(was, is, standard protoreflect.Message, at string) string {
	fields := was.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		had, has := was.Get(fd), is.Get(fd)
		isDefault := func(m protoreflect.Message) bool {
			return !m.Has(fd) || standard != nil && standard.Has(fd) && m.Get(fd).Equal(standard.Get(fd))
		}
		name, lost := join(at, fd.JSONName()), ""
		switch {
		case isDefault(was):
		case fd.IsMap():
			lost = lostEntry(had.Map(), has.Map(), fd.MapValue().Message() != nil, name)
		case fd.IsList() && has.List().Len() < had.List().Len(), !fd.IsList() && isDefault(is):
			lost = name
		case !fd.IsList() && fd.Message() != nil && !strings.HasPrefix(string(fd.Message().FullName()), "google.protobuf."):
			lost = lostField(had.Message(), has.Message(), messageOf(standard, fd), name)
		}
		if lost != "" {
			return lost
		}
	}
	return ""
}

// lostEntry is the first key, by its text, that a map lost, or that lost a field.
func lostEntry(was, is protoreflect.Map, messages bool, at string) (lost string) {
	was.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		entry := join(at, k.String())
		switch {
		case is.Has(k) && messages:
			entry = lostField(v.Message(), is.Get(k).Message(), nil, entry)
		case is.Has(k):
			entry = ""
		}
		if entry != "" && (lost == "" || entry < lost) {
			lost = entry
		}
		return true
	})
	return lost
}
