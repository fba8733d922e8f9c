package mesh

// Snapshot is the state of the whole mesh at one moment: what every proxy's
// configuration is derived from. It is immutable and may be read from any
// goroutine.
type Snapshot struct {
	// Generation counts the snapshots of this process, from 1.
	Generation uint64

	// MeshConfig is never nil; defaults are filled in.
	MeshConfig *MeshConfig

	// Services are sorted by host name, then by [Meta.Before].
	Services []*Service
	// Workloads are sorted by Key; their Health is the merged one.
	Workloads      []*Workload
	WorkloadGroups []*WorkloadGroup
	// VirtualServices, DestinationRules, Sidecars and PeerAuthentications are
	// in the order of [Meta.Before].
	VirtualServices     []*VirtualService
	DestinationRules    []*DestinationRule
	Sidecars            []*Sidecar
	PeerAuthentications []*PeerAuthentication
	Unenforced          []*Unenforced

	// Changed are the keys of objects that differ from the snapshot before;
	// sorted. Empty in the first snapshot, where everything is new.
	Changed []Key

	index index
}
