package mesh

import (
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// Fragment is the complete contribution of one source, not a change. A source that cannot
// read everything sends none, and its last Fragment stays in force.
//
// Every slice is sorted by Key; services of one Key are sorted by host name. An object that
// did not change since the previous Fragment is the same pointer. So a receiver finds what
// changed without comparing content.
type Fragment struct {
	// Source is the name of the source, unique in a registry.
	Source string

	Services               []*Service
	Workloads              []*Workload
	WorkloadGroups         []*WorkloadGroup
	VirtualServices        []*VirtualService
	DestinationRules       []*DestinationRule
	Gateways               []*Gateway
	Sidecars               []*Sidecar
	PeerAuthentications    []*PeerAuthentication
	RequestAuthentications []*RequestAuthentication
	AuthorizationPolicies  []*AuthorizationPolicy
	Telemetries            []*Telemetry
	ProxyConfigs           []*ProxyConfig
	Unenforced             []*Unenforced

	// MeshConfig has the defaults filled in; nil means that this source has none.
	MeshConfig *MeshConfig
	// MeshNetworks are the networks of the mesh; nil means that this source has none.
	MeshNetworks *Networks

	// Health is reports about workloads of other sources. They are sorted by namespace and
	// name of the account, address, network and workload. Reports are immutable: a new
	// report is another object.
	Health []*HealthReport
}

// MeshConfig is the settings of the mesh, Istio's MeshConfig with its defaults
// filled in.
type MeshConfig struct {
	Meta
	Spec *meshconfig.MeshConfig
}

// HealthReport is one observation of a workload, by its own agent or by a catalog. A verdict
// of its own agent wins. Among others, Unhealthy wins over Silent, which wins over Healthy,
// and all win over HealthUnknown. A workload that is Withdrawn stays so.
type HealthReport struct {
	// ServiceAccount, Network and Address identify the workload, or all workloads
	// where one host runs several under one identity.
	ServiceAccount   ServiceAccount
	Network, Address string
	// Workload is the name of the one workload there that the report is of; empty
	// means all those of which no report names them.
	Workload string
	Health   Health
	// Reason is for people, such as "http probe: 503"; empty when healthy.
	Reason string
	// Own says that the report is from the workload's own agent.
	Own bool
}

// Append adds the objects of another fragment. If it is called in the order of keys, every
// slice is sorted.
func (f *Fragment) Append(piece *Fragment) {
	for _, k := range kinds {
		k.add(f, piece)
	}
	if piece.MeshConfig != nil {
		f.MeshConfig = piece.MeshConfig
	}
	if piece.MeshNetworks != nil {
		f.MeshNetworks = piece.MeshNetworks
	}
}

// Replace returns the fragment without the objects of some fragments, and with those of
// others. Unchanged lists are shared. Removed objects must be in it, by pointer.
func (f *Fragment) Replace(out, in []*Fragment) *Fragment {
	if len(out)+len(in) == 0 {
		return f
	}
	next := *f
	for _, piece := range out {
		if piece.MeshConfig != nil && piece.MeshConfig == next.MeshConfig {
			next.MeshConfig = nil
		}
		if piece.MeshNetworks != nil && piece.MeshNetworks == next.MeshNetworks {
			next.MeshNetworks = nil
		}
	}
	for _, piece := range in {
		if piece.MeshConfig != nil {
			next.MeshConfig = piece.MeshConfig
		}
		if piece.MeshNetworks != nil {
			next.MeshNetworks = piece.MeshNetworks
		}
	}
	for _, k := range kinds {
		k.replace(&next, out, in)
	}
	return &next
}
