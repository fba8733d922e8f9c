package mesh

import (
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// Fragment is the whole contribution of one source: not a change, not a part.
// A source that cannot read everything sends none, and what it sent last
// stands.
//
// Every slice is sorted by Key, services of one Key by host name. An object that did not change since the
// source's previous Fragment is the same pointer, which is how a receiver finds
// what changed without comparing content.
type Fragment struct {
	// Source is the name of the source, unique in a registry.
	Source string

	Services            []*Service
	Workloads           []*Workload
	WorkloadGroups      []*WorkloadGroup
	VirtualServices     []*VirtualService
	DestinationRules    []*DestinationRule
	Sidecars            []*Sidecar
	PeerAuthentications []*PeerAuthentication
	Unenforced          []*Unenforced

	// MeshConfig has the defaults filled in; nil means that this source has none.
	MeshConfig *MeshConfig

	// Health is what is known of workloads that other sources describe, sorted
	// by namespace and name of the account, by address, network and workload. Reports are never written
	// to: what is said anew is another report.
	Health []*HealthReport
}

// MeshConfig is the settings of the mesh, Istio's MeshConfig with its defaults
// filled in.
type MeshConfig struct {
	Meta
	Spec *meshconfig.MeshConfig
}

// HealthReport is one observation of a workload, by its own agent or by a
// catalog. The workload's own agent is believed before anybody else; among the
// others Unhealthy beats Healthy, and both beat HealthUnknown. Nothing brings back
// a workload that is Withdrawn.
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
	// Own says that the workload's own agent speaks.
	Own bool
}

// Append adds what one object gives. Who goes by ascending keys has every slice
// sorted in the end.
func (f *Fragment) Append(piece *Fragment) {
	for _, k := range kinds {
		k.add(f, piece)
	}
	if piece.MeshConfig != nil {
		f.MeshConfig = piece.MeshConfig
	}
}

// Replace returns the fragment without the objects of some pieces and with those
// of others; it stays as it is, and so does each of its lists in which nothing
// changed. What is taken out must be in it, by pointer.
func (f *Fragment) Replace(out, in []*Fragment) *Fragment {
	if len(out)+len(in) == 0 {
		return f
	}
	next := *f
	for _, piece := range out {
		if piece.MeshConfig != nil && piece.MeshConfig == next.MeshConfig {
			next.MeshConfig = nil
		}
	}
	for _, piece := range in {
		if piece.MeshConfig != nil {
			next.MeshConfig = piece.MeshConfig
		}
	}
	for _, k := range kinds {
		k.replace(&next, out, in)
	}
	return &next
}
