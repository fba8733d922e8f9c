package mesh

import "slices"

// Sorted returns the fragment with every list in the order that it should be
// in: itself where that is so already.
func (f *Fragment) Sorted() *Fragment {
	if slices.IsSortedFunc(f.Services, compareServiceKeys) && inOrder(f.Workloads) && inOrder(f.WorkloadGroups) &&
		inOrder(f.VirtualServices) && inOrder(f.DestinationRules) && inOrder(f.Sidecars) &&
		inOrder(f.PeerAuthentications) && inOrder(f.Unenforced) {
		return f
	}
	out := *f
	out.Services = sorted(f.Services, compareServiceKeys)
	out.Workloads = sorted(f.Workloads, compareKeys)
	out.WorkloadGroups = sorted(f.WorkloadGroups, compareKeys)
	out.VirtualServices = sorted(f.VirtualServices, compareKeys)
	out.DestinationRules = sorted(f.DestinationRules, compareKeys)
	out.Sidecars = sorted(f.Sidecars, compareKeys)
	out.PeerAuthentications = sorted(f.PeerAuthentications, compareKeys)
	out.Unenforced = sorted(f.Unenforced, compareKeys)
	return &out
}

func inOrder[T object](list []T) bool { return slices.IsSortedFunc(list, compareKeys[T]) }

// Count returns the number of objects, those of the namespace only where one is
// given. Services made from one ServiceEntry count once, health reports and the
// MeshConfig not at all.
func (f *Fragment) Count(namespace string) int {
	return count(f.Services, namespace) + count(f.Workloads, namespace) + count(f.WorkloadGroups, namespace) +
		count(f.VirtualServices, namespace) + count(f.DestinationRules, namespace) + count(f.Sidecars, namespace) +
		count(f.PeerAuthentications, namespace) + count(f.Unenforced, namespace)
}

func count[T object](list []T, namespace string) int {
	n := 0
	for i, x := range list {
		if i > 0 && list[i-1].meta().Key == x.meta().Key {
			continue
		}
		if namespace == "" || x.meta().Namespace == namespace {
			n++
		}
	}
	return n
}

// RemovedKeys returns what the fragment before has and the next one lacks, with
// the origins, sorted by Key within a kind. Both must be sorted.
func RemovedKeys(prev, next *Fragment) []Removal {
	if prev == next {
		return nil
	}
	var out []Removal
	out = appendRemoved(out, prev.Services, next.Services)
	out = appendRemoved(out, prev.Workloads, next.Workloads)
	out = appendRemoved(out, prev.WorkloadGroups, next.WorkloadGroups)
	out = appendRemoved(out, prev.VirtualServices, next.VirtualServices)
	out = appendRemoved(out, prev.DestinationRules, next.DestinationRules)
	out = appendRemoved(out, prev.Sidecars, next.Sidecars)
	out = appendRemoved(out, prev.PeerAuthentications, next.PeerAuthentications)
	return appendRemoved(out, prev.Unenforced, next.Unenforced)
}

// Removal is an object that is no longer there, and where it was.
type Removal struct {
	Key    Key
	Origin *Origin
}

func appendRemoved[T object](out []Removal, prev, next []T) []Removal {
	j := 0
	for i, x := range prev {
		m := x.meta()
		if i > 0 && prev[i-1].meta().Key == m.Key {
			continue
		}
		for j < len(next) && next[j] != x && next[j].meta().Compare(m.Key) < 0 {
			j++
		}
		if j == len(next) || next[j] != x && next[j].meta().Key != m.Key {
			out = append(out, Removal{Key: m.Key, Origin: m.Origin})
		}
	}
	return out
}

// LostInline tells for each service of both fragments which of the addresses
// written in it are gone; nil where there are none. Both must be sorted.
func LostInline(prev, next *Fragment) []InlineLoss {
	var out []InlineLoss
	j := 0
	for _, a := range prev.Services {
		for j < len(next.Services) && compareServiceKeys(next.Services[j], a) < 0 {
			j++
		}
		if j == len(next.Services) || next.Services[j] == a || compareServiceKeys(next.Services[j], a) != 0 {
			continue
		}
		if lost := lostAddresses(a.Inline, next.Services[j].Inline); len(lost) > 0 {
			out = append(out, InlineLoss{Service: a, Addresses: lost})
		}
	}
	return out
}

// InlineLoss is a service as it was, and the addresses that it lost, sorted.
type InlineLoss struct {
	Service   *Service
	Addresses []string
}

func lostAddresses(prev, next []*Workload) []string {
	if len(prev) == 0 || slices.Equal(prev, next) {
		return nil
	}
	left := map[string]int{}
	for _, w := range next {
		left[w.Address]++
	}
	var lost []string
	for _, w := range prev {
		if left[w.Address]--; left[w.Address] < 0 {
			lost = append(lost, w.Address)
		}
	}
	slices.Sort(lost)
	return lost
}

// Keep returns next with the objects of those keys as prev has them. Both must
// be sorted; where keys is empty, it is next itself.
func Keep(prev, next *Fragment, keys map[Key]bool) *Fragment {
	if len(keys) == 0 {
		return next
	}
	out := *next
	out.Services = keep(prev.Services, next.Services, keys, compareServiceKeys)
	out.Workloads = keep(prev.Workloads, next.Workloads, keys, compareKeys)
	out.WorkloadGroups = keep(prev.WorkloadGroups, next.WorkloadGroups, keys, compareKeys)
	out.VirtualServices = keep(prev.VirtualServices, next.VirtualServices, keys, compareKeys)
	out.DestinationRules = keep(prev.DestinationRules, next.DestinationRules, keys, compareKeys)
	out.Sidecars = keep(prev.Sidecars, next.Sidecars, keys, compareKeys)
	out.PeerAuthentications = keep(prev.PeerAuthentications, next.PeerAuthentications, keys, compareKeys)
	out.Unenforced = keep(prev.Unenforced, next.Unenforced, keys, compareKeys)
	return &out
}

func keep[T object](prev, next []T, keys map[Key]bool, order func(a, b T) int) []T {
	var kept []T
	for _, x := range prev {
		if keys[x.meta().Key] {
			kept = append(kept, x)
		}
	}
	if len(kept) == 0 {
		return next
	}
	out := make([]T, 0, len(next)+len(kept))
	for _, x := range next {
		if !keys[x.meta().Key] {
			out = append(out, x)
		}
	}
	out = append(out, kept...)
	slices.SortStableFunc(out, order)
	return out
}
