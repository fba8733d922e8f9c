package mesh

import (
	"cmp"

	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
)

// VirtualService routes requests. Its hosts and destinations are fully
// qualified and its gateways are explicit ("mesh" where none were named).
type VirtualService struct {
	Meta
	Spec     *networking.VirtualService
	ExportTo Exports
	// Refused are the routes that gateways of other namespaces do not follow. Only snapshots know it, of objects without
	// hosts whose source is bound to namespaces.
	Refused *RefusedRoutes
}

// DestinationRule says how a host is talked to once a route has chosen it. Its
// host is fully qualified.
type DestinationRule struct {
	Meta
	Spec     *networking.DestinationRule
	ExportTo Exports
	// Elsewhere is what counts at proxies of other namespaces, in place of Spec; nil means the same. Only
	// snapshots know it, of rules whose source is bound to namespaces.
	Elsewhere *networking.DestinationRule
	// LimitTables says that no table of consistentHash is larger than the rule says, whatever weights the endpoints have. Only
	// snapshots know it, of such rules.
	LimitTables bool
}

// SpecElsewhere is what counts at proxies of other namespaces.
func (r *DestinationRule) SpecElsewhere() *networking.DestinationRule {
	return cmp.Or(r.Elsewhere, r.Spec)
}

// Gateway is what gateway proxies listen for. Its hosts are "host", or "namespace/host" for the
// VirtualServices of one namespace.
type Gateway struct {
	Meta
	Spec *networking.Gateway
	// CreateIndex is the index of Consul's key-value store at which the key of the object was created;
	// zero if it is in no key, or the index is not known. It is the age of what has no creationTimestamp.
	CreateIndex uint64
	// Tenant says that the source is bound to namespaces; only snapshots know it.
	Tenant bool
}

// Sidecar narrows, and adds to, what the proxies of some workloads do.
type Sidecar struct {
	Meta
	Spec *networking.Sidecar
}

// PeerAuthentication says whether peers must prove themselves.
type PeerAuthentication struct {
	Meta
	Spec *security.PeerAuthentication
}

// AuthorizationPolicy says who may send a workload which requests. All policies that select a
// workload count; they have no order.
type AuthorizationPolicy struct {
	Meta
	Spec *security.AuthorizationPolicy
	// DryRun says that the policy decides nothing: Envoy only counts what it would have decided
	// (Istio's annotation istio.io/dry-run).
	DryRun bool
}

// Selects reports whether the policy is for a workload in a namespace. root is the root
// namespace, whose policies are for all namespaces.
func (p *AuthorizationPolicy) Selects(namespace string, labels map[string]string, root string) bool {
	return (p.Namespace == namespace || p.Namespace == root) && Selects(p.MatchLabels(), labels)
}

// MatchLabels are the labels of its selector; none means all workloads.
func (p *AuthorizationPolicy) MatchLabels() map[string]string {
	return p.Spec.GetSelector().GetMatchLabels()
}

// Telemetry says what the proxies of some workloads report of their traffic.
type Telemetry struct {
	Meta
	Spec *telemetry.Telemetry
}

// ProxyConfig says how the proxies of some workloads are run. It is for their agents: nothing of
// it is in Envoy's own resources.
type ProxyConfig struct {
	Meta
	Spec *networkingbeta.ProxyConfig
}

// MTLSMode is what a workload's proxy demands of a peer on one port.
type MTLSMode uint8

// The modes of PeerAuthentication; unset has been resolved.
const (
	Permissive MTLSMode = iota
	Strict
	Disable
)

// Unenforced is a security policy that this build cannot enforce. The workloads
// it selects deny every request, so that nothing fails open.
type Unenforced struct {
	Meta
	// Selector chooses workloads by label; nil means all of the namespace (or,
	// in the root namespace, of the mesh).
	Selector map[string]string
	// Field is the path of what is not built, such as "spec.rules[0].when".
	Field string
}

// Selects reports whether the policy is for a workload in a namespace. root is the root
// namespace.
func (u *Unenforced) Selects(namespace string, labels map[string]string, root string) bool {
	return (u.Namespace == namespace || u.Namespace == root) && Selects(u.Selector, labels)
}
