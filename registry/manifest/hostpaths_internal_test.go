package manifest

import (
	"maps"
	"regexp"
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestNoFieldNamesAUnixSocket puts one into every string of every kind, one at a
// time, however deep it lies: a field that an upgrade of istio.io/api brings is
// among them.
func TestNoFieldNamesAUnixSocket(t *testing.T) {
	t.Parallel()
	set, err := schema.New()
	if err != nil {
		t.Fatal(err)
	}
	places := 0
	for _, gvk := range set.Kinds() {
		spec := newSpec(mesh.Kind(gvk.Kind))
		if spec == nil {
			t.Errorf("%v has no message", gvk)
			continue
		}
		eachString(spec.ProtoReflect().Descriptor(), nil, func(path []protoreflect.FieldDescriptor) {
			places++
			m := spec.ProtoReflect().New()
			put(m, path, "unix:///run/a.sock")
			var found []string
			w := hostPathWalk{at: tree.Trail{Base: "spec"}, socket: func(path, _ string) { found = append(found, path) }}
			w.message(m)
			text := slices.ContainsFunc(path, func(fd protoreflect.FieldDescriptor) bool { return freeText[fd.ContainingMessage().FullName()] })
			if (len(found) == 0) != text {
				t.Errorf("%s: found %q in %v", gvk.Kind, found, m)
			}
		})
	}
	if places < 500 {
		t.Errorf("only %d strings: the test looks for them in the wrong way", places)
	}
}

// TestFieldsOfFilesAreListed looks through every kind for fields whose names say that
// they are keys or certificates, built or not: what comes new with istio.io/api has to
// be listed as a file, or here as something else.
func TestFieldsOfFilesAreListed(t *testing.T) {
	t.Parallel()
	set, err := schema.New()
	if err != nil {
		t.Fatal(err)
	}
	others := map[protoreflect.FullName]bool{
		// What certificates are compared with.
		"istio.networking.v1alpha3.ServerTLSSettings.verify_certificate_hash": true,
		"istio.networking.v1alpha3.ServerTLSSettings.verify_certificate_spki": true,
	}
	name, unused := regexp.MustCompile(`certificate|private_key|_crl|_file|file_|filename`), maps.Clone(filePaths)
	for _, gvk := range set.Kinds() {
		eachString(newSpec(mesh.Kind(gvk.Kind)).ProtoReflect().Descriptor(), nil, func(path []protoreflect.FieldDescriptor) {
			fd := path[len(path)-1]
			delete(unused, fd.FullName())
			if name.MatchString(string(fd.Name())) && !filePaths[fd.FullName()] && !others[fd.FullName()] {
				t.Errorf("%s: %s may be a file of the host's", gvk.Kind, fd.FullName())
			}
		})
	}
	if len(unused) > 0 {
		t.Errorf("listed as files, and in no kind: %v", slices.Sorted(maps.Keys(unused)))
	}
}

// TestFieldsOfEndpointsAreListed looks through every kind for fields whose names say that an Envoy
// may connect to what they say: what comes new with istio.io/api has to be judged as an endpoint, or
// listed here as something else.
func TestFieldsOfEndpointsAreListed(t *testing.T) {
	t.Parallel()
	set, err := schema.New()
	if err != nil {
		t.Fatal(err)
	}
	const p = "istio.networking.v1alpha3."
	others := map[protoreflect.FullName]string{
		p + "Destination.host":                         "a service of the mesh",
		p + "DestinationRule.host":                     "a service of the mesh",
		p + "ServiceEntry.hosts":                       "judged by lookedUp where it is an endpoint",
		p + "ServiceEntry.addresses":                   "where clients send to",
		p + "VirtualService.hosts":                     "what clients ask for",
		p + "Server.hosts":                             "what clients ask for",
		p + "Server.default_endpoint":                  "not in force",
		p + "TLSMatchAttributes.sni_hosts":             "what clients ask for",
		p + "IstioEgressListener.hosts":                "services of the mesh",
		p + "IstioIngressListener.default_endpoint":    "of the own host",
		p + "TrafficPolicy.TunnelSettings.target_host": "what an HTTP proxy is asked for",
		p + "HTTPHealthCheckConfig.host":               "of the own host, or the object is kept out",
		p + "TCPHealthCheckConfig.host":                "of the own host, or the object is kept out",
		"istio.security.v1beta1.Operation.hosts":       "what clients ask for",
		"istio.security.v1beta1.Operation.not_hosts":   "what clients ask for",
	}
	name, seen := regexp.MustCompile(`address|endpoint|hosts?$|target_host`), map[protoreflect.FullName]bool{}
	for _, gvk := range set.Kinds() {
		eachString(newSpec(mesh.Kind(gvk.Kind)).ProtoReflect().Descriptor(), nil, func(path []protoreflect.FieldDescriptor) {
			fd := path[len(path)-1]
			if seen[fd.FullName()] = true; fd.FullName() == endpointAddress || freeText[fd.ContainingMessage().FullName()] {
				return
			}
			if name.MatchString(string(fd.Name())) && others[fd.FullName()] == "" {
				t.Errorf("%s: %s may be what Envoys connect to", gvk.Kind, fd.FullName())
			}
		})
	}
	for fd := range others {
		if !seen[fd] {
			t.Errorf("listed, and in no kind: %s", fd)
		}
	}
}

// eachString calls visit with the path of every string below a message.
func eachString(d protoreflect.MessageDescriptor, path []protoreflect.FieldDescriptor, visit func([]protoreflect.FieldDescriptor)) {
	if slices.ContainsFunc(path, func(fd protoreflect.FieldDescriptor) bool { return fd.ContainingMessage() == d }) {
		return // it holds itself
	}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		value := fd
		if fd.IsMap() {
			value = fd.MapValue()
		}
		path := append(slices.Clone(path), fd)
		switch {
		case value.Message() != nil:
			eachString(value.Message(), path, visit)
		case value.Kind() == protoreflect.StringKind:
			visit(path)
		}
	}
}

// put sets the string at the end of a path.
func put(m protoreflect.Message, path []protoreflect.FieldDescriptor, s string) {
	fd, key := path[0], protoreflect.ValueOfString("key").MapKey()
	switch last := len(path) == 1; {
	case fd.IsMap() && last:
		m.Mutable(fd).Map().Set(key, protoreflect.ValueOfString(s))
	case fd.IsMap():
		put(m.Mutable(fd).Map().Mutable(key).Message(), path[1:], s)
	case fd.IsList() && last:
		m.Mutable(fd).List().Append(protoreflect.ValueOfString(s))
	case fd.IsList():
		put(m.Mutable(fd).List().AppendMutable().Message(), path[1:], s)
	case last:
		m.Set(fd, protoreflect.ValueOfString(s))
	default:
		put(m.Mutable(fd).Message(), path[1:], s)
	}
}
