package envoytest

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// byRequest are parts of names of fields by which a request, or a plugin, would say
// to which cluster, or address, it goes.
//
//nolint:gochecknoglobals // a read-only table
var byRequest = []string{"cluster_header", "cluster_specifier_plugin", "use_http_header", "http_header_name", "metadata_key"}

// sdsNames are the secrets that a proxy asks its agent for.
//
//nolint:gochecknoglobals // a read-only table
var sdsNames = []string{"default", "ROOTCA"}

// credentials begin the names of secrets that the agent reads from the directory of credentials of its host.
const credentials = "kubernetes://"

// Misuse is a place that [Misuses] finds.
type Misuse struct {
	// Field is the field, At the way to it.
	Field protoreflect.FullName
	At    string
}

// Misuses are the places of a resource of Envoy that name something reserved: a
// cluster of the bootstrap, or its secret. It knows no field by name: every text,
// also in what is packed, counts, but for the source of one of the secrets that
// a proxy asks its agent for, by the cluster sds, and for the receiver of an access log,
// the cluster als. Fields that let a request choose its cluster count as well, whatever
// they say.
func Misuses(m proto.Message, sds, als string, reserved []string) []Misuse {
	w := &misuses{sds: sds, als: als, reserved: reserved}
	w.message(m.ProtoReflect(), string(m.ProtoReflect().Descriptor().Name()), "")
	return w.found
}

type misuses struct {
	sds, als string
	reserved []string
	found    []Misuse
}

// message looks at a message; allowed is the reserved cluster that it may name, because it is in
// the source of a secret, or in an access log.
func (w *misuses) message(m protoreflect.Message, at, allowed string) {
	switch x := m.Interface().(type) {
	case *anypb.Any:
		inner, err := x.UnmarshalNew()
		if err != nil {
			w.found = append(w.found, Misuse{At: fmt.Sprintf("%s: %v", at, err)})
			return
		}
		w.message(inner.ProtoReflect(), at+"/"+string(inner.ProtoReflect().Descriptor().Name()), allowed)
		return
	case interface{ GetName() string }:
		if m.Descriptor().FullName() == "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig" {
			allowed = ""
			if slices.Contains(sdsNames, x.GetName()) || strings.HasPrefix(x.GetName(), credentials) {
				allowed = w.sds
			}
		}
	}
	if m.Descriptor().FullName() == "envoy.extensions.access_loggers.grpc.v3.CommonGrpcAccessLogConfig" {
		allowed = w.als
	}
	// What a tag shows is no destination.
	tag := m.Descriptor().FullName() == "envoy.type.tracing.v3.CustomTag.Metadata"
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := at + "." + string(fd.Name())
		if !tag && slices.ContainsFunc(byRequest, func(part string) bool { return strings.Contains(string(fd.Name()), part) }) {
			w.found = append(w.found, Misuse{At: at + ": lets a request choose"})
		}
		switch {
		case fd.IsList():
			for i := range v.List().Len() {
				w.value(fd, v.List().Get(i), at, allowed)
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				w.text(fd, k.String(), at, "")
				w.value(fd.MapValue(), v, at, allowed)
				return true
			})
		default:
			w.value(fd, v, at, allowed)
		}
		return true
	})
}

func (w *misuses) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, at, allowed string) {
	switch {
	case fd.Message() != nil:
		w.message(v.Message(), at, allowed)
	case fd.Kind() == protoreflect.StringKind:
		if fd.FullName() != "envoy.config.core.v3.GrpcService.EnvoyGrpc.cluster_name" {
			allowed = ""
		}
		w.text(fd, v.String(), at, allowed)
	}
}

func (w *misuses) text(fd protoreflect.FieldDescriptor, s, at, allowed string) {
	if (s != allowed || allowed == "") && slices.Contains(w.reserved, s) {
		w.found = append(w.found, Misuse{Field: fd.FullName(), At: fmt.Sprintf("%s: %q", at, s)})
	}
}
