package manifest

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

// Fragment is what the object gives to the mesh, in a Fragment that holds
// nothing else: short host names resolved, "." in exportTo replaced, gateways
// explicit. It is nil if the object gives nothing: it is not valid or not in
// force. A security policy that is not in force gives a [mesh.Unenforced].
func (o *Object) Fragment() *mesh.Fragment {
	if !o.Valid {
		return nil
	}
	if len(o.NotInForce) > 0 {
		return o.unenforced()
	}
	f := &mesh.Fragment{}
	switch spec := o.Spec.(type) {
	case *networking.VirtualService:
		f.VirtualServices = []*mesh.VirtualService{{Meta: o.Meta, Spec: o.virtualService(spec), ExportTo: o.exports(spec.GetExportTo())}}
	case *networking.DestinationRule:
		resolved := clone(spec)
		resolved.Host = o.fqdn(spec.GetHost())
		f.DestinationRules = []*mesh.DestinationRule{{Meta: o.Meta, Spec: resolved, ExportTo: o.exports(spec.GetExportTo())}}
	case *networking.ServiceEntry:
		f.Services = o.services(spec)
	case *networking.WorkloadEntry:
		f.Workloads = []*mesh.Workload{o.workloadEntry(spec)}
	case *networking.WorkloadGroup:
		f.WorkloadGroups = []*mesh.WorkloadGroup{{Meta: o.Meta, Spec: spec, ProxyConfig: o.proxyConfig}}
	case *networkingbeta.ProxyConfig:
		f.ProxyConfigs = []*mesh.ProxyConfig{{Meta: o.Meta, Spec: spec}}
	case *networking.Gateway:
		f.Gateways = []*mesh.Gateway{{Meta: o.Meta, Spec: o.gateway(spec), CreateIndex: o.createIndex}}
	case *networking.Sidecar:
		f.Sidecars = []*mesh.Sidecar{{Meta: o.Meta, Spec: spec}}
	case *security.PeerAuthentication:
		f.PeerAuthentications = []*mesh.PeerAuthentication{{Meta: o.Meta, Spec: spec}}
	case *security.AuthorizationPolicy:
		// As in Istio, what is attached by targetRefs is for no sidecar and no classic gateway
		// (pilot/pkg/model/policyattachment.go).
		if !attached(spec) {
			f.AuthorizationPolicies = []*mesh.AuthorizationPolicy{{Meta: o.Meta, Spec: spec, DryRun: o.dryRun()}}
		}
	case *security.RequestAuthentication:
		if !attached(spec) {
			f.RequestAuthentications = []*mesh.RequestAuthentication{{Meta: o.Meta, Spec: spec, Keys: inlineKeys(spec)}}
		}
	case *telemetry.Telemetry:
		if !attached(spec) {
			f.Telemetries = []*mesh.Telemetry{{Meta: o.Meta, Spec: spec}}
		}
	default: // a security policy that nobody turns into something is not in force either
		return o.unenforced()
	}
	return f
}

// Denies reports whether the object is a security policy that is not in force, so that the
// workloads that it selects deny every request.
func (o *Object) Denies() bool { return o.Valid && len(o.NotInForce) > 0 && o.unenforced() != nil }

// Denial is what stands in place of a security policy that is not valid, where no earlier
// version of it can: the workloads that it selects deny every request, as nobody knows which of
// them it would have let through. It is nil for all other objects.
func (o *Object) Denial() *mesh.Fragment {
	if o.denial == nil {
		return nil
	}
	return &mesh.Fragment{Unenforced: []*mesh.Unenforced{o.denial}}
}

// Refused is what stands in place of a valid object that is refused because its source has too much:
// what a security policy selects denies every request. It is nil for all other objects.
func (o *Object) Refused() *mesh.Fragment {
	if !o.Valid || o.Meta.Kind == mesh.KindAuthorizationPolicy && o.dryRun() {
		return nil
	}
	if a, is := o.Spec.(*security.AuthorizationPolicy); is && a.GetAction() == security.AuthorizationPolicy_AUDIT {
		return nil
	}
	return o.unenforced()
}

// Refuse is the object as one that is not in force, because of a fault that others see in it.
func (o *Object) Refuse(f Fault) *Object {
	out := *o
	if refused := o.Refused(); refused != nil {
		out.denial = refused.Unenforced[0]
	}
	out.Valid, out.Spec, out.Faults = false, nil, append(slices.Clone(o.Faults), f)
	return &out
}

// denial is the policy that [Object.Denial] returns, or nil. An object that is wrong in its kind,
// name or namespace is none: somebody else may have the name, or the namespace. Where the
// selector cannot be read, the policy is for its whole namespace.
func denial(o *Object, faults []Fault) *mesh.Unenforced {
	if o.Meta.Kind != mesh.KindAuthorizationPolicy && o.Meta.Kind != mesh.KindRequestAuthentication || o.Meta.Name == "" {
		return nil
	}
	broken := func(field string) bool {
		return slices.ContainsFunc(faults, func(f Fault) bool {
			return f.Severity == Error && f.Field != "" && (within(f.Field, field) || within(field, f.Field))
		})
	}
	if broken("apiVersion") || broken("kind") || broken("metadata.name") || broken("metadata.namespace") {
		return nil
	}
	u := &mesh.Unenforced{Meta: o.Meta, Field: "spec"}
	for _, f := range faults {
		if f.Severity == Error && within(f.Field, "spec") {
			u.Field = f.Field
			break
		}
	}
	if spec := o.root.Get("spec"); spec != nil && spec.Kind == tree.Map && spec.Get("selector") == nil && (spec.Get("targetRef") != nil || spec.Get("targetRefs") != nil) {
		return nil // it is for no sidecar
	}
	if !broken("spec.selector") {
		switch spec := o.Spec.(type) {
		case *security.AuthorizationPolicy:
			u.Selector = spec.GetSelector().GetMatchLabels()
			if o.dryRun() || spec.GetAction() == security.AuthorizationPolicy_AUDIT && !broken("spec.action") {
				return nil // it would have denied nothing
			}
		case *security.RequestAuthentication:
			u.Selector = spec.GetSelector().GetMatchLabels()
		}
	}
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "denial %s %q", u.Key, u.Selector) // never fails; maps are printed in order
	u.Hash = mesh.Hash(h.Sum(nil))
	return u
}

// unenforced is the security policy that cannot be enforced, or nil if the
// object is none. One that is only attached to gateways or services by
// targetRefs selects no workload.
func (o *Object) unenforced() *mesh.Fragment {
	u := &mesh.Unenforced{Meta: o.Meta, Field: "spec"}
	if len(o.NotInForce) > 0 {
		u.Field = o.NotInForce[0].Field
	}
	switch spec := o.Spec.(type) {
	case *security.AuthorizationPolicy:
		u.Selector = spec.GetSelector().GetMatchLabels()
		if attached(spec) {
			return nil
		}
	case *security.RequestAuthentication:
		u.Selector = spec.GetSelector().GetMatchLabels()
		if attached(spec) {
			return nil
		}
	default:
		return nil
	}
	return &mesh.Fragment{Unenforced: []*mesh.Unenforced{u}}
}

// targeted is a policy that may name gateways or services.
type targeted interface {
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// attached reports whether a policy is for gateways or services of Kubernetes only.
func attached(spec targeted) bool {
	return spec.GetTargetRef() != nil || len(spec.GetTargetRefs()) > 0
}

// dryRun reports whether an AuthorizationPolicy decides nothing. The webhook's rules refuse an
// annotation that is neither true nor false.
func (o *Object) dryRun() bool {
	dry, err := strconv.ParseBool(o.Meta.Annotations[metakeys.DryRun])
	return err == nil && dry
}

func clone[M proto.Message](m M) M {
	//nolint:errcheck,forcetypeassert // a clone has the type of its original
	return proto.Clone(m).(M)
}

// fqdn is the host that a short name stands for in the object's namespace. A
// name with a dot, an address and "*" are complete. Names are in lower case.
func (o *Object) fqdn(host string) string {
	host = strings.ToLower(host)
	if host == "" || host == "*" || strings.Contains(host, ".") {
		return host
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return host
	}
	return host + "." + o.Meta.Namespace + ".svc." + o.domain
}

// exports replaces "." by the object's namespace, and sorts.
func (o *Object) exports(list []string) mesh.Exports {
	if len(list) == 0 {
		return nil
	}
	out := make(mesh.Exports, 0, len(list))
	for _, e := range list {
		if e == "." {
			e = o.Meta.Namespace
		}
		out = append(out, e)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// virtualService resolves hosts and destinations and names the gateways.
func (o *Object) virtualService(spec *networking.VirtualService) *networking.VirtualService {
	v := clone(spec)
	for i, h := range v.GetHosts() {
		v.Hosts[i] = o.fqdn(h)
	}
	v.Gateways = o.gateways(v.GetGateways())
	if len(v.GetGateways()) == 0 {
		v.Gateways = []string{meshGateway}
	}
	for _, h := range v.GetHttp() {
		for _, m := range h.GetMatch() {
			m.Gateways = o.gateways(m.GetGateways())
		}
		for _, r := range h.GetRoute() {
			o.destination(r.GetDestination())
		}
		o.destination(h.GetMirror())
		for _, m := range h.GetMirrors() {
			o.destination(m.GetDestination())
		}
	}
	for _, t := range v.GetTcp() {
		for _, m := range t.GetMatch() {
			m.Gateways = o.gateways(m.GetGateways())
		}
		for _, r := range t.GetRoute() {
			o.destination(r.GetDestination())
		}
	}
	for _, t := range v.GetTls() {
		for _, m := range t.GetMatch() {
			m.Gateways = o.gateways(m.GetGateways())
		}
		for _, r := range t.GetRoute() {
			o.destination(r.GetDestination())
		}
	}
	return v
}

// gateway resolves the namespaces of hosts: "./host" is of the object's own, and "*/host" of all. As in
// Istio, "*/*" makes the server one for all hosts.
func (o *Object) gateway(spec *networking.Gateway) *networking.Gateway {
	g := clone(spec)
	for _, s := range g.GetServers() {
		if slices.Contains(s.GetHosts(), "*/*") {
			s.Hosts = []string{"*"}
		}
		for i, h := range s.GetHosts() {
			switch namespace, host, qualified := strings.Cut(h, "/"); {
			case !qualified:
			case namespace == ".":
				s.Hosts[i] = o.Meta.Namespace + "/" + host
			case namespace == "*":
				s.Hosts[i] = host
			}
		}
	}
	return g
}

func (o *Object) destination(d *networking.Destination) {
	if d != nil {
		d.Host = o.fqdn(d.GetHost())
	}
}

// meshGateway stands for all sidecars.
const meshGateway = "mesh"

// gateways makes each gateway's name NAMESPACE/NAME.
func (o *Object) gateways(list []string) []string {
	for i, g := range list {
		namespace, name, qualified := strings.Cut(g, "/")
		switch {
		case g == meshGateway:
		case qualified && namespace == ".":
			list[i] = o.Meta.Namespace + "/" + name
		case qualified:
		case !strings.Contains(g, "."):
			list[i] = o.Meta.Namespace + "/" + g
		default:
			// The old form NAME.NAMESPACE.svc.DOMAIN.
			name, rest, _ := strings.Cut(g, ".")
			namespace, _, _ := strings.Cut(rest, ".")
			list[i] = namespace + "/" + name
		}
	}
	return list
}
