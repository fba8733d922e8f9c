package mesh

import (
	"cmp"
	"maps"
	"slices"
)

// index holds what a Snapshot answers by look-up. Built once, then read-only;
// maps and slices in which nothing changed are those of the snapshot before.
type index struct {
	hosts      map[Hostname][]*Service
	addresses  map[string][]*Workload
	namespaces map[string]*namespaceIndex
}

// RootNamespace is the namespace whose policies hold for the whole mesh.
func (s *Snapshot) RootNamespace() string { return s.MeshConfig.Spec.GetRootNamespace() }

// TrustDomain is the name of the authority that this mesh's identities end in.
func (s *Snapshot) TrustDomain() string { return s.MeshConfig.Spec.GetTrustDomain() }

// ServicesOn returns the services of a host name, in any namespace, the one
// that wins a conflict first.
func (s *Snapshot) ServicesOn(host Hostname) []*Service {
	if s.index == nil {
		return nil
	}
	return s.index.hosts[host]
}

// EndpointsOf returns the workloads behind a service: those its selector
// chooses in its namespace, or those written inside it. Unhealthy ones are
// among them. Sorted by Key; those written inside stay in the order of the
// manifest.
func (s *Snapshot) EndpointsOf(svc *Service) []*Workload {
	return s.in(svc.Namespace).backings[svc].endpoints
}

// ServiceAccountsOf returns the identities of the workloads behind a service,
// healthy or not, sorted and without those that have none.
func (s *Snapshot) ServiceAccountsOf(svc *Service) []ServiceAccount {
	return s.in(svc.Namespace).backings[svc].accounts
}

// ServicesOf returns the services that select a workload, sorted as Services.
func (s *Snapshot) ServicesOf(w *Workload) []*Service { return s.in(w.Namespace).services[w] }

// WorkloadsIn returns the workloads of a namespace, sorted by name.
func (s *Snapshot) WorkloadsIn(namespace string) []*Workload { return s.in(namespace).workloads }

// WorkloadsAt returns the named workloads that have the address, sorted by Key.
func (s *Snapshot) WorkloadsAt(address string) []*Workload {
	if s.index == nil {
		return nil
	}
	return s.index.addresses[address]
}

// in returns the look-ups of a namespace; never nil.
func (s *Snapshot) in(namespace string) *namespaceIndex {
	if s.index != nil {
		if x := s.index.namespaces[namespace]; x != nil {
			return x
		}
	}
	return &namespaceIndex{}
}

// Selects reports whether every label of the selector is among the labels. An
// empty selector selects everything.
func Selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// compareServices is the order of Snapshot.Services.
func compareServices(a, b *Service) int {
	return cmp.Or(cmp.Compare(a.Hostname, b.Hostname), compareAge(a, b))
}

func buildIndex(prev *index, s *Snapshot, d *Diff) *index {
	if prev == nil || len(d.Services)+len(d.Workloads) > patchLimit {
		return newIndex(prev, s)
	}
	if len(d.Services)+len(d.Workloads) == 0 {
		return prev
	}
	x := &index{hosts: prev.hosts, addresses: prev.addresses, namespaces: maps.Clone(prev.namespaces)}
	if len(d.Services) > 0 {
		x.hosts = patchGroups(prev.hosts, d.Services, hostOf, compareServices)
	}
	if len(d.Workloads) > 0 {
		x.addresses = patchGroups(prev.addresses, d.Workloads, addressOf, compareKeys)
	}
	services := groupDeltas(d.Services)
	workloads := groupDeltas(d.Workloads)
	touched := map[string]bool{}
	for ns := range services {
		touched[ns] = true
	}
	for ns := range workloads {
		touched[ns] = true
	}
	for ns := range touched {
		before := x.namespaces[ns]
		if before == nil {
			before = &namespaceIndex{}
		}
		if x.namespaces[ns] = before.patched(services[ns], workloads[ns]); x.namespaces[ns].empty() {
			delete(x.namespaces, ns)
		}
	}
	return x
}

func newIndex(prev *index, s *Snapshot) *index {
	if prev == nil {
		prev = &index{}
	}
	x := &index{
		hosts:      group(prev.hosts, s.Services, hostOf),
		addresses:  group(prev.addresses, s.Workloads, addressOf),
		namespaces: map[string]*namespaceIndex{},
	}
	services := group(nil, s.Services, namespaceOf[*Service])
	workloads := group(nil, s.Workloads, namespaceOf[*Workload])
	for ns := range services {
		x.namespaces[ns] = nil
	}
	for ns := range workloads {
		x.namespaces[ns] = nil
	}
	for ns := range x.namespaces {
		x.namespaces[ns] = newNamespaceIndex(prev.namespaces[ns], services[ns], workloads[ns])
	}
	return x
}

func hostOf(s *Service) Hostname       { return s.Hostname }
func addressOf(w *Workload) string     { return w.Address }
func namespaceOf[T object](x T) string { return x.meta().Namespace }
func sameList[T comparable](a, b []T) []T {
	if slices.Equal(a, b) {
		return a
	}
	return b
}

// group files objects under a key each, keeping their order. The lists of prev
// that are right already are used again.
func group[K comparable, T object](prev map[K][]T, list []T, by func(T) K) map[K][]T {
	out := make(map[K][]T, len(prev))
	for _, x := range list {
		k := by(x)
		out[k] = append(out[k], x)
	}
	for k, list := range out {
		if before, ok := prev[k]; ok {
			out[k] = sameList(before, list)
		}
	}
	return out
}

// patchGroups applies deltas to a copy of what group made.
func patchGroups[K comparable, T object](prev map[K][]T, deltas []Delta[T], by func(T) K, order func(a, b T) int) map[K][]T {
	var zero T
	out := maps.Clone(prev)
	for _, d := range deltas {
		if d.Old != zero {
			k := by(d.Old)
			if out[k] = without(out[k], d.Old); len(out[k]) == 0 {
				delete(out, k)
			}
		}
		if d.New != zero {
			k := by(d.New)
			out[k] = with(out[k], d.New, order)
		}
	}
	return out
}

// without returns a copy of the list that lacks x.
func without[T comparable](list []T, x T) []T {
	i := slices.Index(list, x)
	if i < 0 {
		return list
	}
	return slices.Concat(list[:i], list[i+1:])
}

// with returns a copy of the sorted list that has x.
func with[T comparable](list []T, x T, order func(a, b T) int) []T {
	i, found := slices.BinarySearchFunc(list, x, order)
	if found && list[i] == x {
		return list
	}
	return slices.Concat(list[:i], []T{x}, list[i:])
}

func groupDeltas[T object](deltas []Delta[T]) map[string][]Delta[T] {
	var zero T
	out := map[string][]Delta[T]{}
	for _, d := range deltas {
		x := d.New
		if x == zero {
			x = d.Old
		}
		ns := x.meta().Namespace
		out[ns] = append(out[ns], d)
	}
	return out
}
