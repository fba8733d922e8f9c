package mesh

import (
	"maps"
	"slices"
)

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

// Empty reports whether there is nothing that Count counts.
func (f *Fragment) Empty() bool {
	return len(f.Services)+len(f.Workloads)+len(f.WorkloadGroups)+len(f.VirtualServices)+len(f.DestinationRules)+
		len(f.Sidecars)+len(f.PeerAuthentications)+len(f.Unenforced) == 0
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

// Removed returns the objects that the first fragment has and the second lacks,
// with the origins, sorted by Key within a kind.
func (d *Difference) Removed() []Removal {
	var out []Removal
	o, n := &d.objects, d.next
	out = appendRemoved(out, o.Services, n.Services)
	out = appendRemoved(out, o.Workloads, n.Workloads)
	out = appendRemoved(out, o.WorkloadGroups, n.WorkloadGroups)
	out = appendRemoved(out, o.VirtualServices, n.VirtualServices)
	out = appendRemoved(out, o.DestinationRules, n.DestinationRules)
	out = appendRemoved(out, o.Sidecars, n.Sidecars)
	out = appendRemoved(out, o.PeerAuthentications, n.PeerAuthentications)
	return appendRemoved(out, o.Unenforced, n.Unenforced)
}

// Moved are the keys of workloads that the second fragment lacks, but has under
// another key with the same identity, address and ports: a catalog's instance that
// was registered anew under another ID.
func (d *Difference) Moved() map[Key]bool {
	type place struct{ namespace, account, address string }
	fresh := map[place][]*Workload{}
	for _, x := range d.objects.Workloads {
		if x.Old == nil {
			at := place{x.New.Namespace, x.New.ServiceAccount, x.New.Address}
			fresh[at] = append(fresh[at], x.New)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	out := map[Key]bool{}
	for _, x := range d.objects.Workloads {
		if x.New != nil {
			continue
		}
		same := func(w *Workload) bool { return maps.Equal(w.Ports, x.Old.Ports) && sameService(w, x.Old) }
		if slices.ContainsFunc(fresh[place{x.Old.Namespace, x.Old.ServiceAccount, x.Old.Address}], same) {
			out[x.Old.Key] = true
		}
	}
	return out
}

// sameService reports whether two workloads are instances of one service of a
// catalog, or of none.
func sameService(a, b *Workload) bool {
	return a.Labels[LabelConsulService] == b.Labels[LabelConsulService]
}

// Growth is by how many objects the second fragment is larger, counted as by
// [Fragment.Count].
func (d *Difference) Growth() int {
	o := &d.objects
	return growth(o.Services, d.prev.Services, d.next.Services) + growth(o.Workloads, d.prev.Workloads, d.next.Workloads) +
		growth(o.WorkloadGroups, d.prev.WorkloadGroups, d.next.WorkloadGroups) +
		growth(o.VirtualServices, d.prev.VirtualServices, d.next.VirtualServices) +
		growth(o.DestinationRules, d.prev.DestinationRules, d.next.DestinationRules) +
		growth(o.Sidecars, d.prev.Sidecars, d.next.Sidecars) +
		growth(o.PeerAuthentications, d.prev.PeerAuthentications, d.next.PeerAuthentications) +
		growth(o.Unenforced, d.prev.Unenforced, d.next.Unenforced)
}

func growth[T object](deltas []Delta[T], prev, next []T) int {
	n := 0
	var last Key
	for i, d := range deltas {
		key := newest(d).meta().Key
		if i > 0 && key == last {
			continue // another host of the same object
		}
		last = key
		n += min(1, len(span(next, key))) - min(1, len(span(prev, key)))
	}
	return n
}

// Removal is an object that is no longer there, and where it was.
type Removal struct {
	Key    Key
	Origin *Origin
}

func appendRemoved[T object](out []Removal, deltas []Delta[T], next []T) []Removal {
	var zero T
	for _, d := range deltas {
		if d.Old == zero || d.New != zero {
			continue
		}
		m := d.Old.meta()
		if n := len(out); n > 0 && out[n-1].Key == m.Key || len(span(next, m.Key)) > 0 {
			continue // another host of the same object
		}
		out = append(out, Removal{Key: m.Key, Origin: m.Origin})
	}
	return out
}

// LostInline tells for each service of both fragments which of the addresses
// written in it are gone; nil where there are none.
func (d *Difference) LostInline() []InlineLoss {
	var out []InlineLoss
	for _, x := range d.objects.Services {
		if x.Old == nil || x.New == nil {
			continue
		}
		if lost := lostAddresses(x.Old.Inline, x.New.Inline); len(lost) > 0 {
			out = append(out, InlineLoss{Service: x.Old, Addresses: lost})
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
