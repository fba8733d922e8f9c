package mesh

import (
	"iter"
	"maps"
	"slices"
)

// Sorted returns the fragment with every list sorted; the fragment itself if it is sorted
// already.
func (f *Fragment) Sorted() *Fragment {
	if !slices.ContainsFunc(kinds, func(k kind) bool { return !k.sorted(f) }) {
		return f
	}
	out := *f
	for _, k := range kinds {
		k.sort(&out)
	}
	return &out
}

// Count returns the number of objects; those of one namespace, if one is given. Services
// made from one ServiceEntry count once. Health reports, MeshConfig and MeshNetworks do not count.
func (f *Fragment) Count(namespace string) int {
	n := 0
	for _, k := range kinds {
		var last Key
		for m := range k.all(f) {
			if key := m.Key; key != last && (namespace == "" || key.Namespace == namespace) {
				n++
				last = key
			}
		}
	}
	return n
}

// Empty reports whether there is nothing that Count counts.
func (f *Fragment) Empty() bool {
	for _, k := range kinds {
		for range k.all(f) {
			return false
		}
	}
	return true
}

// Objects are the objects of every kind, kind by kind, with their pointers; MeshConfig and
// MeshNetworks are not among them.
func (f *Fragment) Objects() iter.Seq2[*Meta, any] {
	return func(yield func(*Meta, any) bool) {
		for _, k := range kinds {
			for m, x := range k.all(f) {
				if !yield(m, x) {
					return
				}
			}
		}
	}
}

// Same reports whether two fragments hold the same objects, by pointer; health
// does not count.
func (f *Fragment) Same(o *Fragment) bool {
	return f.MeshConfig == o.MeshConfig && f.MeshNetworks == o.MeshNetworks && !slices.ContainsFunc(kinds, func(k kind) bool { return !k.same(f, o) })
}

// Removed returns the objects that the first fragment has and the second lacks,
// with the origins, sorted by Key within a kind.
func (d *Difference) Removed() []Removal {
	var out []Removal
	for _, k := range kinds {
		var last Key
		for c := range k.changes(&d.objects) {
			if c.New != nil || c.Old.Key == last || k.has(d.next, c.Old.Key) {
				continue // the object, or another host of it, still exists or is listed already
			}
			last = c.Old.Key
			out = append(out, Removal{Key: last, Origin: c.Old.Origin})
		}
	}
	return out
}

// Added returns the keys of the objects that the second fragment has and the first lacks.
func (d *Difference) Added() []Key {
	var out []Key
	for _, k := range kinds {
		var last Key
		for c := range k.changes(&d.objects) {
			if c.Old != nil || c.New.Key == last || k.has(d.prev, c.New.Key) {
				continue // the object, or another host of it, existed or is listed already
			}
			last = c.New.Key
			out = append(out, last)
		}
	}
	return out
}

// Workloads are the workloads that differ, in no particular order.
func (d *Difference) Workloads() []Delta[*Workload] { return DeltasOf[*Workload](&d.objects) }

// Services are the services that differ, in no particular order.
func (d *Difference) Services() []Delta[*Service] { return DeltasOf[*Service](&d.objects) }

// Moved are the keys of workloads that the second fragment has under another key, with the
// same identity, address and ports: catalog instances that were registered again with
// another ID.
func (d *Difference) Moved() map[Key]bool {
	type place struct{ namespace, account, address string }
	fresh := map[place][]*Workload{}
	for _, x := range DeltasOf[*Workload](&d.objects) {
		if x.Old == nil {
			at := place{x.New.Namespace, x.New.ServiceAccount, x.New.Address}
			fresh[at] = append(fresh[at], x.New)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	out := map[Key]bool{}
	for _, x := range DeltasOf[*Workload](&d.objects) {
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

// Growth is the difference of the numbers of objects, as counted by [Fragment.Count].
func (d *Difference) Growth() int {
	n := 0
	for _, k := range kinds {
		var last Key
		for c := range k.changes(&d.objects) {
			key := c.newest().Key
			if key == last {
				continue // another host of the same object
			}
			last = key
			if k.has(d.next, key) {
				n++
			}
			if k.has(d.prev, key) {
				n--
			}
		}
	}
	return n
}

// Removal is an object that was removed, and its origin.
type Removal struct {
	Key    Key
	Origin *Origin
}

// LostInline returns, for each service in both fragments, the addresses of inline endpoints
// that are gone; nil if there are none.
func (d *Difference) LostInline() []InlineLoss {
	var out []InlineLoss
	for _, x := range DeltasOf[*Service](&d.objects) {
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
	if slices.Equal(prev, next) {
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

// Keep returns next with the objects of those keys as they are in prev, MeshNetworks among them.
// Both must be sorted. If keys is empty, it returns next itself.
func Keep(prev, next *Fragment, keys map[Key]bool) *Fragment {
	if len(keys) == 0 {
		return next
	}
	out := *next
	for _, k := range kinds {
		k.keep(prev, &out, keys)
	}
	if prev.MeshNetworks != nil && keys[prev.MeshNetworks.Key] {
		out.MeshNetworks = prev.MeshNetworks
	}
	return &out
}
