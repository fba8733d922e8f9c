package mesh

import "slices"

// NewSnapshot merges what the sources have said into the state of the mesh.
// Fragments count in their order: where two sources give the same Key, the
// first one wins. prev is the snapshot before, or nil; what did not change is
// shared with it. Without a MeshConfig in any fragment, fallback is used.
func NewSnapshot(prev *Snapshot, fallback *MeshConfig, fragments []*Fragment) *Snapshot {
	s := &Snapshot{Generation: 1, MeshConfig: fallback}
	if prev != nil {
		s.Generation = prev.Generation + 1
	}
	for _, f := range fragments {
		if f.MeshConfig != nil {
			s.MeshConfig = f.MeshConfig
		}
		s.Services = append(s.Services, f.Services...)
		s.Workloads = append(s.Workloads, f.Workloads...)
		s.WorkloadGroups = append(s.WorkloadGroups, f.WorkloadGroups...)
		s.VirtualServices = append(s.VirtualServices, f.VirtualServices...)
		s.DestinationRules = append(s.DestinationRules, f.DestinationRules...)
		s.Sidecars = append(s.Sidecars, f.Sidecars...)
		s.PeerAuthentications = append(s.PeerAuthentications, f.PeerAuthentications...)
		s.Unenforced = append(s.Unenforced, f.Unenforced...)
	}
	sortServices(s.Services)
	slices.SortStableFunc(s.Workloads, func(a, b *Workload) int { return a.Compare(b.Key) })
	slices.SortStableFunc(s.VirtualServices, func(a, b *VirtualService) int { return compareMeta(&a.Meta, &b.Meta) })
	slices.SortStableFunc(s.DestinationRules, func(a, b *DestinationRule) int { return compareMeta(&a.Meta, &b.Meta) })
	slices.SortStableFunc(s.Sidecars, func(a, b *Sidecar) int { return compareMeta(&a.Meta, &b.Meta) })
	slices.SortStableFunc(s.PeerAuthentications, func(a, b *PeerAuthentication) int { return compareMeta(&a.Meta, &b.Meta) })
	s.buildIndex()
	return s
}
