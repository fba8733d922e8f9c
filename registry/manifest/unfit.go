package manifest

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Values that Istio's webhook lets pass and that must not reach an Envoy: those
// that every Envoy refuses, because its refusal would hold up all else in the
// same resource, and unix sockets by which whoever can write a manifest would
// get at a host's keys or files.

const (
	unixScheme = "unix://"
	// maxSNI and maxRing are bounds in Envoy's API.
	maxSNI  = 255
	maxRing = 8 << 20
)

// ownSockets are the names of the sockets of agents, servers and their Envoys.
// What connects to them through an Envoy is taken for that Envoy: it would be
// given the workload's key.
//
//nolint:gochecknoglobals // a read-only table
var ownSockets = []string{"sds.sock", "xds.sock", "admin.sock", "envoy-admin.sock"}

// ownDirs are the directories that are ours by default.
//
//nolint:gochecknoglobals // a read-only table
var ownDirs = []string{"/run/fairlead-", "/var/run/fairlead-", "/var/lib/fairlead-"}

// unfit reports the values of a valid object that must not reach an Envoy.
func unfit(o *Object, r *reporter) {
	u := unfitCheck{report: func(path, why string) {
		r.add(CodeNotInForce, o.root.Nearest(path), path, "not in force: "+why+"; the object is kept out whole"+o.consequence())
	}}
	u.formats(o.Spec.ProtoReflect(), "spec")
	switch spec := o.Spec.(type) {
	case *networking.VirtualService:
		u.strings(spec.ProtoReflect(), "spec")
		u.virtualService(spec)
	case *networking.DestinationRule:
		u.strings(spec.ProtoReflect(), "spec")
		u.destinationRule(spec)
		u.credentials(spec.ProtoReflect(), "spec")
	case *networking.Sidecar:
		for i, l := range spec.GetIngress() {
			u.endpoint(l.GetDefaultEndpoint(), fmt.Sprintf("spec.ingress[%d].defaultEndpoint", i))
			u.ingressTLS(l.GetTls(), fmt.Sprintf("spec.ingress[%d].tls", i))
			u.offers(l.GetTls(), fmt.Sprintf("spec.ingress[%d].tls", i))
		}
		for i, l := range spec.GetEgress() {
			u.bind(l.GetBind(), fmt.Sprintf("spec.egress[%d].bind", i))
		}
	case *networking.Gateway:
		u.strings(spec.ProtoReflect(), "spec")
		u.credentials(spec.ProtoReflect(), "spec")
		for i, s := range spec.GetServers() {
			u.bind(s.GetBind(), fmt.Sprintf("spec.servers[%d].bind", i))
			u.peers(s.GetTls().GetSubjectAltNames(), fmt.Sprintf("spec.servers[%d].tls.subjectAltNames", i))
			u.pins(s.GetTls(), fmt.Sprintf("spec.servers[%d].tls", i))
			u.offers(s.GetTls(), fmt.Sprintf("spec.servers[%d].tls", i))
		}
	case *networking.ServiceEntry:
		u.tlsHosts(spec)
		u.peers(spec.GetSubjectAltNames(), "spec.subjectAltNames")
		for i, e := range spec.GetEndpoints() {
			u.endpoint(e.GetAddress(), fmt.Sprintf("spec.endpoints[%d].address", i))
		}
	case *networking.WorkloadEntry:
		u.endpoint(spec.GetAddress(), "spec.address")
	case *telemetry.Telemetry:
		for i, l := range spec.GetAccessLogging() {
			if l.GetFilter() != nil {
				u.expression(l.GetFilter().GetExpression(), fmt.Sprintf("spec.accessLogging[%d].filter.expression", i))
			}
		}
		for i, m := range spec.GetMetrics() {
			u.metrics(m, fmt.Sprintf("spec.metrics[%d]", i))
		}
		for i, t := range spec.GetTracing() {
			u.tags(t.GetCustomTags(), fmt.Sprintf("spec.tracing[%d].customTags", i))
		}
	case *security.RequestAuthentication:
		for i, rule := range spec.GetJwtRules() {
			u.tokens(rule, fmt.Sprintf("spec.jwtRules[%d]", i))
		}
	}
}

type unfitCheck struct{ report func(path, why string) }

// endpoint judges an address that an Envoy would connect to.
func (u unfitCheck) endpoint(address, field string) {
	if sock, unix := strings.CutPrefix(address, unixScheme); unix && isOwnSocket(sock) {
		u.report(field, fmt.Sprintf("%q is, or may be, a socket of Fairlead, which gives out keys and takes commands", sock))
	}
}

// ingressTLS judges TLS that a port of a Sidecar ends: with the mode PASSTHROUGH, which is the default,
// istiod ends it with the certificate of the mesh.
func (u unfitCheck) ingressTLS(s *networking.ServerTLSSettings, field string) {
	if s != nil && s.GetMode() == networking.ServerTLSSettings_PASSTHROUGH {
		u.report(field, "a Sidecar's port passes TLS on if it has no tls; remove it, or use the mode SIMPLE, MUTUAL or OPTIONAL_MUTUAL")
	}
}

// expression judges an expression that an Envoy evaluates.
func (u unfitCheck) expression(text, field string) {
	if why := expressionFault(text); why != "" {
		u.report(field, why)
	}
}

// peers judges the identities that a server may have.
func (u unfitCheck) peers(names []string, at string) {
	for i, name := range names {
		if mesh.IsReservedIdentity(name) {
			u.report(at+"["+strconv.Itoa(i)+"]", fmt.Sprintf("%q is the identity of a host, not of a workload; write spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/NAME", name))
		}
	}
}

// bind judges an address that an Envoy would listen on. Envoy removes whatever
// has the path of a unix socket that it is to make, a file with content, too.
func (u unfitCheck) bind(address, field string) {
	sock, unix := strings.CutPrefix(address, unixScheme)
	switch {
	case !unix || strings.HasPrefix(sock, "@"):
	case isOwnSocket(sock):
		u.endpoint(address, field)
	case !strings.HasSuffix(sock, ".sock"):
		u.report(field, fmt.Sprintf("Envoy would delete the file %q to listen there; use a name that ends in .sock", sock))
	}
}

func isOwnSocket(sock string) bool {
	clean := path.Clean(sock)
	return slices.Contains(ownSockets, path.Base(clean)) ||
		slices.ContainsFunc(ownDirs, func(dir string) bool { return strings.HasPrefix(clean, dir) })
}

func (u unfitCheck) virtualService(spec *networking.VirtualService) {
	for i, h := range spec.GetHttp() {
		at := fmt.Sprintf("spec.http[%d]", i)
		sum := uint64(0)
		for _, d := range h.GetRoute() {
			sum += uint64(max(0, d.GetWeight()))
		}
		if sum > math.MaxUint32 {
			u.report(at+".route", fmt.Sprintf("the weights sum to %d; Envoy accepts at most %d", sum, uint32(math.MaxUint32)))
		}
		for j, m := range h.GetMatch() {
			if _, empty := m.GetQueryParams()[""]; empty {
				u.report(fmt.Sprintf("%s.match[%d].queryParams", at, j), "the name of a parameter is empty, which Envoy rejects")
			}
			u.claims(m, fmt.Sprintf("%s.match[%d]", at, j))
		}
	}
	for i, r := range spec.GetTls() {
		for j, m := range r.GetMatch() {
			for k, name := range m.GetSniHosts() {
				u.serverName(name, fmt.Sprintf("spec.tls[%d].match[%d].sniHosts[%d]", i, j, k))
			}
		}
	}
}

func (u unfitCheck) destinationRule(spec *networking.DestinationRule) {
	u.policy(spec.GetTrafficPolicy(), "spec.trafficPolicy")
	for i, s := range spec.GetSubsets() {
		u.policy(s.GetTrafficPolicy(), fmt.Sprintf("spec.subsets[%d].trafficPolicy", i))
	}
}

func (u unfitCheck) policy(p *networking.TrafficPolicy, at string) {
	u.balancing(p.GetLoadBalancer(), at+".loadBalancer")
	u.tls(p.GetTls(), at+".tls")
	if host := p.GetTunnel().GetTargetHost(); strings.Contains(host, "%") {
		u.report(at+".tunnel.targetHost", fmt.Sprintf("Envoy takes the percent sign of %q for a command operator; write the address without its zone", host))
	}
	for i, port := range p.GetPortLevelSettings() {
		at := fmt.Sprintf("%s.portLevelSettings[%d]", at, i)
		u.balancing(port.GetLoadBalancer(), at+".loadBalancer")
		u.tls(port.GetTls(), at+".tls")
	}
}

func (u unfitCheck) balancing(lb *networking.LoadBalancerSettings, at string) {
	u.utilization(lb.GetBackendUtilization(), at+".backendUtilization")
	hash := lb.GetConsistentHash()
	for field, size := range map[string]uint64{
		".minimumRingSize":          hash.GetMinimumRingSize(), //nolint:staticcheck // SA1019: people still write it
		".ringHash.minimumRingSize": hash.GetRingHash().GetMinimumRingSize(),
	} {
		if size > maxRing {
			u.report(at+".consistentHash"+field, fmt.Sprintf("the ring size is %d; Envoy accepts at most %d", size, maxRing))
		}
	}
}

// utilization judges durations, which Istio's schema and webhook do not. An Envoy refuses a negative one.
func (u unfitCheck) utilization(b *networking.LoadBalancerSettings_BackendUtilizationLB, at string) {
	for field, d := range map[string]*durationpb.Duration{
		".weightStabilizationPeriod": b.GetWeightStabilizationPeriod(),
		".weightExpirationPeriod":    b.GetWeightExpirationPeriod(),
		".weightUpdatePeriod":        b.GetWeightUpdatePeriod(),
	} {
		if d.AsDuration() < 0 {
			u.report(at+field, fmt.Sprintf("%s is negative; write a duration such as 10s", d.AsDuration()))
		}
	}
}

func (u unfitCheck) tls(t *networking.ClientTLSSettings, at string) {
	u.peers(t.GetSubjectAltNames(), at+".subjectAltNames")
	if n := len(t.GetSni()); n > maxSNI {
		u.report(at+".sni", fmt.Sprintf("the name has %d bytes; Envoy accepts at most %d", n, maxSNI))
	}
}

// strings looks for line breaks and zeros, which Envoy refuses in names and
// values of headers, paths and authorities, and which belong into no other text
// of a route but a body.
func (u unfitCheck) strings(m protoreflect.Message, at string) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := at + "." + fd.JSONName()
		switch {
		case fd.FullName() == "istio.networking.v1alpha3.HTTPBody.string":
		case fd.IsList():
			for i := range v.List().Len() {
				u.value(fd, v.List().Get(i), at+"["+strconv.Itoa(i)+"]")
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				at := tree.Join(at, k.String())
				u.text(k.String(), at)
				u.value(fd.MapValue(), v, at)
				return true
			})
		default:
			u.value(fd, v, at)
		}
		return true
	})
}

func (u unfitCheck) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, at string) {
	switch {
	case fd.Message() != nil:
		u.strings(v.Message(), at)
	case fd.Kind() == protoreflect.StringKind:
		u.text(v.String(), at)
	}
}

func (u unfitCheck) text(s, at string) {
	if strings.ContainsAny(s, "\r\n\x00") {
		u.report(at, "it holds a line break or a zero, which Envoy refuses")
	}
}
