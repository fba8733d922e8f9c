package manifest

import (
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// What parts of a configuration cost an Envoy, in units of 500 bytes: bench/ENVOY.md has the measurements.
const (
	clusterWeight  = 100  // 48 kB
	contextWeight  = 1000 // of TLS with authorities of its own: 0.3 MB, and 1.2 MB before Envoy 1.39
	nameWeight     = 2    // of such a context, 0.9 kB
	routeWeight    = 6    // 3 kB
	valueWeight    = 2    // of a route, a header to add for instance: 0.7 kB
	templateWeight = 12   // of a path with {*}: 6 kB
	clauseWeight   = 2    // of a policy, 0.7 kB
	textPerUnit    = 128
	stepsPerUnit   = 5 // instructions of a program, 100 bytes each
)

// weightOf is what an object costs each proxy, in units of 500 bytes. For VirtualServices and DestinationRules, it
// is the cost for each port of the services that they are for.
func weightOf(spec proto.Message) int {
	switch spec := spec.(type) {
	case *networking.ServiceEntry:
		return saturated(len(spec.GetHosts())*len(spec.GetPorts()), clusterWeight)
	case *networking.VirtualService:
		n := 0
		for _, r := range spec.GetHttp() {
			n += weightOfRoute(r)
		}
		return n + routeWeight*(len(spec.GetTcp())+len(spec.GetTls()))
	case *networking.DestinationRule:
		clusters := 1 + len(spec.GetSubsets())
		return saturated(len(spec.GetSubsets()), clusterWeight) + saturated(clusters, contextOf(spec))
	case *security.AuthorizationPolicy:
		n := valuesIn(spec.ProtoReflect()) * valueWeight
		for _, r := range spec.GetRules() {
			for _, to := range r.GetTo() {
				n += templateWeight * (templatesIn(to.GetOperation().GetPaths()) + templatesIn(to.GetOperation().GetNotPaths()))
			}
			n += saturated((len(r.GetFrom())+len(r.GetTo()))*max(1, len(r.GetWhen())), clauseWeight)
		}
		return n
	default:
		return 0
	}
}

// weightOfRoute counts all that a route says once for each of its matches.
func weightOfRoute(r *networking.HTTPRoute) int {
	all, size, steps := valuesIn(r.ProtoReflect()), proto.Size(r), stepsIn(r)
	matches := 0
	for _, m := range r.GetMatch() {
		values, n := valuesIn(m.ProtoReflect()), stepsIn(m)
		all -= max(1, values)
		steps -= n
		matches += values*valueWeight + n/stepsPerUnit + proto.Size(m)/textPerUnit
	}
	size -= proto.Size(&networking.HTTPRoute{Match: r.GetMatch()})
	return matches + saturated(max(1, len(r.GetMatch())), routeWeight+max(0, all)*valueWeight+size/textPerUnit+steps/stepsPerUnit)
}

func templatesIn(paths []string) int {
	n := 0
	for _, p := range paths {
		if strings.Contains(p, "{") {
			n++
		}
	}
	return n
}

// contextOf is the weight of the TLS settings of each cluster of a rule; 0 for those of the mesh.
func contextOf(spec *networking.DestinationRule) int {
	most := 0
	add := func(tls *networking.ClientTLSSettings) {
		switch n := len(tls.GetSubjectAltNames()) * nameWeight; tls.GetMode() {
		case networking.ClientTLSSettings_SIMPLE, networking.ClientTLSSettings_MUTUAL:
			most = max(most, contextWeight+n)
		case networking.ClientTLSSettings_ISTIO_MUTUAL:
			most = max(most, n)
		case networking.ClientTLSSettings_DISABLE:
		}
	}
	policies := []*networking.TrafficPolicy{spec.GetTrafficPolicy()}
	for _, s := range spec.GetSubsets() {
		policies = append(policies, s.GetTrafficPolicy())
	}
	for _, p := range policies {
		add(p.GetTls())
		for _, s := range p.GetPortLevelSettings() {
			add(s.GetTls())
		}
	}
	return most
}

// stepsIn are the instructions of all programs of a message.
func stepsIn(m proto.Message) int {
	n := 0
	expressions(m.ProtoReflect(), "", func(_, expression string) { n += mesh.Program(expression) })
	return n
}

// expressions calls f for each regular expression in a message, with its path.
func expressions(m protoreflect.Message, path string, f func(path, expression string)) {
	switch x := m.Interface().(type) {
	case *networking.StringMatch:
		if re := x.GetRegex(); re != "" {
			f(path+".regex", re)
		}
		return
	case *networking.RegexRewrite:
		f(path+".match", x.GetMatch())
		return
	}
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		if !m.Has(fd) {
			continue
		}
		at, v := path+"."+fd.JSONName(), m.Get(fd)
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() == nil {
				continue
			}
			keys := map[string]protoreflect.MapKey{}
			v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				keys[k.String()] = k
				return true
			})
			for _, k := range sortedKeys(keys) {
				expressions(v.Map().Get(keys[k]).Message(), fmt.Sprintf("%s[%q]", at, k), f)
			}
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				expressions(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", at, i), f)
			}
		default:
			expressions(v.Message(), at, f)
		}
	}
}

// Weight is what the object costs each proxy, in units of 500 bytes, for each port of the services that it is for; 0 if it
// is not valid.
func (o *Object) Weight() int {
	if o.Spec == nil {
		return 0
	}
	return weightOf(o.Spec)
}

// wideEscape is a character beyond a byte, which Envoys from 1.39 on refuse.
var wideEscape = regexp.MustCompile(`\\x\{0*[0-9A-Fa-f]{3,}\}`)

// limitExpressions refuses an object of a source that is bound to namespaces with a regular expression that is too
// large for an Envoy, or that some releases refuse: an Envoy refuses the route configuration with it, and so what
// others have in it.
func (o *Object) limitExpressions(r *reporter) {
	if o.Spec == nil || HasErrors(r.faults) {
		return
	}
	expressions(o.Spec.ProtoReflect(), "spec", func(at, expression string) {
		if n := mesh.Program(expression); n > mesh.MaxProgram {
			r.add(CodeExpression, o.root.Nearest(at), at, fmt.Sprintf("refused: the program of the regular expression has %d instructions in a proxy; in a source that is bound to namespaces it may have %d: "+
				"repeat less, or match a prefix and fewer characters", n, mesh.MaxProgram))
		} else if x := wideEscape.FindString(expression); x != "" {
			r.add(CodeExpression, o.root.Nearest(at), at, fmt.Sprintf("refused: Envoys from 1.39 on do not take %s in a regular expression, and would refuse the routes of others with it: write the character itself", x))
		}
	})
}
