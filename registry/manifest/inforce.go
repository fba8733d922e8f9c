package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
	networkingbeta "istio.io/api/networking/v1beta1"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
)

// inForce lists, for each kind that takes part in a mesh, the fields this build
// implements, without indices and keys. A path stands for everything below it.
// "path=A,B" implements only those values of it. A path with a leading "!" (or
// "!path=A") is taken out of a wider one. A field that is set and not listed
// keeps its whole object out: nothing is ignored silently. Kinds that are not
// here are not in force at all.
//
//nolint:gochecknoglobals // a read-only table
var inForce = map[mesh.Kind][]string{
	mesh.KindAuthorizationPolicy: {
		"action=ALLOW,DENY,AUDIT,CUSTOM",
		"provider",
		"rules",
		"selector",
		"targetRef",
		"targetRefs",
	},
	mesh.KindDestinationRule: {
		"!subsets.trafficPolicy.portLevelSettings.tls.caCertCredentialName", "!subsets.trafficPolicy.tls.caCertCredentialName",
		"!trafficPolicy.portLevelSettings.tls.caCertCredentialName", "!trafficPolicy.tls.caCertCredentialName",
		"exportTo",
		"host",
		"subsets.labels",
		"subsets.name",
		"subsets.trafficPolicy.connectionPool",
		"subsets.trafficPolicy.loadBalancer.backendUtilization",
		"subsets.trafficPolicy.loadBalancer.consistentHash",
		"subsets.trafficPolicy.loadBalancer.localityLbSetting",
		"subsets.trafficPolicy.loadBalancer.simple",
		"subsets.trafficPolicy.loadBalancer.warmup",
		"subsets.trafficPolicy.loadBalancer.warmupDurationSecs",
		"subsets.trafficPolicy.outlierDetection",
		"subsets.trafficPolicy.portLevelSettings.connectionPool",
		"subsets.trafficPolicy.portLevelSettings.loadBalancer.backendUtilization",
		"subsets.trafficPolicy.portLevelSettings.loadBalancer.consistentHash",
		"subsets.trafficPolicy.portLevelSettings.loadBalancer.localityLbSetting",
		"subsets.trafficPolicy.portLevelSettings.loadBalancer.simple",
		"subsets.trafficPolicy.portLevelSettings.loadBalancer.warmup",
		"subsets.trafficPolicy.portLevelSettings.loadBalancer.warmupDurationSecs",
		"subsets.trafficPolicy.portLevelSettings.outlierDetection",
		"subsets.trafficPolicy.portLevelSettings.port",
		"subsets.trafficPolicy.portLevelSettings.tls",
		"subsets.trafficPolicy.proxyProtocol",
		"subsets.trafficPolicy.retryBudget",
		"subsets.trafficPolicy.tls",
		"subsets.trafficPolicy.tunnel",
		"trafficPolicy.connectionPool",
		"trafficPolicy.loadBalancer.backendUtilization",
		"trafficPolicy.loadBalancer.consistentHash",
		"trafficPolicy.loadBalancer.localityLbSetting",
		"trafficPolicy.loadBalancer.simple",
		"trafficPolicy.loadBalancer.warmup",
		"trafficPolicy.loadBalancer.warmupDurationSecs",
		"trafficPolicy.outlierDetection",
		"trafficPolicy.portLevelSettings.connectionPool",
		"trafficPolicy.portLevelSettings.loadBalancer.backendUtilization",
		"trafficPolicy.portLevelSettings.loadBalancer.consistentHash",
		"trafficPolicy.portLevelSettings.loadBalancer.localityLbSetting",
		"trafficPolicy.portLevelSettings.loadBalancer.simple",
		"trafficPolicy.portLevelSettings.loadBalancer.warmup",
		"trafficPolicy.portLevelSettings.loadBalancer.warmupDurationSecs",
		"trafficPolicy.portLevelSettings.outlierDetection",
		"trafficPolicy.portLevelSettings.port",
		"trafficPolicy.portLevelSettings.tls",
		"trafficPolicy.proxyProtocol",
		"trafficPolicy.retryBudget",
		"trafficPolicy.tls",
		"trafficPolicy.tunnel",
		"workloadSelector",
	},
	mesh.KindGateway: {
		"selector",
		"servers",
	},
	mesh.KindMeshConfig: meshFieldsInForce(),
	mesh.KindPeerAuthentication: {
		"mtls",
		"portLevelMtls",
		"selector",
	},
	mesh.KindProxyConfig: {
		"concurrency",
		"environmentVariables",
		"image",
		"selector",
	},
	mesh.KindRequestAuthentication: {
		"jwtRules.audiences",
		"jwtRules.forwardOriginalToken",
		"jwtRules.fromCookies",
		"jwtRules.fromHeaders",
		"jwtRules.fromParams",
		"jwtRules.issuer",
		"jwtRules.jwks",
		"jwtRules.jwksUri",
		"jwtRules.outputClaimToHeaders",
		"jwtRules.outputPayloadToHeader",
		"jwtRules.presence=OPTIONAL,REQUIRED",
		"jwtRules.spaceDelimitedClaims",
		"jwtRules.timeout",
		"selector",
		"targetRef",
		"targetRefs",
	},
	mesh.KindServiceEntry: {
		"addresses",
		"endpoints",
		"exportTo",
		"hosts",
		"location",
		"ports",
		"resolution",
		"subjectAltNames",
		"workloadSelector",
	},
	mesh.KindSidecar: {
		"!ingress.tls.insecureSkipVerify",
		"egress.bind",
		"egress.captureMode",
		"egress.hosts",
		"egress.port",
		"ingress.bind",
		"inboundConnectionPool",
		"ingress.captureMode",
		"ingress.connectionPool",
		"ingress.defaultEndpoint",
		"ingress.port",
		"ingress.tls",
		"outboundTrafficPolicy.egressProxy",
		"outboundTrafficPolicy.mode=REGISTRY_ONLY,ALLOW_ANY",
		"workloadSelector",
	},
	mesh.KindTelemetry: {
		"accessLogging",
		"metrics",
		"selector",
		"targetRef",
		"targetRefs",
		"tracing",
	},
	mesh.KindVirtualService: {
		"!http.fault.abort.http2Error",
		"!http.fault.delay.exponentialDelay",
		"exportTo",
		"gateways",
		"hosts",
		"http.corsPolicy",
		"http.delegate",
		"http.directResponse",
		"http.fault",
		"http.headers",
		"http.match.authority",
		"http.match.gateways",
		"http.match.headers",
		"http.match.ignoreUriCase",
		"http.match.method",
		"http.match.name",
		"http.match.port",
		"http.match.queryParams",
		"http.match.scheme",
		"http.match.sourceLabels",
		"http.match.sourceNamespace",
		"http.match.statPrefix",
		"http.match.uri",
		"http.match.withoutHeaders",
		"http.mirror",
		"http.mirrorPercent",
		"http.mirrorPercentage",
		"http.mirrors",
		"http.name",
		"http.redirect",
		"http.retries",
		"http.rewrite",
		"http.route.destination",
		"http.route.headers",
		"http.route.weight",
		"http.timeout",
		"tcp.match.destinationSubnets",
		"tcp.match.gateways",
		"tcp.match.port",
		"tcp.match.sourceLabels",
		"tcp.match.sourceNamespace",
		"tcp.match.sourceSubnet",
		"tcp.route",
		"tls.match.destinationSubnets",
		"tls.match.gateways",
		"tls.match.port",
		"tls.match.sniHosts",
		"tls.match.sourceLabels",
		"tls.match.sourceNamespace",
		"tls.route",
	},
	mesh.KindWorkloadEntry: {
		"address",
		"labels",
		"locality",
		"network",
		"ports",
		"serviceAccount",
		"weight",
	},
	mesh.KindWorkloadGroup: {
		"metadata",
		"probe",
		"template",
	},
}

// InForce returns the table of what this build implements, by kind, in the
// notation of its comment; for documentation and tests.
func InForce() map[mesh.Kind][]string {
	out := make(map[mesh.Kind][]string, len(inForce))
	for kind, list := range inForce {
		out[kind] = slices.Clone(list)
	}
	return out
}

// notInForce finds what a valid object uses and this build does not implement,
// or must not hand to an Envoy. What is left out of an object that is in force is a warning,
// in warnings.
func notInForce(o *Object, opts *Options, warnings *reporter) []Fault {
	r := reporter{source: o.source, path: o.Meta.Origin.Path, key: o.Meta.Key}
	rules, ok := inForce[o.Meta.Kind]
	if !ok {
		r.add(CodeNotInForce, o.root.Nearest("kind"), "kind", fmt.Sprintf("not in force: this version of Fairlead does not implement %s%s", o.Meta.Kind, o.consequence()))
		return r.finish()
	}
	report := func(path, value string) {
		r.add(CodeNotInForce, o.root.Nearest(path), path, notInForceMessage(value)+o.consequence())
	}
	c := forceCheck{rules: rules, report: report, at: tree.Trail{Base: "spec"}}
	c.message(o.Spec.ProtoReflect(), forceFieldsOf(o.Meta.Kind))
	unfit(o, &r)
	if spec, ok := o.Spec.(*networkingbeta.ProxyConfig); ok {
		checkProxyConfigKind(o, spec, func(path, why string) {
			r.add(CodeNotInForce, o.root.Nearest(path), path, "not in force: "+why+"; the object is kept out whole")
		}, warnings)
	}
	warnAttached(o, warnings)
	warnNoEffect(o, warnings)
	warnKeys(o, warnings)
	hostPaths(o, opts, &r)
	return r.finish()
}

// consequence says what an object does although it is not in force, or "".
func (o *Object) consequence() string {
	denying := o.unenforced()
	if denying == nil {
		return ""
	}
	return Consequence(denying.Unenforced[0])
}

// Consequence is the rest of a sentence that begins with why a security policy is not in force:
// which workloads deny every request, and what to do.
func Consequence(u *mesh.Unenforced) string {
	which := "all workloads of namespace " + strconv.Quote(u.Namespace) + " (of the mesh, if that is the root namespace)"
	if labels := u.Selector; len(labels) > 0 {
		list := make([]string, 0, len(labels))
		for _, k := range slices.Sorted(maps.Keys(labels)) {
			list = append(list, k+"="+labels[k])
		}
		which = "the workloads with " + strings.Join(list, ", ")
	}
	return ", and so " + which + " deny every request; remove the object, or start the server with --accept-unenforced to let all of them through"
}

func notInForceMessage(value string) string {
	const kept = "the object is kept out whole"
	if value != "" {
		return fmt.Sprintf("not in force: this version of Fairlead does not implement the value %s; %s", value, kept)
	}
	return "not in force: this version of Fairlead does not implement this field; " + kept
}

// forceFields are the fields of a message, each with what the rules of a kind say
// of it.
type forceFields map[protoreflect.FieldNumber]*forceField

type forceField struct {
	// pattern is the path of the field, as the rules write it.
	pattern string
	verdict ruleVerdict
	below   forceFields // of a message of which some fields are implemented
}

// forceTables are the fields of the kinds that are in force, looked up once.
//
//nolint:gochecknoglobals // a read-only table, made once
var forceTables = sync.OnceValue(func() map[mesh.Kind]forceFields {
	out := map[mesh.Kind]forceFields{}
	for kind, rules := range inForce {
		if spec := newSpec(kind); spec != nil {
			out[kind] = (&forceCheck{rules: rules}).fields(spec.ProtoReflect().Descriptor(), "")
		}
	}
	return out
})

func forceFieldsOf(kind mesh.Kind) forceFields { return forceTables()[kind] }

// fields looks up all fields of a message. It ends, for only what leads to a rule is
// looked into.
func (c *forceCheck) fields(d protoreflect.MessageDescriptor, pattern string) forceFields {
	out := make(forceFields, d.Fields().Len())
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		f := &forceField{pattern: join(pattern, fd.JSONName())}
		if f.verdict = c.lookUp(f.pattern); f.verdict == ruleSome {
			below := fd.Message()
			if fd.IsMap() {
				below = fd.MapValue().Message()
			}
			if below != nil {
				f.below = c.fields(below, f.pattern)
			}
		}
		out[fd.Number()] = f
	}
	return out
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// forceCheck walks a message beside a list of rules.
type forceCheck struct {
	rules  []string
	report func(path, value string)
	// at is the path of the value that is looked at.
	at tree.Trail
}

func (c *forceCheck) message(m protoreflect.Message, fields forceFields) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		c.at.Field(fd.JSONName())
		c.field(fd, v, fields[fd.Number()])
		c.at.Up()
		return true
	})
}

func (c *forceCheck) field(fd protoreflect.FieldDescriptor, v protoreflect.Value, f *forceField) {
	switch {
	case f.verdict == ruleNone:
		c.report(c.at.String(), "")
	case f.verdict == ruleAll:
	case fd.IsList():
		for i := range v.List().Len() {
			c.at.Item(i)
			c.value(fd, v.List().Get(i), f)
			c.at.Up()
		}
	case fd.IsMap():
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			c.at.Field(k.String())
			c.value(fd.MapValue(), v, f)
			c.at.Up()
			return true
		})
	default:
		c.value(fd, v, f)
	}
}

// value looks at one value of a field of which some is implemented.
func (c *forceCheck) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, f *forceField) {
	if fd.Message() != nil {
		c.message(v.Message(), f.below)
		return
	}
	if value := scalarText(fd, v); !c.allows(f.pattern, value) {
		if value != "" {
			value += c.only(f.pattern)
		}
		c.report(c.at.String(), value)
	}
}

// only names the values of a field that are implemented, where they are listed.
func (c *forceCheck) only(pattern string) string {
	for _, rule := range c.rules {
		if path, list, values := strings.Cut(rule, "="); values && path == pattern {
			return ", only " + strings.ReplaceAll(list, ",", ", ")
		}
	}
	return ""
}

type ruleVerdict uint8

const (
	ruleNone ruleVerdict = iota // not implemented
	ruleSome                    // look below, or at the value
	ruleAll                     // implemented, with all below
)

func (c *forceCheck) lookUp(pattern string) ruleVerdict {
	verdict := ruleNone
	for _, rule := range c.rules {
		rule, deny := strings.CutPrefix(rule, "!")
		path, _, values := strings.Cut(rule, "=")
		switch {
		case deny && path == pattern && !values:
			return ruleNone
		case deny && within(path, pattern):
			verdict = ruleSome
		case deny:
		case verdict == ruleSome && c.denied(pattern):
		case within(pattern, path) && !values:
			verdict = ruleAll
		case within(path, pattern) && verdict == ruleNone:
			verdict = ruleSome
		}
	}
	return verdict
}

// denied reports whether a rule takes something out of what is at or below a
// pattern.
func (c *forceCheck) denied(pattern string) bool {
	return slices.ContainsFunc(c.rules, func(rule string) bool {
		rule, deny := strings.CutPrefix(rule, "!")
		path, _, _ := strings.Cut(rule, "=")
		return deny && within(path, pattern)
	})
}

// allows reports whether a value of a field that has rules for its values, or
// is below a field with exceptions, is implemented.
func (c *forceCheck) allows(pattern, value string) bool {
	ok := false
	for _, rule := range c.rules {
		rule, deny := strings.CutPrefix(rule, "!")
		path, list, values := strings.Cut(rule, "=")
		listed := !values || slices.Contains(strings.Split(list, ","), value)
		switch {
		case deny && path == pattern && listed:
			return false
		case !deny && within(pattern, path) && listed:
			ok = true
		}
	}
	return ok
}

func scalarText(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	if fd.Enum() != nil {
		if value := fd.Enum().Values().ByNumber(v.Enum()); value != nil {
			return string(value.Name())
		}
	}
	return v.String()
}
