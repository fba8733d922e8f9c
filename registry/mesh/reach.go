package mesh

import (
	"maps"
	"slices"
)

// Reach says how far a change goes, and so how it is treated: configuration is
// debounced, endpoints and their health are not.
type Reach uint8

// How far a change goes; each one includes those before it.
const (
	// ReachNone changes nothing that a proxy could notice.
	ReachNone Reach = iota
	// ReachHealth changes the health of endpoints.
	ReachHealth
	// ReachEndpoints changes which endpoints there are, or what they are.
	ReachEndpoints
	// ReachConfig changes anything else.
	ReachConfig
)

// String is the word for people.
func (r Reach) String() string {
	switch r {
	case ReachNone:
		return "none"
	case ReachHealth:
		return "health"
	case ReachEndpoints:
		return "endpoints"
	case ReachConfig:
		return "config"
	default:
		return "unknown"
	}
}

// CompareFragments tells how far the change goes from one fragment of a source
// to the next. Both must be sorted. A nil fragment is an empty one.
func CompareFragments(prev, next *Fragment) Reach {
	if prev == next {
		return ReachNone
	}
	none := &Fragment{}
	if prev == nil {
		prev = none
	}
	if next == nil {
		next = none
	}
	reach := max(
		reachOf(prev.Services, next.Services, compareServiceKeys),
		reachOf(prev.WorkloadGroups, next.WorkloadGroups, compareKeys),
		reachOf(prev.VirtualServices, next.VirtualServices, compareKeys),
		reachOf(prev.DestinationRules, next.DestinationRules, compareKeys),
		reachOf(prev.Sidecars, next.Sidecars, compareKeys),
		reachOf(prev.PeerAuthentications, next.PeerAuthentications, compareKeys),
		reachOf(prev.Unenforced, next.Unenforced, compareKeys),
		reachOfMeshConfig(prev.MeshConfig, next.MeshConfig),
	)
	if reach == ReachConfig {
		return reach
	}
	reach = max(reach, reachOf(prev.Workloads, next.Workloads, compareKeys))
	if reach == ReachNone && !slices.Equal(prev.Health, next.Health) {
		reach = ReachHealth
	}
	return reach
}

// SameObjects reports whether two fragments are made of the same objects, by
// pointer, and of equal health reports. It is stricter than [ReachNone]: an
// object that only moved within its file is another one, with another origin.
func SameObjects(a, b *Fragment) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	return slices.Equal(a.Services, b.Services) &&
		slices.Equal(a.Workloads, b.Workloads) &&
		slices.Equal(a.WorkloadGroups, b.WorkloadGroups) &&
		slices.Equal(a.VirtualServices, b.VirtualServices) &&
		slices.Equal(a.DestinationRules, b.DestinationRules) &&
		slices.Equal(a.Sidecars, b.Sidecars) &&
		slices.Equal(a.PeerAuthentications, b.PeerAuthentications) &&
		slices.Equal(a.Unenforced, b.Unenforced) &&
		a.MeshConfig == b.MeshConfig &&
		slices.Equal(a.Health, b.Health)
}

func reachOf[T object](prev, next []T, order func(a, b T) int) Reach {
	reach := ReachNone
	for _, d := range diff(prev, next, order) {
		reach = max(reach, reachOfDelta(d))
		if reach == ReachConfig {
			break
		}
	}
	return reach
}

func reachOfMeshConfig(prev, next *MeshConfig) Reach {
	switch {
	case prev == next:
		return ReachNone
	case prev == nil || next == nil || !sameHash(&prev.Meta, &next.Meta):
		return ReachConfig
	default:
		return ReachNone
	}
}

// ChangedFile returns the path that everything comes from in which two fragments
// of a source differ; or nothing where that is not one. Both must be sorted.
func ChangedFile(prev, next *Fragment) string {
	if prev == nil || next == nil || prev.MeshConfig != next.MeshConfig {
		return ""
	}
	path := ""
	one := sameFile(&path, prev.Services, next.Services, compareServiceKeys) &&
		sameFile(&path, prev.Workloads, next.Workloads, compareKeys) &&
		sameFile(&path, prev.WorkloadGroups, next.WorkloadGroups, compareKeys) &&
		sameFile(&path, prev.VirtualServices, next.VirtualServices, compareKeys) &&
		sameFile(&path, prev.DestinationRules, next.DestinationRules, compareKeys) &&
		sameFile(&path, prev.Sidecars, next.Sidecars, compareKeys) &&
		sameFile(&path, prev.PeerAuthentications, next.PeerAuthentications, compareKeys) &&
		sameFile(&path, prev.Unenforced, next.Unenforced, compareKeys)
	if !one {
		return ""
	}
	return path
}

// sameFile reports whether all that differs comes from the file at path; an
// empty path is set by the first.
func sameFile[T object](path *string, prev, next []T, order func(a, b T) int) bool {
	var zero T
	for _, d := range diff(prev, next, order) {
		for _, x := range []T{d.Old, d.New} {
			if x == zero {
				continue
			}
			switch o := x.meta().Origin; {
			case o == nil:
				return false
			case *path == "":
				*path = o.Path
			case *path != o.Path:
				return false
			}
		}
	}
	return true
}

// sameHash reports whether two objects are known to have equal content.
func sameHash(a, b *Meta) bool { return !a.Hash.IsZero() && a.Hash == b.Hash }

// reachOfDelta tells how far the change of one object goes.
func reachOfDelta[T object](d Delta[T]) Reach {
	var zero T
	if d.Old != zero && d.New != zero && sameHash(d.Old.meta(), d.New.meta()) {
		return ReachNone
	}
	switch next := any(d.New).(type) {
	case *Workload:
		prev, ok := any(d.Old).(*Workload)
		if !ok || prev == nil || next == nil {
			return ReachEndpoints
		}
		return reachOfWorkload(prev, next)
	case *Service:
		prev, ok := any(d.Old).(*Service)
		if !ok || prev == nil || next == nil {
			return ReachConfig
		}
		return reachOfService(prev, next)
	default:
		return ReachConfig
	}
}

func reachOfWorkload(a, b *Workload) Reach {
	if a == b {
		return ReachNone
	}
	if a.Address != b.Address || a.ServiceAccount != b.ServiceAccount || a.Network != b.Network ||
		a.Locality != b.Locality || a.Weight != b.Weight ||
		!maps.Equal(a.Ports, b.Ports) || !sameMeta(&a.Meta, &b.Meta) {
		return ReachEndpoints
	}
	if a.Health != b.Health {
		return ReachHealth
	}
	return ReachNone
}

func reachOfService(a, b *Service) Reach {
	if a.Hostname != b.Hostname || a.Resolution != b.Resolution || a.External != b.External ||
		(a.Selector == nil) != (b.Selector == nil) || !maps.Equal(a.Selector, b.Selector) ||
		!slices.Equal(a.Addresses, b.Addresses) || !slices.Equal(a.Ports, b.Ports) ||
		!slices.Equal(a.ExportTo, b.ExportTo) ||
		!slices.Equal(a.SubjectAltNames, b.SubjectAltNames) || !sameMeta(&a.Meta, &b.Meta) {
		return ReachConfig
	}
	if len(a.Inline) != len(b.Inline) {
		return ReachEndpoints
	}
	reach := ReachNone
	for i := range a.Inline {
		reach = max(reach, reachOfWorkload(a.Inline[i], b.Inline[i]))
	}
	if reach == ReachNone && !sameHash(&a.Meta, &b.Meta) {
		return ReachConfig // something we do not look at here
	}
	return reach
}

func sameMeta(a, b *Meta) bool {
	return a.Key == b.Key && a.Created.Equal(b.Created) &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}
