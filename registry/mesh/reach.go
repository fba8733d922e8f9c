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

// sameHash reports whether two objects are known to have equal content.
func sameHash(a, b *Meta) bool { return !a.Hash.IsZero() && a.Hash == b.Hash }

// reachOfDelta is the reach of the change of one object.
func reachOfDelta[T object](d Delta[T]) Reach {
	var zero T
	if d.Old != zero && d.New != zero && sameHash(d.Old.meta(), d.New.meta()) {
		return ReachNone
	}
	switch next := any(d.New).(type) {
	case *Workload:
		prev, _ := any(d.Old).(*Workload)
		if prev == nil || next == nil {
			return ReachEndpoints
		}
		return reachOfWorkload(prev, next)
	case *Service:
		prev, _ := any(d.Old).(*Service)
		if prev == nil || next == nil {
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
	if a.Health != b.Health || a.Withdrawn != b.Withdrawn {
		return ReachHealth
	}
	return ReachNone
}

func reachOfService(a, b *Service) Reach {
	if a.Hostname != b.Hostname || a.Resolution != b.Resolution || a.External != b.External || a.LostNames != b.LostNames || a.Catalog != b.Catalog ||
		(a.Selector == nil) != (b.Selector == nil) || !maps.Equal(a.Selector, b.Selector) ||
		!slices.Equal(a.Addresses, b.Addresses) || !slices.Equal(a.Allocated, b.Allocated) || !slices.Equal(a.Yields, b.Yields) || !slices.Equal(a.Ports, b.Ports) ||
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
		return ReachConfig // a field that is not compared above
	}
	return reach
}

func sameMeta(a, b *Meta) bool {
	return a.Key == b.Key && a.Created.Equal(b.Created) &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}
