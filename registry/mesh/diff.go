package mesh

import (
	"reflect"
	"slices"
)

// Delta is one object that differs between two lists: Old is nil where New was
// added, New is nil where Old was removed.
type Delta[T comparable] struct{ Old, New T }

// newest is the object as it is, or as it was.
func newest[T comparable](d Delta[T]) T {
	var zero T
	if d.New != zero {
		return d.New
	}
	return d.Old
}

// Diff is what differs between a snapshot and the one before, by pointer: what
// is in none of the lists is the same object in both. An object of which only
// the origin changed is among them, with an equal Hash; Snapshot.Changes lacks
// it. Each list is sorted by Key, services of one Key by host name.
type Diff struct {
	kinds map[reflect.Type]any // []Delta[T] by T; see deltasOf

	// Backings are the services of the new snapshot that select, or selected, a
	// workload that is among Workloads, sorted as Snapshot.Services. Of no other
	// service, but those in Services, does [Snapshot.EndpointsOf] or
	// [Snapshot.ServiceAccountsOf] say anything else than before.
	Backings []*Service
}

// Diff is what differs from the snapshot of the Generation before; nil in one
// that was built from nothing, where everything is new. The MeshConfig is
// compared by its pointer.
func (s *Snapshot) Diff() *Diff { return s.diff }

// Merged is the number of objects that were decided anew for this snapshot: those
// in the lists of Diff; in a snapshot that was built from nothing, all.
func (s *Snapshot) Merged() int { return s.merged }

func (d *Diff) objects() int {
	n := 0
	for _, k := range kinds {
		n += k.changed(d)
	}
	return n
}

// touched finds the services of s behind which the workloads stand that changed.
func (s *Snapshot) touched(prev *Snapshot, workloads []Delta[*Workload]) []*Service {
	if len(workloads) == 0 {
		return nil
	}
	seen := map[*Service]bool{}
	for _, d := range workloads {
		if d.Old != nil {
			for _, svc := range prev.ServicesOf(d.Old) {
				seen[svc] = true
			}
		}
		if d.New != nil {
			for _, svc := range s.ServicesOf(d.New) {
				seen[svc] = true
			}
		}
	}
	var out []*Service
	for svc := range seen {
		if s.has(svc) {
			out = append(out, svc)
		}
	}
	slices.SortFunc(out, CompareServices)
	return out
}

// has reports whether the service is one of the snapshot's.
func (s *Snapshot) has(svc *Service) bool { return slices.Contains(s.ServicesOn(svc.Hostname), svc) }
