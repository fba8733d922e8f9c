package manifest

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
)

// ignored is a field that Istio accepts, and that does nothing, here as there.
type ignored struct {
	// path is that of the field in the spec, without indexes.
	path string
	// why is the rest of a sentence: what to write in its stead, or what counts.
	why string
}

const pinsOfFiles = "the certificates of a Sidecar's port are in files, and caCertificates says whose clients may connect"

// noEffect are these fields, by kind.
//
//nolint:gochecknoglobals // a read-only table
var noEffect = map[mesh.Kind][]ignored{
	mesh.KindGateway: {{"servers.defaultEndpoint", "VirtualServices say where requests go"}},
	mesh.KindSidecar: {
		{"ingress.tls.caCertCredentialName", pinsOfFiles},
		{"ingress.tls.verifyCertificateHash", pinsOfFiles},
		{"ingress.tls.verifyCertificateSpki", pinsOfFiles},
	},
	mesh.KindVirtualService: {{"tcp.match.sourceSubnet", "the route is for clients of all addresses; an AuthorizationPolicy can name ipBlocks"}},
}

// warnNoEffect warns of what an object has of them.
func warnNoEffect(o *Object, warnings *reporter) {
	for _, f := range noEffect[o.Meta.Kind] {
		at := tree.Trail{Base: "spec"}
		eachSet(o.Spec.ProtoReflect(), f.path, &at, func() {
			path := at.String()
			name := f.path[strings.LastIndexByte(f.path, '.')+1:]
			warnings.warn(CodeNotInForce, o.root.Nearest(path), path, name+" has no effect, as in Istio: "+f.why)
		})
	}
}

// eachSet calls do at each place where a field, given by its path, is set.
func eachSet(m protoreflect.Message, path string, at *tree.Trail, do func()) {
	name, rest, more := strings.Cut(path, ".")
	fd := m.Descriptor().Fields().ByJSONName(name)
	if fd == nil || !m.Has(fd) {
		return
	}
	at.Field(name)
	defer at.Up()
	switch {
	case !more:
		do()
	case fd.IsList():
		for i := range m.Get(fd).List().Len() {
			at.Item(i)
			eachSet(m.Get(fd).List().Get(i).Message(), rest, at, do)
			at.Up()
		}
	default:
		eachSet(m.Get(fd).Message(), rest, at, do)
	}
}

// warnAttached warns of a policy that is for gateways or services of Kubernetes only.
func warnAttached(o *Object, warnings *reporter) {
	spec, ok := o.Spec.(targeted)
	if !ok || !attached(spec) {
		return
	}
	field := "targetRefs"
	if len(spec.GetTargetRefs()) == 0 {
		field = "targetRef"
	}
	warnings.warn(CodeNotInForce, o.root.Nearest("spec."+field), "spec."+field, "the policy has no effect: as in Istio, "+field+
		" attaches it to gateways and services of Kubernetes, and never to a sidecar; to apply it to workloads, use a selector")
}
