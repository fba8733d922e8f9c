package webhook

import (
	"strconv"

	"google.golang.org/protobuf/proto"
	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// Fault is one rule that an object breaks.
type Fault struct {
	// Path is the field at fault in the names a person writes, such as
	// "spec.http[0].match[1].uri". The key of a map is a step like a field's name,
	// or quoted if it holds other things than letters, digits, "-" and "_":
	// spec.labels["app.kubernetes.io/name"]. "" means the whole object. It may end
	// at a field that is absent, when its absence is the fault.
	Path string
	// Warning is true when Istio would take the object and only warn.
	Warning bool
	// Message says what is wrong and what to write instead.
	Message string
}

// Object is one decoded manifest: its head, and its spec as a message of istio.io/api.
type Object struct {
	Kind, Namespace, Name string
	Labels, Annotations   map[string]string
	// Spec must be non-nil.
	Spec proto.Message
}

// defaultNamespace is where an object without a namespace lands.
const defaultNamespace = "default"

// Validate judges o by the rules of Istio's validating webhook and returns all
// faults, metadata first. An object without a fault that is not a Warning is valid.
func Validate(o Object) []Fault {
	var faults []Fault
	if o.Namespace == "" {
		o.Namespace = defaultNamespace
	}
	annotations(cursor{faults: &faults}.at("metadata"), o)
	spec(cursor{faults: &faults}.at("spec"), o)
	return faults
}

func spec(c cursor, o Object) {
	switch s := o.Spec.(type) {
	case *networking.VirtualService:
		virtualService(c, o, s)
	case *networking.DestinationRule:
		destinationRule(c, o, s)
	case *networking.ServiceEntry:
		serviceEntry(c, o, s)
	case *networking.WorkloadEntry:
		workloadEntry(c, o, s)
	case *networking.WorkloadGroup:
		workloadGroup(c, o, s)
	case *networking.Sidecar:
		sidecar(c, o, s)
	case *networking.Gateway:
		gateway(c, o, s)
	case *networking.EnvoyFilter:
		envoyFilter(c, o, s)
	case *v1beta1.ProxyConfig:
		proxyConfig(c, o, s)
	case *security.AuthorizationPolicy:
		authorizationPolicy(c, o, s)
	case *security.PeerAuthentication:
		peerAuthentication(c, o, s)
	case *security.RequestAuthentication:
		requestAuthentication(c, o, s)
	case *telemetryv1alpha1.Telemetry:
		telemetry(c, o, s)
	case *extensions.WasmPlugin:
		wasmPlugin(c, o, s)
	case *extensions.TrafficExtension:
		trafficExtension(c, o, s)
	default:
		c.wrong("there are no rules for the kind %q", o.Kind)
	}
}

// annotations judges those that Istio gives a meaning in validation itself.
func annotations(c cursor, o Object) {
	for _, internal := range []string{
		metakeys.AlwaysReject, metakeys.ParentNamespace, metakeys.Parents,
	} {
		if _, set := o.Annotations[internal]; set {
			c.entry("annotations", internal).wrong("the annotation is internal to Istio; remove it")
		}
	}
	v, set := o.Annotations[metakeys.DryRun]
	if !set {
		return
	}
	c = c.entry("annotations", metakeys.DryRun)
	p, policy := o.Spec.(*security.AuthorizationPolicy)
	switch {
	case !policy:
		c.wrong("only an AuthorizationPolicy can be tried out; remove the annotation")
	case p.Action != security.AuthorizationPolicy_ALLOW && p.Action != security.AuthorizationPolicy_DENY:
		c.wrong("only the actions ALLOW and DENY can be tried out, not %s; remove the annotation", p.Action)
	default:
		if _, err := strconv.ParseBool(v); err != nil {
			c.wrong("%q is neither \"true\" nor \"false\"", v)
		}
	}
}
