package mesh

import (
	"slices"
)

// Input is what a snapshot is made of.
type Input struct {
	// Prev is the snapshot before, or nil.
	Prev *Snapshot
	// Fallback is the MeshConfig that counts where no fragment has one; must be
	// non-nil.
	Fallback *MeshConfig
	// Fragments count in their order: where two sources give the same Key, the
	// first one wins. A nil among them is a source that has delivered nothing.
	Fragments []*Fragment
	// Missing are the names of the sources that have delivered nothing since
	// the process started.
	Missing []string
}

// NewSnapshot merges what the sources have said into the state of the mesh.
// Fragments count in their order: where two sources give the same Key, the
// first one wins. prev is the snapshot before, or nil; what did not change is
// shared with it. Without a MeshConfig in any fragment, fallback is used.
func NewSnapshot(prev *Snapshot, fallback *MeshConfig, fragments []*Fragment) *Snapshot {
	return Merge(Input{Prev: prev, Fallback: fallback, Fragments: fragments})
}

// Merge makes a snapshot. The same fragments give the same snapshot, with or
// without a snapshot before it; only Generation, Changed and Changes tell the
// difference.
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
	fragments := slices.DeleteFunc(slices.Clone(in.Fragments), func(f *Fragment) bool { return f == nil })
	for _, f := range fragments {
		if f.MeshConfig != nil {
			s.MeshConfig = f.MeshConfig
			break
		}
	}
	s.mergeTables(prev, fragments)
	diff := s.order(prev, s.judge(prev, fragments))
	s.index = buildIndex(prev.index, s, diff)
	if !first {
		diff.Backings = s.touched(prev, diff.Workloads)
		s.diff = diff
		s.noteChanges(prev, diff)
	}
	return s
}

func (s *Snapshot) mergeTables(prev *Snapshot, fragments []*Fragment) {
	p, t := &prev.tables, &s.tables
	t.services = mergeTable(&p.services, lists(fragments, func(f *Fragment) []*Service { return f.Services }), compareServiceKeys)
	t.workloads = mergeTable(&p.workloads, lists(fragments, func(f *Fragment) []*Workload { return f.Workloads }), compareKeys)
	t.workloadGroups = mergeTable(&p.workloadGroups,
		lists(fragments, func(f *Fragment) []*WorkloadGroup { return f.WorkloadGroups }), compareKeys)
	t.virtualServices = mergeTable(&p.virtualServices,
		lists(fragments, func(f *Fragment) []*VirtualService { return f.VirtualServices }), compareKeys)
	t.destinationRules = mergeTable(&p.destinationRules,
		lists(fragments, func(f *Fragment) []*DestinationRule { return f.DestinationRules }), compareKeys)
	t.sidecars = mergeTable(&p.sidecars, lists(fragments, func(f *Fragment) []*Sidecar { return f.Sidecars }), compareKeys)
	t.peerAuthentications = mergeTable(&p.peerAuthentications,
		lists(fragments, func(f *Fragment) []*PeerAuthentication { return f.PeerAuthentications }), compareKeys)
	t.unenforced = mergeTable(&p.unenforced, lists(fragments, func(f *Fragment) []*Unenforced { return f.Unenforced }), compareKeys)

	s.Conflicts = slices.Concat(
		t.services.conflicts, t.workloads.conflicts, t.workloadGroups.conflicts, t.virtualServices.conflicts,
		t.destinationRules.conflicts, t.sidecars.conflicts, t.peerAuthentications.conflicts, t.unenforced.conflicts,
	)
	slices.SortStableFunc(s.Conflicts, func(a, b Conflict) int { return a.Key.Compare(b.Key) })
}

func lists[T any](fragments []*Fragment, of func(*Fragment) []T) [][]T {
	out := make([][]T, len(fragments))
	for i, f := range fragments {
		out[i] = of(f)
	}
	return out
}

// judge lays what is reported of health over workloads and inline endpoints. It
// returns the workloads.
func (s *Snapshot) judge(prev *Snapshot, fragments []*Fragment) []*Workload {
	p, t := &prev.tables, &s.tables
	t.reports = lists(fragments, func(f *Fragment) []HealthReport { return f.Health })
	var changed map[string]bool
	t.verdicts, changed = mergeReports(p, t.reports)
	stale := func(w *Workload) bool { return len(changed) > 0 && changed[w.Address] }
	t.judged = judgeAll(judgement[*Service]{
		base: t.services.merged, prevBase: p.services.merged, prev: p.judged, order: compareServiceKeys,
		stale: func(svc *Service) bool { return slices.ContainsFunc(svc.Inline, stale) },
		judge: func(svc, before *Service) *Service { return judgeInline(svc, before, t.verdicts) },
	})
	return judgeAll(judgement[*Workload]{
		base: t.workloads.merged, prevBase: p.workloads.merged, prev: prev.Workloads, order: compareKeys[*Workload],
		stale: stale,
		judge: func(w, before *Workload) *Workload { return judge(w, before, t.verdicts) },
	})
}

// order fills the lists of the snapshot, each in the order that it promises.
func (s *Snapshot) order(prev *Snapshot, workloads []*Workload) *Diff {
	p, t := &prev.tables, &s.tables
	d := &Diff{
		Services:            diff(p.judged, t.judged, compareServiceKeys),
		Workloads:           diff(prev.Workloads, workloads, compareKeys),
		WorkloadGroups:      diff(p.workloadGroups.merged, t.workloadGroups.merged, compareKeys),
		VirtualServices:     diff(p.virtualServices.merged, t.virtualServices.merged, compareKeys),
		DestinationRules:    diff(p.destinationRules.merged, t.destinationRules.merged, compareKeys),
		Sidecars:            diff(p.sidecars.merged, t.sidecars.merged, compareKeys),
		PeerAuthentications: diff(p.peerAuthentications.merged, t.peerAuthentications.merged, compareKeys),
		Unenforced:          diff(p.unenforced.merged, t.unenforced.merged, compareKeys),
	}
	s.Workloads = workloads
	s.WorkloadGroups = t.workloadGroups.merged
	s.Unenforced = t.unenforced.merged
	s.Services = reorder(prev.Services, t.judged, d.Services, compareServices)
	s.VirtualServices = reorder(prev.VirtualServices, t.virtualServices.merged, d.VirtualServices, compareAge)
	s.DestinationRules = reorder(prev.DestinationRules, t.destinationRules.merged, d.DestinationRules, compareAge)
	s.Sidecars = reorder(prev.Sidecars, t.sidecars.merged, d.Sidecars, compareAge)
	s.PeerAuthentications = reorder(prev.PeerAuthentications, t.peerAuthentications.merged, d.PeerAuthentications, compareAge)
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
	out = appendChanges(out, d.Services)
	out = appendChanges(out, d.Workloads)
	out = appendChanges(out, d.WorkloadGroups)
	out = appendChanges(out, d.VirtualServices)
	out = appendChanges(out, d.DestinationRules)
	out = appendChanges(out, d.Sidecars)
	out = appendChanges(out, d.PeerAuthentications)
	out = appendChanges(out, d.Unenforced)
	slices.SortStableFunc(out, func(a, b Change) int { return a.Key.Compare(b.Key) })
	s.Changes = foldChanges(out)
	for _, c := range s.Changes {
		s.Changed = append(s.Changed, c.Key)
	}
}

func appendChanges[T object](out []Change, deltas []Delta[T]) []Change {
	var zero T
	for _, d := range deltas {
		reach := reachOfDelta(d)
		switch {
		case reach == ReachNone:
		case d.Old == zero:
			out = append(out, Change{Key: d.New.meta().Key, Op: Added, Reach: reach, Origin: d.New.meta().Origin})
		case d.New == zero:
			out = append(out, Change{Key: d.Old.meta().Key, Op: Removed, Reach: reach, Origin: d.Old.meta().Origin})
		default:
			out = append(out, Change{Key: d.New.meta().Key, Op: Updated, Reach: reach, Origin: d.New.meta().Origin})
		}
	}
	return out
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
