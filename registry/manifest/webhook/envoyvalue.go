package webhook

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

// What a patch may hold is what Istio's reader of JSON takes for an Envoy message,
// which is wider than protojson: field names in both spellings, numbers in quotes,
// durations as Go writes them ("1m30s"), unknown fields with a warning.

// maxPatchDepth bounds the nesting that is looked at.
const maxPatchDepth = 64

// envoyMessage judges v as the message d.
func (c cursor) envoyMessage(d protoreflect.MessageDescriptor, v *structpb.Struct) {
	patchReader{depth: maxPatchDepth}.fields(c, d, v.GetFields())
}

// patchReader judges values beside the descriptor of what they are meant to be.
type patchReader struct{ depth int }

func (r patchReader) fields(c cursor, d protoreflect.MessageDescriptor, fields map[string]*structpb.Value) {
	chosen := map[protoreflect.Name]string{}
	for _, name := range sorted(fields) {
		v := fields[name]
		if name == "@type" {
			continue
		}
		at := c.at(name)
		fd := d.Fields().ByName(protoreflect.Name(name))
		if fd == nil {
			fd = d.Fields().ByJSONName(name)
		}
		if fd == nil {
			at.warn("Envoy's %s has no field %q%s; Envoys of another version may refuse it", d.Name(), name, near(name, fieldNames(d)...))
			continue
		}
		if isNull(v) && !takesNull(fd) {
			continue
		}
		if o := fd.ContainingOneof(); o != nil && !o.IsSynthetic() {
			if other := chosen[o.Name()]; other != "" {
				at.warn("%s and %s exclude one another, and only one takes effect; keep that one", other, name)
			}
			chosen[o.Name()] = name
		}
		r.field(at, fd, v)
	}
}

func fieldNames(d protoreflect.MessageDescriptor) []string {
	names := make([]string, 0, d.Fields().Len())
	for i := range d.Fields().Len() {
		names = append(names, string(d.Fields().Get(i).Name()))
	}
	return names
}

func isNull(v *structpb.Value) bool {
	_, null := v.GetKind().(*structpb.Value_NullValue)
	return null
}

func takesNull(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Value" && !fd.IsList()
}

func (r patchReader) field(c cursor, fd protoreflect.FieldDescriptor, v *structpb.Value) {
	switch {
	case fd.IsList():
		list, ok := v.GetKind().(*structpb.Value_ListValue)
		if !ok {
			c.wrong("%s needs a list, not %s", fd.Name(), kindOf(v))
			return
		}
		for i, e := range list.ListValue.GetValues() {
			r.value(c.elem(i), fd, e)
		}
	case fd.IsMap():
		m, ok := v.GetKind().(*structpb.Value_StructValue)
		if !ok {
			c.wrong("%s needs a map, not %s", fd.Name(), kindOf(v))
			return
		}
		for _, key := range sorted(m.StructValue.GetFields()) {
			at := c.key(key)
			r.scalar(at, fd.MapKey(), structpb.NewStringValue(key))
			r.value(at, fd.MapValue(), m.StructValue.Fields[key])
		}
	default:
		r.value(c, fd, v)
	}
}

func (r patchReader) value(c cursor, fd protoreflect.FieldDescriptor, v *structpb.Value) {
	// A null in a list or a map is an empty value.
	if isNull(v) {
		return
	}
	if d := fd.Message(); d != nil {
		r.message(c, d, v)
		return
	}
	r.scalar(c, fd, v)
}

func (r patchReader) message(c cursor, d protoreflect.MessageDescriptor, v *structpb.Value) {
	r.depth--
	if r.depth < 0 {
		c.wrong("the patch is nested more than %d deep", maxPatchDepth)
		return
	}
	if writtenApart(d) {
		r.wellKnown(c, d, v)
		return
	}
	s, ok := v.GetKind().(*structpb.Value_StructValue)
	if !ok {
		c.wrong("%s needs a map of fields, not %s", d.Name(), kindOf(v))
		return
	}
	r.fields(c, d, s.StructValue.GetFields())
}

// wellKnown judges the messages that JSON writes in its own way.
func (r patchReader) wellKnown(c cursor, d protoreflect.MessageDescriptor, v *structpb.Value) {
	text, isText := v.GetKind().(*structpb.Value_StringValue)
	switch d.Name() {
	case "Any":
		r.extension(c, v)
	case "Duration":
		if isText {
			if _, err := time.ParseDuration(text.StringValue); err == nil {
				return
			}
		}
		c.wrong("%s is not a duration; write one such as \"1.5s\"", kindOf(v))
	case "Timestamp":
		if isText {
			if _, err := time.Parse(time.RFC3339Nano, text.StringValue); err == nil {
				return
			}
		}
		c.wrong("%s is not a time; write one such as \"2026-01-02T15:04:05Z\"", kindOf(v))
	case "Struct":
		if _, ok := v.GetKind().(*structpb.Value_StructValue); !ok {
			c.wrong("a map is needed here, not %s", kindOf(v))
		}
	case "ListValue":
		if _, ok := v.GetKind().(*structpb.Value_ListValue); !ok {
			c.wrong("a list is needed here, not %s", kindOf(v))
		}
	case "Value":
	default:
		r.scalar(c, d.Fields().ByNumber(1), v)
	}
}

// extension judges a typed configuration.
func (r patchReader) extension(c cursor, v *structpb.Value) {
	fields := v.GetStructValue().GetFields()
	url := fields["@type"]
	if url == nil {
		c.wrong("the configuration does not say its type; write \"@type\": type.googleapis.com/NAME")
		return
	}
	if _, ok := url.GetKind().(*structpb.Value_StringValue); !ok {
		c.at("@type").wrong("the type is text, not %s; write type.googleapis.com/NAME", kindOf(url))
		return
	}
	d, known := anyType(url.GetStringValue())
	switch {
	case !known:
		c.at("@type").wrong("%s", whyNotType(url.GetStringValue()))
	case d == nil:
	case !writtenApart(d) && d.FullName() != "google.protobuf.Empty":
		r.message(c, d, v)
	case fields["value"] == nil:
		c.wrong("%s needs its content in \"value\"", d.Name())
	case !isNull(fields["value"]):
		r.message(c.at("value"), d, fields["value"])
	}
}

// writtenApart tells whether JSON writes d in its own way, not as a map of fields.
func writtenApart(d protoreflect.MessageDescriptor) bool {
	if d.ParentFile().Package() != "google.protobuf" {
		return false
	}
	switch d.Name() {
	case "Any", "Duration", "Timestamp", "Struct", "ListValue", "Value",
		"DoubleValue", "FloatValue", "Int64Value", "UInt64Value", "Int32Value", "UInt32Value", "BoolValue", "StringValue", "BytesValue":
		return true
	}
	return false
}

func (r patchReader) scalar(c cursor, fd protoreflect.FieldDescriptor, v *structpb.Value) {
	text, isText := v.GetKind().(*structpb.Value_StringValue)
	number, isNumber := v.GetKind().(*structpb.Value_NumberValue)
	_, isBool := v.GetKind().(*structpb.Value_BoolValue)
	switch fd.Kind() {
	case protoreflect.BoolKind:
		if !isBool && (!isText || text.StringValue != "true" && text.StringValue != "false" || !inMapKey(fd)) {
			c.wrong("true or false is needed here, not %s", kindOf(v))
		}
	case protoreflect.StringKind:
		if !isText {
			c.wrong("text is needed here, not %s; put it in quotes", kindOf(v))
		}
	case protoreflect.BytesKind:
		if !isText || !isStdBase64(text.StringValue) {
			c.wrong("base64 is needed here, not %s", kindOf(v))
		}
	case protoreflect.EnumKind:
		values := fd.Enum().Values()
		switch {
		case isNumber && number.NumberValue == math.Trunc(number.NumberValue) && math.Abs(number.NumberValue) <= math.MaxInt32:
		case isText && values.ByName(protoreflect.Name(text.StringValue)) != nil:
		case isText:
			c.wrong("%s has no value %q%s", fd.Enum().Name(), text.StringValue, near(text.StringValue, enumNames(fd.Enum())...))
		default:
			c.wrong("a name of %s is needed here, not %s", fd.Enum().Name(), kindOf(v))
		}
	default:
		s := v.GetStringValue()
		if isNumber {
			s = strconv.FormatFloat(number.NumberValue, 'f', -1, 64)
		}
		if !isNumber && !isText || !parses(fd.Kind(), s) {
			c.wrong("a number of type %s is needed here, not %s", fd.Kind(), kindOf(v))
		}
	}
}

func inMapKey(fd protoreflect.FieldDescriptor) bool {
	return fd.ContainingMessage().IsMapEntry() && fd.Number() == 1
}

func enumNames(e protoreflect.EnumDescriptor) []string {
	names := make([]string, 0, e.Values().Len())
	for i := range e.Values().Len() {
		names = append(names, string(e.Values().Get(i).Name()))
	}
	return names
}

func isStdBase64(s string) bool {
	_, err := base64.StdEncoding.DecodeString(s)
	return err == nil
}

// parses tells whether s is a number of the kind, as JSON writes it.
func parses(kind protoreflect.Kind, s string) bool {
	var n any
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		n = new(int32)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		n = new(int64)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		n = new(uint32)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		n = new(uint64)
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if s == "NaN" || s == "Infinity" || s == "-Infinity" {
			return true
		}
		n = new(float64)
	default:
		return false
	}
	return json.Unmarshal([]byte(s), n) == nil
}

// kindOf says what v is, for a sentence.
func kindOf(v *structpb.Value) string {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		const longest = 40
		if s := k.StringValue; len(s) <= longest {
			return strconv.Quote(s)
		}
		return "a long text"
	case *structpb.Value_NumberValue:
		return "the number " + strings.TrimSpace(strconv.FormatFloat(k.NumberValue, 'f', -1, 64))
	case *structpb.Value_BoolValue:
		return strconv.FormatBool(k.BoolValue)
	case *structpb.Value_StructValue:
		return "a map"
	case *structpb.Value_ListValue:
		return "a list"
	}
	return "null"
}
