package manifest

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/localaddr"
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

// filePaths are the fields whose values are names of files to an Envoy. Tests find
// them: one builds Envoy's configuration of every field there is, and one looks for
// their names in all kinds.
//
//nolint:gochecknoglobals // a read-only table
var filePaths = map[protoreflect.FullName]bool{
	"istio.networking.v1alpha3.ClientTLSSettings.ca_certificates":                   true,
	"istio.networking.v1alpha3.ClientTLSSettings.ca_crl":                            true,
	"istio.networking.v1alpha3.ClientTLSSettings.client_certificate":                true,
	"istio.networking.v1alpha3.ClientTLSSettings.private_key":                       true,
	"istio.networking.v1alpha3.ServerTLSSettings.ca_certificates":                   true,
	"istio.networking.v1alpha3.ServerTLSSettings.ca_crl":                            true,
	"istio.networking.v1alpha3.ServerTLSSettings.private_key":                       true,
	"istio.networking.v1alpha3.ServerTLSSettings.server_certificate":                true,
	"istio.networking.v1alpha3.ServerTLSSettings.TLSCertificate.ca_certificates":    true,
	"istio.networking.v1alpha3.ServerTLSSettings.TLSCertificate.private_key":        true,
	"istio.networking.v1alpha3.ServerTLSSettings.TLSCertificate.server_certificate": true,
}

// systemRoots is what stands in the place of a file for the roots of the machine.
const systemRoots = "system"

// IsFilePath reports whether the values of a field of a manifest are names of files
// to an Envoy.
func IsFilePath(field protoreflect.FullName) bool { return filePaths[field] }

// endpointAddress is the field whose values other hosts connect to.
const endpointAddress protoreflect.FullName = "istio.networking.v1alpha3.WorkloadEntry.address"

// hostPaths reports the values of an object that name a unix socket or a file which
// the source may not name: an Envoy opens both as its own user, who is not the one
// that wrote the object. Unix sockets are judged in every field, so one that is built
// later is judged as well. So it is with endpoints at addresses that each host has for
// itself: ports that listen there trust who can reach them.
func hostPaths(o *Object, opts *Options, r *reporter) {
	report := func(what, flag string) func(path, value string) {
		return func(path, value string) {
			r.add(CodeNotInForce, o.root.Nearest(path), path, fmt.Sprintf("not in force: %q is a %s, which an Envoy would open as its own user, "+
				"and this source may not name any; name it with %s to allow that; the object is kept out whole", value, what, flag))
		}
	}
	w := hostPathWalk{at: tree.Trail{Base: "spec"}}
	if opts.NoUnixSockets {
		w.socket = report("unix socket", "--allow-unix-sockets")
	}
	if opts.NoFiles {
		w.file = report("file", "--allow-files")
	}
	if opts.NoLocalAddresses {
		w.local = func(path, value, what string) {
			r.add(CodeNotInForce, o.root.Nearest(path), path, fmt.Sprintf("not in force: %q is %s, at which an Envoy of another host would find what that host has for itself, "+
				"and this source may not name any; name it with --allow-local-addresses to allow that; the object is kept out whole", value, what))
		}
		w.lookedUp(o.Spec)
	}
	if w.socket != nil || w.file != nil || w.local != nil {
		w.message(o.Spec.ProtoReflect())
	}
}

// lookedUp judges the hosts of a ServiceEntry that are its endpoints.
func (w *hostPathWalk) lookedUp(spec any) {
	s, ok := spec.(*networking.ServiceEntry)
	if !ok || !isDNS(resolution(s.GetResolution())) || len(s.GetEndpoints()) > 0 || s.GetWorkloadSelector() != nil {
		return
	}
	for i, h := range s.GetHosts() {
		if what := localaddr.What(h); what != "" {
			w.local(fmt.Sprintf("spec.hosts[%d]", i), h, what)
		}
	}
}

// hostPathWalk finds unix sockets, files and local addresses; nil means that they are not looked for.
type hostPathWalk struct {
	at           tree.Trail
	socket, file func(path, value string)
	local        func(path, value, what string)
}

func (w *hostPathWalk) message(m protoreflect.Message) {
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
				w.value(fd, fd, v.List().Get(i))
				w.at.Up()
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				w.at.Field(k.String())
				defer w.at.Up()
				w.text(fd, k.String())
				w.value(fd, fd.MapValue(), v)
				return true
			})
		default:
			w.value(fd, fd, v)
		}
		return true
	})
}

// value judges a value of the field.
func (w *hostPathWalk) value(field, value protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch {
	case value.Message() != nil:
		w.message(v.Message())
	case value.Kind() == protoreflect.StringKind:
		w.text(field, v.String())
	}
}

func (w *hostPathWalk) text(field protoreflect.FieldDescriptor, s string) {
	switch {
	case w.socket != nil && hasScheme(s, "unix:"):
		w.socket(w.at.String(), s)
	case w.file != nil && (hasScheme(s, "file:") || filePaths[field.FullName()] && s != systemRoots && s != ""):
		w.file(w.at.String(), s)
	case w.local != nil && field.FullName() == endpointAddress:
		if what := localaddr.What(s); what != "" {
			w.local(w.at.String(), s, what)
		}
	}
}

func hasScheme(s, scheme string) bool {
	return len(s) >= len(scheme) && strings.EqualFold(s[:len(scheme)], scheme)
}
