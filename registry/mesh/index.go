package mesh

import (
	"cmp"
	"slices"
)

// index holds the look-up tables of a Snapshot. It is immutable; the next snapshot's index
// shares what did not change.
type index struct {
	hosts     persistentMap[Hostname, []*Service]
	addresses persistentMap[string, []*Workload]
	// inline are the services with an endpoint of an address written in them.
	inline     persistentMap[string, []*Service]
	namespaces persistentMap[string, *namespaceIndex]
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
	return s.index.hosts.get(host)
}

// EndpointsOf returns the workloads behind a service: those its selector
// chooses in its namespace, or those written inside it. Unhealthy ones are
// among them. Sorted by Key; those written inside stay in the order of the
// manifest.
func (s *Snapshot) EndpointsOf(svc *Service) []*Workload {
	return s.in(svc.Namespace).backings.get(svc).endpoints
}

// ServiceAccountsOf returns the identities of the workloads behind a service,
// healthy or not, sorted and without those that have none.
func (s *Snapshot) ServiceAccountsOf(svc *Service) []ServiceAccount {
	return s.in(svc.Namespace).backings.get(svc).accounts
}

// ServicesOf returns the services that select a workload, sorted as Services.
// Endpoints written in a service are selected by none.
func (s *Snapshot) ServicesOf(w *Workload) []*Service {
	if w.Name == "" {
		return nil
	}
	return s.in(w.Namespace).selectedBy(w)
}

// WorkloadsIn returns the workloads of a namespace, sorted by name.
func (s *Snapshot) WorkloadsIn(namespace string) []*Workload { return s.in(namespace).workloads }

// WorkloadsAt returns the named workloads that have the address, sorted by Key.
func (s *Snapshot) WorkloadsAt(address string) []*Workload {
	if s.index == nil {
		return nil
	}
	return s.index.addresses.get(address)
}

// InlineAt returns the services with an endpoint of that address written in them.
func (s *Snapshot) InlineAt(address string) []*Service {
	if s.index == nil {
		return nil
	}
	return s.index.inline.get(address)
}

// in returns the look-ups of a namespace; never nil.
func (s *Snapshot) in(namespace string) *namespaceIndex {
	if s.index != nil {
		if x := s.index.namespaces.get(namespace); x != nil {
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

// CompareServices is the order of Snapshot.Services.
func CompareServices(a, b *Service) int {
	c := cmp.Compare(a.Hostname, b.Hostname)
	switch {
	case c != 0:
		return c
	case a.Catalog == b.Catalog:
		return compareAge(a, b)
	case b.Catalog:
		return -1
	default:
		return 1
	}
}

// buildIndex makes the look-ups of a snapshot from those of the one before.
func buildIndex(prev *index, d *Diff) *index {
	if prev == nil {
		prev = &index{}
	}
	changedServices, changedWorkloads := DeltasOf[*Service](d), DeltasOf[*Workload](d)
	if len(changedServices)+len(changedWorkloads) == 0 {
		return prev
	}
	x := &index{
		hosts:      indexed(&prev.hosts, changedServices, CompareServices, hostOf),
		addresses:  indexed(&prev.addresses, changedWorkloads, compareKeys, func(w *Workload) []string { return []string{w.Address} }),
		inline:     indexed(&prev.inline, changedServices, CompareServices, inlineAddresses),
		namespaces: prev.namespaces,
	}
	services, workloads := groupDeltas(changedServices), groupDeltas(changedWorkloads)
	changed := map[string]bool{}
	for ns := range services {
		changed[ns] = true
	}
	for ns := range workloads {
		changed[ns] = true
	}
	namespaces := prev.namespaces.edit()
	for ns := range changed {
		before := prev.namespaces.get(ns)
		if before == nil {
			before = &namespaceIndex{}
		}
		if after := before.patched(services[ns], workloads[ns]); after.empty() {
			namespaces.delete(ns)
		} else {
			namespaces.put(ns, after)
		}
	}
	x.namespaces = namespaces.persistentMap
	return x
}

func inlineAddresses(s *Service) []string {
	if len(s.Inline) == 0 {
		return nil
	}
	out := make([]string, 0, len(s.Inline))
	for _, w := range s.Inline {
		out = append(out, w.Address)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// indexed indexes objects by keys; each list is sorted.
func indexed[K, T comparable](prev *persistentMap[K, []T], deltas []Delta[T], order func(a, b T) int, under func(T) []K) persistentMap[K, []T] {
	var zero T
	changes := map[K][]Delta[T]{}
	for _, d := range deltas {
		if d.Old != zero {
			for _, k := range under(d.Old) {
				changes[k] = append(changes[k], Delta[T]{Old: d.Old})
			}
		}
		if d.New != zero {
			for _, k := range under(d.New) {
				changes[k] = append(changes[k], Delta[T]{New: d.New})
			}
		}
	}
	if len(changes) == 0 {
		return *prev
	}
	next := prev.edit()
	if prev.size == 0 {
		next.resize(len(changes))
	}
	for k, deltas := range changes {
		if list := patched(prev.get(k), deltas, order); len(list) > 0 {
			next.put(k, list)
		} else {
			next.delete(k)
		}
	}
	return next.persistentMap
}

// patched applies deltas to a short list of which the order need not be strict.
func patched[T comparable](list []T, deltas []Delta[T], order func(a, b T) int) []T {
	var zero T
	if out, ok := patch(list, deltas, order); ok {
		return out
	}
	out := slices.Clone(list)
	for _, d := range deltas {
		if i := slices.Index(out, d.Old); i >= 0 {
			out = slices.Delete(out, i, i+1)
		}
		if d.New != zero {
			out = append(out, d.New)
		}
	}
	slices.SortStableFunc(out, order)
	return out
}

func groupDeltas[T object](deltas []Delta[T]) map[string][]Delta[T] {
	out := map[string][]Delta[T]{}
	for _, d := range deltas {
		ns := newest(d).meta().Namespace
		out[ns] = append(out[ns], d)
	}
	return out
}
