package manifest

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"
)

// MaxExpansion is how large an object may be after expansion. Texts are bounded in bytes, but
// each host of a ServiceEntry has all its ports, and each of these all endpoints: a text of
// 91 kB makes 1.6 million endpoints.
const MaxExpansion = 100_000

// unitSize is how many bytes of a message count as one, if it has fewer parts.
const unitSize = 1 << 10

// Expansion is what one object makes in the mesh, and so in proxies, at least. It depends on the
// object alone, so that every server finds the same.
type Expansion struct {
	// Count is at least 1.
	Count int
	// Field is the part that contributes most, such as "spec.endpoints".
	Field string
	// Terms says how the count is made, such as "20 hosts × 20 ports × 4096 endpoints".
	Terms string
}

// factor is a part of an object that is multiplied with others.
type factor struct {
	count       int
	name, field string
}

// expansionOf is what a specification makes after expansion.
func expansionOf(spec proto.Message) Expansion {
	switch spec := spec.(type) {
	case *networking.ServiceEntry:
		return product(
			factor{len(spec.GetHosts()), "hosts", "spec.hosts"},
			factor{len(spec.GetPorts()), "ports", "spec.ports"},
			largest(
				factor{max(len(spec.GetEndpoints()), units(spec.GetEndpoints())), "endpoints", "spec.endpoints"},
				factor{len(spec.GetAddresses()), "addresses", "spec.addresses"},
				factor{len(spec.GetSubjectAltNames()), "subject alternative names", "spec.subjectAltNames"},
			),
		)
	case *networking.VirtualService:
		return product(factor{len(spec.GetHosts()), "hosts", "spec.hosts"}, routesOf(spec))
	case *networking.DestinationRule:
		subsets := max(len(spec.GetSubsets()), units(spec.GetSubsets()))
		ports := len(spec.GetTrafficPolicy().GetPortLevelSettings())
		for _, s := range spec.GetSubsets() {
			ports = max(ports, len(s.GetTrafficPolicy().GetPortLevelSettings()))
		}
		return product(factor{subsets, "subsets", "spec.subsets"}, factor{ports, "ports with settings", "spec.trafficPolicy.portLevelSettings"})
	case *networking.WorkloadEntry: // services that select it count it
		return product(factor{max(1, proto.Size(spec)/unitSize), "endpoints", "spec"})
	default: // nothing in it is multiplied
		return product(factor{max(valuesIn(spec.ProtoReflect()), proto.Size(spec)/unitSize), "values", "spec"})
	}
}

// routesOf are the routes that each host of a VirtualService has: each match makes one, with all
// that the route says besides its matches.
func routesOf(spec *networking.VirtualService) factor {
	http, tcp, tls := 0, 0, 0
	for _, r := range spec.GetHttp() {
		m := r.GetMatch()
		http += max(1, len(m))*max(1, len(r.GetRoute())+len(r.GetMirrors()), (proto.Size(r)-proto.Size(&networking.HTTPRoute{Match: m}))/unitSize) + units(m)
	}
	for _, r := range spec.GetTcp() {
		m := r.GetMatch()
		tcp += max(1, len(m))*max(1, len(r.GetRoute()), (proto.Size(r)-proto.Size(&networking.TCPRoute{Match: m}))/unitSize) + units(m)
	}
	for _, r := range spec.GetTls() {
		m := r.GetMatch()
		tls += max(1, len(m))*max(1, len(r.GetRoute()), (proto.Size(r)-proto.Size(&networking.TLSRoute{Match: m}))/unitSize) + units(m)
	}
	f := largest(factor{http, "routes", "spec.http"}, factor{tcp, "routes", "spec.tcp"}, factor{tls, "routes", "spec.tls"})
	f.count = http + tcp + tls
	return f
}

// units are those of the bytes of messages.
func units[M proto.Message](list []M) int { return size(list) / unitSize }

func size[M proto.Message](list []M) int {
	n := 0
	for _, m := range list {
		n += proto.Size(m)
	}
	return n
}

func largest(list ...factor) factor {
	out := list[0]
	for _, f := range list[1:] {
		if f.count > out.count {
			out = f
		}
	}
	return out
}

// product multiplies; a factor that is not there counts as one.
func product(list ...factor) Expansion {
	e := Expansion{Count: 1, Field: largest(list...).field}
	var terms []string
	for _, f := range list {
		if f.count > 0 {
			e.Count = saturated(e.Count, f.count)
			terms = append(terms, fmt.Sprintf("%d %s", f.count, f.name))
		}
	}
	e.Terms = strings.Join(terms, " × ")
	return e
}

// saturated is a product that does not overflow: texts have at most 2^24 bytes.
func saturated(a, b int) int { return min(a*b, 1<<40) }

// valuesIn are the values in a message, at any depth.
func valuesIn(m protoreflect.Message) int {
	n := 0
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, x protoreflect.Value) bool {
				n += valuesOf(f.MapValue(), x)
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				n += valuesOf(f, v.List().Get(i))
			}
		default:
			n += valuesOf(f, v)
		}
		return true
	})
	return n
}

func valuesOf(f protoreflect.FieldDescriptor, v protoreflect.Value) int {
	if f.Message() == nil {
		return 1
	}
	return max(1, valuesIn(v.Message()))
}

// Expansion is what the object makes after expansion; nothing if it is not valid.
func (o *Object) Expansion() Expansion {
	if o.Spec == nil {
		return Expansion{}
	}
	return expansionOf(o.Spec)
}

// limitExpansion refuses an object that is too large after expansion.
func (o *Object) limitExpansion(r *reporter) {
	if o.Spec == nil || HasErrors(r.faults) {
		return
	}
	if e := expansionOf(o.Spec); e.Count > MaxExpansion {
		r.add(CodeExpansion, o.root.Nearest(e.Field), e.Field, fmt.Sprintf("%s make %d; one %s may have at most %d: use fewer, or split the object", e.Terms, e.Count, o.Meta.Kind, MaxExpansion))
	}
}
