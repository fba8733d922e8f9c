package mesh

import "weak"

// Snapshot is the state of the whole mesh at one moment: what every proxy's
// configuration is derived from. It is immutable and may be read from any
// goroutine.
type Snapshot struct {
	// Generation counts the snapshots of this process, from 1.
	Generation uint64

	// MeshConfig is never nil; defaults are filled in.
	MeshConfig *MeshConfig

	// Services are sorted by host name, then come those that are written down
	// before those of catalogs, then by [Meta.Before].
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
	// Changes say more of the same: one entry for each key of Changed, in the
	// same order.
	Changes []Change
	// Conflicts are the objects left out because another one has the same name,
	// sorted by Key.
	Conflicts []Conflict
	// Incomplete says that some source has delivered nothing yet since the
	// process started: what is missing here may exist, so nothing may be
	// removed from a proxy for its absence. Missing are the names of those
	// sources, sorted.
	Incomplete bool
	Missing    []string

	base   weak.Pointer[Snapshot] // the snapshot before
	diff   *Diff                  // from it, or nil
	merged int
	tables tables
	index  *index
}

// Change is one object that differs between two snapshots.
type Change struct {
	Key   Key
	Op    Op
	Reach Reach
	// Origin is where the object is written; of a removed one, where it was.
	Origin *Origin
}

// Op is what happened to an object.
type Op uint8

// What can happen to an object.
const (
	Added Op = iota
	Updated
	Removed
)

// String is the word for people.
func (o Op) String() string {
	switch o {
	case Added:
		return "added"
	case Updated:
		return "updated"
	case Removed:
		return "removed"
	default:
		return "unknown"
	}
}

// Conflict is an object that is not in force because of another one. Mostly that
// has the same Key and came first: it is of the source that counts first or,
// within one source, the first in its Fragment. A service of a catalog is in
// conflict with what is written down for its host, too, and so is what a bound
// source writes for the host of another.
type Conflict struct {
	Key Key
	// Host is set where one host of the object is concerned, and not all of it.
	Host          Hostname
	Kept, Dropped *Origin
	// Foreign says that the host is another namespace's: the object is in force for
	// clients in its own namespace alone.
	Foreign bool
	// Reason is for people; empty where another object has the same Key, and
	// there is no more to be said.
	Reason string
}
