package mesh

import (
	"cmp"
	"slices"
)

// Difference is what differs between two fragments of one source, by pointer.
type Difference struct {
	prev, next *Fragment // non-nil
	objects    Diff
	health     []Delta[*HealthReport]
	reports    bool // the lists of reports are not the same
	unsorted   bool
}

// Compare looks for what differs between two fragments of one source; a nil one
// is empty. The first must be sorted. Its price is a look at the pointers of
// those lists that are not the same slices, and then that of what differs.
func Compare(prev, next *Fragment) *Difference {
	d := &Difference{prev: cmp.Or(prev, &Fragment{}), next: cmp.Or(next, &Fragment{})}
	p, n := d.prev, d.next
	is := strict
	for _, k := range kinds {
		is = min(is, k.compare(&d.objects, p, n))
	}
	d.unsorted = is == unsorted
	d.health, _ = diff(p.Health, n.Health, compareReports)
	d.reports = len(d.health) > 0
	d.health = slices.DeleteFunc(d.health, func(x Delta[*HealthReport]) bool {
		return x.Old != nil && x.New != nil && *x.Old == *x.New
	})
	return d
}

// Unsorted says that a list of the second fragment is not sorted. Then the Difference is
// not valid: compare with [Fragment.Sorted].
func (d *Difference) Unsorted() bool { return d.unsorted }

// Same reports that the fragments are made of the same objects, by pointer, and
// of the same reports. It is stricter than [ReachNone]: an object that only
// moved within its file is another one, with another origin.
func (d *Difference) Same() bool {
	return d.Objects() == 0 && !d.reports && d.prev.MeshConfig == d.next.MeshConfig && d.prev.MeshNetworks == d.next.MeshNetworks
}

// Objects is the number of objects that differ, but for MeshConfig and MeshNetworks.
func (d *Difference) Objects() int { return d.objects.objects() }

// Next is the second fragment.
func (d *Difference) Next() *Fragment { return d.next }

// Reach is the reach of the change.
func (d *Difference) Reach() Reach { return max(d.ConfigReach(), d.EndpointsReach()) }

// EndpointsReach is the reach of the changes of workloads and health.
func (d *Difference) EndpointsReach() Reach {
	reach := ReachNone
	for _, k := range kinds {
		if k.endpoints() {
			reach = max(reach, reachOf(k, &d.objects))
		}
	}
	if reach == ReachNone && len(d.health) > 0 {
		reach = ReachHealth
	}
	return reach
}

// ConfigReach is the reach of all other changes.
func (d *Difference) ConfigReach() Reach {
	reach := max(reachOfMeshConfig(d.prev.MeshConfig, d.next.MeshConfig), reachOfNetworks(d.prev.MeshNetworks, d.next.MeshNetworks))
	for _, k := range kinds {
		if !k.endpoints() {
			reach = max(reach, reachOf(k, &d.objects))
		}
	}
	return reach
}

func reachOf(k kind, d *Diff) Reach {
	reach := ReachNone
	for c := range k.changes(d) {
		if reach = max(reach, c.Reach); reach == ReachConfig {
			break
		}
	}
	return reach
}

// EndpointsOnly returns the first fragment with the changes of endpoints, and without those
// of configuration.
func (d *Difference) EndpointsOnly() *Fragment {
	out := *d.prev
	out.Workloads, out.Health = d.next.Workloads, d.next.Health
	var services []Delta[*Service]
	for _, x := range DeltasOf[*Service](&d.objects) {
		if reachOfDelta(x) < ReachConfig {
			services = append(services, x)
		}
	}
	out.Services = patched(out.Services, services, compareServiceKeys)
	return &out
}

// Files counts the files in which something besides workloads changed, up to a
// limit.
func (d *Difference) Files(limit int) int {
	paths := map[string]bool{}
	if d.prev.MeshConfig != d.next.MeshConfig {
		paths[""] = true
	}
	if d.prev.MeshNetworks != d.next.MeshNetworks {
		paths["(networks)"] = true
	}
	for _, k := range kinds {
		if k.endpoints() {
			continue
		}
		for c := range k.changes(&d.objects) {
			if len(paths) >= limit {
				return len(paths)
			}
			if m := c.newest(); m.Origin != nil {
				paths[m.Origin.Path] = true
			}
		}
	}
	return len(paths)
}
