package manifest

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// freeText are messages whose strings are compared with what applications send, or
// sent to them, and which no Envoy connects to or listens on.
//
//nolint:gochecknoglobals // a read-only table
var freeText = map[protoreflect.FullName]bool{
	"istio.networking.v1alpha3.HTTPBody":                 true,
	"istio.networking.v1alpha3.HTTPRedirect":             true,
	"istio.networking.v1alpha3.HTTPRewrite":              true,
	"istio.networking.v1alpha3.Headers.HeaderOperations": true,
	"istio.networking.v1alpha3.RegexRewrite":             true,
	"istio.networking.v1alpha3.StringMatch":              true,
}

// unixSockets reports every value of an object that names a unix socket: an Envoy
// opens it as its own user, who is not the one that wrote the object. It knows no
// field by name, so a field that is built later is judged as well.
func unixSockets(o *Object, r *reporter) {
	w := unixWalk{at: tree.Trail{Base: "spec"}, report: func(path, value string) {
		r.add(CodeNotInForce, o.root.Nearest(path), path, fmt.Sprintf("not in force: %q is a unix socket, which an Envoy would open as its own user, "+
			"and this source may not name any; name it with --allow-unix-sockets to allow that; the object is kept out whole", value))
	}}
	w.message(o.Spec.ProtoReflect())
}

type unixWalk struct {
	at     tree.Trail
	report func(path, value string)
}

func (w *unixWalk) message(m protoreflect.Message) {
	if freeText[m.Descriptor().FullName()] {
		return
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		w.at.Field(fd.JSONName())
		defer w.at.Up()
		switch {
		case fd.IsList():
			for i := range v.List().Len() {
				w.at.Item(i)
				w.value(fd, v.List().Get(i))
				w.at.Up()
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				w.at.Field(k.String())
				defer w.at.Up()
				w.text(k.String())
				w.value(fd.MapValue(), v)
				return true
			})
		default:
			w.value(fd, v)
		}
		return true
	})
}

func (w *unixWalk) value(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch {
	case fd.Message() != nil:
		w.message(v.Message())
	case fd.Kind() == protoreflect.StringKind:
		w.text(v.String())
	}
}

func (w *unixWalk) text(s string) {
	const scheme = "unix:"
	if len(s) >= len(scheme) && strings.EqualFold(s[:len(scheme)], scheme) {
		w.report(w.at.String(), s)
	}
}
