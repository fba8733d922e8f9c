package manifest

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// filler sets the fields of messages from a document, by the rules of the JSON
// reader that Istio uses: durations as Go writes them, quoted numbers, the
// names of fields in either spelling. What the schema already judged is not
// judged again; where there is no schema (MeshConfig), its faults are all there
// are.
type filler struct {
	report func(code Code, pos tree.Position, field, message string)
	// skip has the paths that a schema found at fault: they are left unset.
	skip map[string]bool
	// at is the path of the value that is read.
	at tree.Trail
}

// skips reports whether what is read is to be left unset.
func (f *filler) skips() bool { return len(f.skip) > 0 && f.skip[f.at.String()] }

func (f *filler) message(m protoreflect.Message, n *tree.Node) {
	d := m.Descriptor()
	if d.ParentFile().Package() == "google.protobuf" && f.wellKnown(m, n) {
		return
	}
	if n.Kind != tree.Map {
		f.wrongType(n, "an object")
		return
	}
	fields := d.Fields()
	for i := range n.Fields {
		f.at.Field(n.Fields[i].Key)
		if !f.skips() {
			f.entry(m, fields, &n.Fields[i])
		}
		f.at.Up()
	}
}

// entry sets the field that an entry names.
func (f *filler) entry(m protoreflect.Message, fields protoreflect.FieldDescriptors, entry *tree.Field) {
	fd := fields.ByJSONName(entry.Key)
	if fd == nil {
		fd = fields.ByTextName(entry.Key)
	}
	if fd == nil {
		f.unknown(fields, entry)
		return
	}
	if entry.Value.Kind == tree.Null && !isValue(fd) {
		return
	}
	if of := fd.ContainingOneof(); f.skip == nil && of != nil && !of.IsSynthetic() {
		if other := m.WhichOneof(of); other != nil && other != fd {
			f.report(CodeOneOf, entry.KeyPos, f.at.String(), fmt.Sprintf("%s and %s exclude one another; keep one of them", other.JSONName(), fd.JSONName()))
			return
		}
	}
	f.field(m, fd, entry.Value)
}

func (f *filler) unknown(fields protoreflect.FieldDescriptors, entry *tree.Field) {
	if f.skip != nil {
		return // the schema has reported it, or keeps it
	}
	names := make([]string, 0, fields.Len())
	for i := range fields.Len() {
		names = append(names, fields.Get(i).JSONName())
	}
	slices.Sort(names)
	hint := "remove it"
	if near := schema.Near(entry.Key, names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	f.report(CodeUnknownField, entry.KeyPos, f.at.String(), fmt.Sprintf("there is no field %q here; %s", entry.Key, hint))
}

func (f *filler) wrongType(n *tree.Node, want string) {
	f.report(CodeType, n.Pos, f.at.String(), fmt.Sprintf("must be %s, not %s", want, n.Kind))
}

// isValue reports whether null is a value of the field.
func isValue(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Value" && !fd.IsList() && !fd.IsMap()
}

// isZero reports whether an item of a list or a value of a map is null where there is no schema: for
// Istio's JSON reader that is an empty text, zero, or an empty message.
func (f *filler) isZero(md protoreflect.MessageDescriptor, n *tree.Node) bool {
	return f.skip == nil && n.Kind == tree.Null && (md == nil || md.FullName() != "google.protobuf.Value")
}

func (f *filler) field(m protoreflect.Message, fd protoreflect.FieldDescriptor, n *tree.Node) {
	switch {
	case fd.IsList():
		f.list(m, fd, n)
	case fd.IsMap():
		f.mapping(m, fd, n)
	case fd.Message() != nil:
		f.message(m.Mutable(fd).Message(), n)
	default:
		if v, ok := f.scalar(fd, n); ok {
			m.Set(fd, v)
		}
	}
}

func (f *filler) list(m protoreflect.Message, fd protoreflect.FieldDescriptor, n *tree.Node) {
	if n.Kind != tree.List {
		f.wrongType(n, "a list")
		return
	}
	list := m.Mutable(fd).List()
	for i, item := range n.Items {
		f.at.Item(i)
		v := list.NewElement()
		switch {
		case f.skips(), f.isZero(fd.Message(), item): // an empty item keeps the indices right
		case fd.Message() != nil:
			f.message(v.Message(), item)
		default:
			if scalar, ok := f.scalar(fd, item); ok {
				v = scalar
			}
		}
		list.Append(v)
		f.at.Up()
	}
}

func (f *filler) mapping(m protoreflect.Message, fd protoreflect.FieldDescriptor, n *tree.Node) {
	if n.Kind != tree.Map {
		f.wrongType(n, "an object")
		return
	}
	out := m.Mutable(fd).Map()
	for i := range n.Fields {
		f.at.Field(n.Fields[i].Key)
		if !f.skips() {
			f.pair(out, fd, &n.Fields[i])
		}
		f.at.Up()
	}
}

// pair sets one entry of a map.
func (f *filler) pair(out protoreflect.Map, fd protoreflect.FieldDescriptor, entry *tree.Field) {
	key, ok := f.mapKey(fd.MapKey(), entry)
	if !ok {
		return
	}
	v := out.NewValue()
	if f.isZero(fd.MapValue().Message(), entry.Value) {
		out.Set(key, v)
		return
	}
	if fd.MapValue().Message() != nil {
		f.message(v.Message(), entry.Value)
	} else if v, ok = f.scalar(fd.MapValue(), entry.Value); !ok {
		return
	}
	out.Set(key, v)
}

func (f *filler) mapKey(fd protoreflect.FieldDescriptor, entry *tree.Field) (protoreflect.MapKey, bool) {
	if fd.Kind() == protoreflect.StringKind {
		return protoreflect.ValueOfString(entry.Key).MapKey(), true
	}
	v, ok := f.scalar(fd, &tree.Node{Kind: tree.String, Text: entry.Key, Pos: entry.KeyPos})
	return v.MapKey(), ok
}

func (f *filler) scalar(fd protoreflect.FieldDescriptor, n *tree.Node) (protoreflect.Value, bool) {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		if n.Kind != tree.Bool {
			f.wrongType(n, "true or false")
		}
		return protoreflect.ValueOfBool(n.Bool), n.Kind == tree.Bool
	case protoreflect.StringKind:
		if n.Kind != tree.String {
			f.wrongType(n, "a string")
		}
		return protoreflect.ValueOfString(n.Text), n.Kind == tree.String
	case protoreflect.BytesKind:
		raw, err := base64.StdEncoding.DecodeString(n.Text)
		if n.Kind != tree.String || err != nil {
			f.wrongType(n, "text in base64")
			return protoreflect.Value{}, false
		}
		return protoreflect.ValueOfBytes(raw), true
	case protoreflect.EnumKind:
		return f.enum(fd.Enum(), n)
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		return f.float(fd, n)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		v, ok := f.integer(n, math.MinInt32, math.MaxInt32)
		return protoreflect.ValueOfInt32(int32(v)), ok
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		v, ok := f.integer(n, 0, math.MaxUint32)
		return protoreflect.ValueOfUint32(uint32(v)), ok
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		v, ok := f.integer(n, math.MinInt64, math.MaxInt64)
		return protoreflect.ValueOfInt64(v), ok
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		v, ok := f.integer(n, 0, math.MaxInt64)
		return protoreflect.ValueOfUint64(uint64(v)), ok
	case protoreflect.MessageKind, protoreflect.GroupKind:
	}
	f.wrongType(n, "something else")
	return protoreflect.Value{}, false
}

func (f *filler) enum(ed protoreflect.EnumDescriptor, n *tree.Node) (protoreflect.Value, bool) {
	values := ed.Values()
	switch n.Kind {
	case tree.String:
		if v := values.ByName(protoreflect.Name(n.Text)); v != nil {
			return protoreflect.ValueOfEnum(v.Number()), true
		}
	case tree.Int:
		if n.Int >= math.MinInt32 && n.Int <= math.MaxInt32 {
			if v := values.ByNumber(protoreflect.EnumNumber(n.Int)); v != nil {
				return protoreflect.ValueOfEnum(v.Number()), true
			}
		}
	case tree.Null, tree.Bool, tree.Float, tree.List, tree.Map:
	}
	names := make([]string, 0, values.Len())
	for i := range values.Len() {
		names = append(names, string(values.Get(i).Name()))
	}
	hint := fmt.Sprintf("write one of %v", names)
	if near := schema.Near(n.Text, names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	f.report(CodeEnum, n.Pos, f.at.String(), fmt.Sprintf("%q is not one of its values; %s", n.Text, hint))
	return protoreflect.Value{}, false
}

func (f *filler) float(fd protoreflect.FieldDescriptor, n *tree.Node) (protoreflect.Value, bool) {
	value := n.Float
	switch n.Kind {
	case tree.Int, tree.Float:
	case tree.String:
		var err error
		if value, err = strconv.ParseFloat(n.Text, 64); err != nil {
			f.wrongType(n, "a number")
			return protoreflect.Value{}, false
		}
	case tree.Null, tree.Bool, tree.List, tree.Map:
		f.wrongType(n, "a number")
		return protoreflect.Value{}, false
	}
	if fd.Kind() == protoreflect.FloatKind {
		return protoreflect.ValueOfFloat32(float32(value)), true
	}
	return protoreflect.ValueOfFloat64(value), true
}

// integer reads a whole number between two bounds, quoted or not.
func (f *filler) integer(n *tree.Node, low, high int64) (int64, bool) {
	value, ok := n.Int, n.Kind == tree.Int
	if n.Kind == tree.String {
		v, err := strconv.ParseInt(n.Text, 10, 64)
		// JSON has neither a plus nor leading zeros.
		value, ok = v, err == nil && strconv.FormatInt(v, 10) == n.Text
	}
	switch {
	case !ok:
		f.wrongType(n, "an integer")
	case value < low || value > high:
		f.report(CodeBounds, n.Pos, f.at.String(), fmt.Sprintf("%s is not between %d and %d", n.Text, low, high))
		ok = false
	}
	return value, ok
}

// wellKnown sets the messages that JSON writes in a form of their own.
func (f *filler) wellKnown(m protoreflect.Message, n *tree.Node) bool {
	switch m.Descriptor().FullName() {
	case "google.protobuf.Duration":
		f.duration(m, n)
	case "google.protobuf.Timestamp":
		at, err := time.Parse(time.RFC3339Nano, n.Text)
		if n.Kind != tree.String || err != nil {
			f.report(CodeFormat, n.Pos, f.at.String(), fmt.Sprintf("%q is not a time; write one such as 2026-01-31T12:00:00Z", n.Text))
			return true
		}
		proto.Merge(m.Interface(), timestamppb.New(at))
	case "google.protobuf.BoolValue", "google.protobuf.StringValue", "google.protobuf.BytesValue",
		"google.protobuf.Int32Value", "google.protobuf.UInt32Value", "google.protobuf.FloatValue",
		"google.protobuf.Int64Value", "google.protobuf.UInt64Value", "google.protobuf.DoubleValue":
		fd := m.Descriptor().Fields().ByNumber(1)
		if v, ok := f.scalar(fd, n); ok {
			m.Set(fd, v)
		}
	case "google.protobuf.Struct":
		if n.Kind != tree.Map {
			f.wrongType(n, "an object")
			return true
		}
		proto.Merge(m.Interface(), jsonValue(n).GetStructValue())
	case "google.protobuf.Value":
		proto.Merge(m.Interface(), jsonValue(n))
	case "google.protobuf.ListValue":
		if n.Kind != tree.List {
			f.wrongType(n, "a list")
			return true
		}
		proto.Merge(m.Interface(), jsonValue(n).GetListValue())
	default:
		return false
	}
	return true
}

func (f *filler) duration(m protoreflect.Message, n *tree.Node) {
	d, err := time.ParseDuration(n.Text)
	if n.Kind != tree.String || err != nil {
		f.report(CodeFormat, n.Pos, f.at.String(), fmt.Sprintf("%q is not a duration; write one such as 500ms, 5s or 1h30m", n.Text))
		return
	}
	proto.Merge(m.Interface(), durationpb.New(d))
}

func jsonValue(n *tree.Node) *structpb.Value {
	switch n.Kind {
	case tree.Bool:
		return structpb.NewBoolValue(n.Bool)
	case tree.Int, tree.Float:
		return structpb.NewNumberValue(n.Float)
	case tree.String:
		return structpb.NewStringValue(n.Text)
	case tree.List:
		list := &structpb.ListValue{}
		for _, item := range n.Items {
			list.Values = append(list.Values, jsonValue(item))
		}
		return structpb.NewListValue(list)
	case tree.Map:
		s := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(n.Fields))}
		for _, f := range n.Fields {
			s.Fields[f.Key] = jsonValue(f.Value)
		}
		return structpb.NewStructValue(s)
	case tree.Null:
	}
	return structpb.NewNullValue()
}

// sortedKeys are the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
