package mesh

import (
	"cmp"
	"weak"
)

// Snapshot is the state of the whole mesh at one moment: what every proxy's
// configuration is derived from. It is immutable and may be read from any
// goroutine.
type Snapshot struct {
	// Generation counts the snapshots of this process, from 1.
	Generation uint64

	// MeshConfig is never nil; defaults are filled in.
	MeshConfig *MeshConfig
	// MeshNetworks is nil if the mesh has no networks.
	MeshNetworks *Networks

	// Services are sorted by host name. For one host, declared services come before those
	// of catalogs; then they are in the order of [Meta.Before].
	Services []*Service
	// Workloads are sorted by Key; their Health is the merged one.
	Workloads      []*Workload
	WorkloadGroups []*WorkloadGroup
	// VirtualServices, DestinationRules, Sidecars, PeerAuthentications, RequestAuthentications
	// and ProxyConfigs are in the order of [Meta.Before], Gateways in that of [CompareGateways].
	VirtualServices     []*VirtualService
	DestinationRules    []*DestinationRule
	Gateways            []*Gateway
	Sidecars            []*Sidecar
	PeerAuthentications []*PeerAuthentication
	// RequestAuthentications have the keys that are in force.
	RequestAuthentications []*RequestAuthentication
	AuthorizationPolicies  []*AuthorizationPolicy
	// Telemetries are in the order of [Meta.Before].
	Telemetries  []*Telemetry
	ProxyConfigs []*ProxyConfig
	Unenforced   []*Unenforced

	// Changed are the keys of objects that differ from the previous snapshot, sorted. It is
	// empty in the first snapshot, where everything is new.
	Changed []Key
	// Changes are the details: one element for each key of Changed, in the same order.
	Changes []Change
	// Conflicts are the objects left out because another one has the same name,
	// sorted by Key.
	Conflicts []Conflict
	// Incomplete says that some source has delivered nothing since the process started.
	// Objects that are missing here may exist, so nothing may be removed from a proxy
	// because it is missing. Missing are the names of those sources, sorted.
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

// Conflict is an object that is not in force because of another one. Usually the other one
// has the same Key and precedence: it is from an earlier source, or earlier in the Fragment
// of the same source. A catalog's service also conflicts with a declared service for its
// host, and an object of a bound source with the owner of a host that it names.
type Conflict struct {
	Key Key
	// Host is set if the conflict is about one host of the object only.
	Host          Hostname
	Kept, Dropped *Origin
	// Foreign says that the host belongs to another namespace: the object is in force for
	// clients in its own namespace only.
	Foreign bool
	// Kind is what else the object may not, whose source is bound to namespaces; and Field is the path of
	// what says so.
	Kind  ConflictKind
	Field string
	// Credential is the name of the one that a ConflictCredential is about.
	Credential string
	// Refused says that what Field says is not in force.
	Refused bool
	// Reason is for people; empty if the conflict is only an equal Key.
	Reason string
}

// ConflictKind is what an object of a source that is bound to namespaces may not.
type ConflictKind uint8

// The kinds of conflicts. ConflictObject is one with another object, or with the owner of a host.
const (
	ConflictObject ConflictKind = iota
	// ConflictCredential: gateways of other namespaces do not use a credential for the object.
	ConflictCredential
	// ConflictTables: the tables of consistentHash of the object are too large.
	ConflictTables
	// ConflictRoute: gateways of other namespaces follow a route of the object to a third namespace, as
	// themselves; they do not if Refused is set.
	ConflictRoute
)

// OfTenant reports whether the conflict is one of a source that is bound to namespaces with a
// rule for such sources, and not of two objects with one Key.
func (c *Conflict) OfTenant() bool { return c.Foreign || c.Kind != ConflictObject }

// compareConflicts is the order of Snapshot.Conflicts. It does not depend on the order in
// which they were found.
func compareConflicts(a, b Conflict) int {
	return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Host, b.Host), compareOrigins(a.Dropped, b.Dropped), compareOrigins(a.Kept, b.Kept), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason))
}

func compareOrigins(a, b *Origin) int {
	a, b = cmp.Or(a, &Origin{}), cmp.Or(b, &Origin{})
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}
