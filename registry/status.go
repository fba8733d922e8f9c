package registry

import (
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// listedHolds limits the held removals of a source in Status.
const listedHolds = 100

// Status is the state of a Registry for people and metrics. It is a value;
// slices are read-only.
type Status struct {
	// Complete means that every source has delivered.
	Complete bool
	// Missing are the names of the sources that have not, in their order.
	Missing []string
	// Sources are in the order in which they count.
	Sources []SourceStatus
	// Generation is that of the latest snapshot; 0 means there is none yet.
	Generation uint64
	// Published is when it was published, and Merge how long it took to make.
	Published time.Time
	Merge     time.Duration
	// SlowMerge is the merge that runs, or the last one, if it takes or took more than a second;
	// or nil.
	SlowMerge *SlowMerge
	// Compared counts the objects that differed between two readings of a source,
	// Merged those that differed between two snapshots by themselves or by what is
	// reported of their health, both since the start. What did not change is in
	// neither.
	Compared, Merged uint64
	// Waiting means that changes are being debounced.
	Waiting bool
	// Grants are names that namespaces of bound sources have from before owners were decided by
	// patterns alone, and that nothing else gives to them. GrantsFault is why they are not known, and GrantsUnsaved why they cannot be
	// saved; empty if they are, or can.
	Grants                     []mesh.OpenGrant
	GrantsFault, GrantsUnsaved string
	// Addresses is how the addresses of hosts that have none of their own stand, and
	// AddressesUnsaved why they cannot be saved; empty if they can.
	Addresses        AddressStatus
	AddressesUnsaved string
	// Conflicts are the objects that are not in force because another one has
	// the same name.
	Conflicts []mesh.Conflict
}

// SourceStatus is the state of one source.
type SourceStatus struct {
	Name      string
	Delivered bool
	// Read is when the source last gave a whole reading, Changed when one
	// differed from the one before, Readings how many there were.
	Read, Changed time.Time
	Readings      uint64
	// Objects is the number of objects in force.
	Objects int
	// ForeignHosts counts names of other owners' hosts in the source, if it is bound to
	// namespaces.
	ForeignHosts int
	// Held are the removals that are held back, sorted by Key, the first
	// hundred of HeldCount. A service among them keeps its endpoints.
	Held      []Held
	HeldCount int
	// HeldTotal counts the removals held since the start.
	HeldTotal uint64
}

// Held is an object whose removal is held.
type Held struct {
	Key    mesh.Key
	Origin *mesh.Origin
	Reason Reason
	// Since is when the source first lacked it.
	Since time.Time
}

// NeedsPerson reports whether only a person, or the settings, release it.
func (h Held) NeedsPerson() bool { return h.Reason.byPerson() }
