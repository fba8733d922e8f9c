package mesh

import (
	"cmp"
	"reflect"
	"slices"
	"weak"
)

// Input is what a snapshot is made of.
type Input struct {
	// Prev is the snapshot before, or nil.
	Prev *Snapshot
	// Fallback is the MeshConfig if no fragment has one; must be non-nil.
	Fallback *MeshConfig
	// Fragments are in order of precedence: if two sources have the same Key, the first one
	// wins. A nil element is a source that has delivered nothing.
	Fragments []*Fragment
	// Bindings are those of the sources, in the order of Fragments. A source whose binding
	// is nil or missing may write for the whole mesh.
	//
	// A bound source owns, for everybody, the hosts and addresses of its patterns; names
	// NAME.NS.svc.cluster.local of its namespaces; what Gateways of unbound sources give to its
	// namespaces by hosts as NS/HOST; and what Grants gives to them. A host that an unbound source or
	// a catalog declares belongs to that source, whatever the order; its routes may also be
	// written in its namespace. What a bound source writes for any other host is seen by the
	// object's own namespace only. It ranks behind all others, and is among Conflicts. Objects
	// that are exported to their own namespace only are not affected by this.
	Bindings []*Binding
	// Grants are further names of namespaces of bound sources; nil means none.
	Grants *Grants
	// Missing are the names of the sources that have delivered nothing since
	// the process started.
	Missing []string
	// KeySets are the fetched keys of issuers; nil means none.
	KeySets *KeySets
	// BoundPrivateKeys lets bound sources have keys fetched from private addresses.
	BoundPrivateKeys bool
	// Allocations are the addresses of hosts that have none of their own; nil means none.
	Allocations *Allocations
	// GatewayAddresses are the addresses of names of gateways in MeshNetworks; nil means none.
	GatewayAddresses *GatewayAddresses
}

// NewSnapshot merges the fragments of the sources, which are in order of precedence: if two
// sources have the same Key, the first one wins. prev is the previous snapshot, or nil;
// unchanged objects are shared with it. fallback is used if no fragment has a MeshConfig.
func NewSnapshot(prev *Snapshot, fallback *MeshConfig, fragments []*Fragment) *Snapshot {
	return Merge(Input{Prev: prev, Fallback: fallback, Fragments: fragments})
}

// Merge makes a snapshot. Its content depends on the input only, not on Prev; Generation,
// Changed and Changes do depend on Prev.
func Merge(in Input) *Snapshot {
	s := &Snapshot{
		Generation: 1,
		MeshConfig: in.Fallback,
		Missing:    slices.Sorted(slices.Values(in.Missing)),
		Incomplete: len(in.Missing) > 0,
	}
	prev := in.Prev
	first := prev == nil
	if first {
		prev = &Snapshot{}
	}
	s.Generation = prev.Generation + 1
	for _, f := range slices.Backward(in.Fragments) {
		if f != nil {
			s.MeshConfig = cmp.Or(f.MeshConfig, s.MeshConfig)
			s.MeshNetworks = cmp.Or(f.MeshNetworks, s.MeshNetworks)
		}
	}
	if s.MeshNetworks != nil {
		s.MeshNetworks = s.MeshNetworks.withAddresses(in.GatewayAddresses, prev.MeshNetworks)
	}
	fragments := s.restrict(prev, in)
	diff := s.mergeTables(prev, fragments)
	s.applyAllocations(prev, diff, in.Allocations)
	diff = s.order(prev, diff, fragments)
	s.RequestAuthentications = s.applyKeys(prev, diff, in)
	s.merged = diff.objects()
	s.index = buildIndex(prev.index, diff)
	if !first {
		s.noteChanges(prev, diff)
		for _, k := range kinds {
			k.part(diff)
		}
		s.base, s.diff = weak.Make(prev), diff
	}
	return s
}

// mergeTables decides who has each Key, and which services of catalogs are in
// force. What it returns does not know of health yet.
func (s *Snapshot) mergeTables(prev *Snapshot, fragments []*Fragment) *Diff {
	p, t, d := &prev.tables, &s.tables, &Diff{}
	t.kinds = make(map[reflect.Type]any, len(kinds))
	for _, k := range kinds {
		k.merge(t, p, d, fragments)
	}
	note(d, s.withCatalogs(prev, DeltasOf[*Service](d)))
	if was, now := p.conflicts(), t.conflicts(); slices.EqualFunc(was, now, sameSlice) {
		s.Conflicts = prev.Conflicts
	} else {
		s.Conflicts = slices.Concat(now...)
		slices.SortStableFunc(s.Conflicts, compareConflicts)
	}
	return d
}

// conflicts are those of all kinds.
func (t *tables) conflicts() [][]Conflict {
	var all [][]Conflict
	for _, k := range kinds {
		all = append(all, k.conflicts(t))
	}
	return append(all, t.catalogs.conflicts, t.restrictions.conflicts, t.restrictions.rules.conflicts, t.restrictions.deputies.conflicts)
}

// lists are the lists of all sources. A source that has delivered nothing has an empty one,
// so that indexes stay the same.
func lists[T any](fragments []*Fragment, of func(*Fragment) []T) [][]T {
	out := make([][]T, len(fragments))
	for i, f := range fragments {
		if f != nil {
			out[i] = of(f)
		}
	}
	return out
}

// applyHealth lays what is reported of health over workloads and inline endpoints,
// which d says the changes of; after that, d knows of health. It returns the
// workloads.
func (s *Snapshot) applyHealth(prev *Snapshot, d *Diff, fragments []*Fragment) []*Workload {
	p, t := &prev.tables, &s.tables
	var changed map[string]bool
	t.health, changed = p.health.merge(lists(fragments, func(f *Fragment) []*HealthReport { return f.Health }))
	workloads, services := map[*Workload]bool{}, map[*Service]bool{}
	for address := range changed {
		for _, w := range prev.WorkloadsAt(address) {
			workloads[w] = true
		}
		for _, svc := range prev.InlineAt(address) {
			services[svc] = true
		}
	}
	observed, deltas := overlayPass[*Service]{
		base: t.addressed, deltas: DeltasOf[*Service](d), prev: p.observed, stale: services, order: compareServiceKeys,
		with: func(svc, before *Service) *Service { return withInlineHealth(svc, before, t.health.list) },
	}.apply()
	t.observed = observed
	note(d, deltas)
	all, moved := overlayPass[*Workload]{
		base: tableOf[*Workload](t).merged, deltas: DeltasOf[*Workload](d), prev: prev.Workloads, stale: workloads, order: compareKeys[*Workload],
		with: func(w, before *Workload) *Workload { return withHealth(w, before, t.health.list) },
	}.apply()
	note(d, moved)
	return all
}

// order fills the lists of the snapshot, each in the order that it promises.
func (s *Snapshot) order(prev *Snapshot, d *Diff, fragments []*Fragment) *Diff {
	s.Workloads = s.applyHealth(prev, d, fragments)
	s.Services = reorder(prev.Services, s.tables.observed, DeltasOf[*Service](d), CompareServices)
	for _, k := range kinds {
		k.publish(s, prev, d)
	}
	return d
}

// compareAge is the order of [Meta.Before].
func compareAge[T object](a, b T) int {
	switch {
	case a.meta().Before(b.meta()):
		return -1
	case b.meta().Before(a.meta()):
		return 1
	default:
		return 0
	}
}

// noteChanges lists what has another content than before.
func (s *Snapshot) noteChanges(prev *Snapshot, d *Diff) {
	var out []Change
	if reach := reachOfMeshConfig(prev.MeshConfig, s.MeshConfig); reach != ReachNone {
		out = append(out, Change{Key: s.MeshConfig.Key, Op: Updated, Reach: reach, Origin: s.MeshConfig.Origin})
	}
	if reach := reachOfNetworks(prev.MeshNetworks, s.MeshNetworks); reach != ReachNone {
		out = append(out, networksChange(prev.MeshNetworks, s.MeshNetworks, reach))
	}
	for _, k := range kinds {
		if k.changed(d) == 0 {
			continue
		}
		for c := range k.changes(d) {
			if c.Reach == ReachNone {
				continue
			}
			op := Updated
			switch {
			case c.Old == nil:
				op = Added
			case c.New == nil:
				op = Removed
			}
			out = append(out, Change{Key: c.newest().Key, Op: op, Reach: c.Reach, Origin: c.newest().Origin})
		}
	}
	slices.SortStableFunc(out, func(a, b Change) int { return a.Key.Compare(b.Key) })
	s.Changes = foldChanges(out)
	for i := range s.Changes { // of an object that gains or loses a host the others may be as they were
		c := &s.Changes[i]
		if len(span(prev.tables.observed, c.Key)) > 0 && len(span(s.tables.observed, c.Key)) > 0 {
			c.Op = Updated
		}
	}
	for _, c := range s.Changes {
		s.Changed = append(s.Changed, c.Key)
	}
}

// foldChanges makes one change of several with the same Key: a ServiceEntry
// that gained or lost one of its hosts was updated.
func foldChanges(list []Change) []Change {
	var out []Change
	for _, c := range list {
		n := len(out)
		if n == 0 || out[n-1].Key != c.Key {
			out = append(out, c)
			continue
		}
		last := &out[n-1]
		if last.Op == Removed {
			last.Origin = c.Origin
		}
		if last.Op != c.Op {
			last.Op = Updated
		}
		last.Reach = max(last.Reach, c.Reach)
	}
	return out
}
