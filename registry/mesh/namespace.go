package mesh

import (
	"cmp"
	"maps"
	"slices"
)

// namespaceIndex is the look-ups within one namespace. Read-only.
type namespaceIndex struct {
	// workloads are sorted by Key.
	workloads []*Workload
	// all are the services of the namespace, sorted as Snapshot.Services.
	all []*Service
	// selecting are the services with a selector, each under one label of its
	// selector: the one that the fewest others ask for, so that a workload is
	// compared with few of them. Empty selectors are under the zero label.
	selecting map[label][]*Service
	backings  map[*Service]backing
	// services are those that select a workload, sorted as Snapshot.Services.
	services map[*Workload][]*Service
}

type label struct{ key, value string }

// backing is what stands behind a service.
type backing struct {
	endpoints []*Workload
	accounts  []ServiceAccount
}

func (x *namespaceIndex) empty() bool { return len(x.workloads) == 0 && len(x.all) == 0 }

func newNamespaceIndex(prev *namespaceIndex, services []*Service, workloads []*Workload) *namespaceIndex {
	if prev == nil {
		prev = &namespaceIndex{}
	} else if slices.Equal(prev.all, services) && slices.Equal(prev.workloads, workloads) {
		return prev
	}
	x := &namespaceIndex{
		workloads: sameList(prev.workloads, workloads),
		all:       sameList(prev.all, services),
		backings:  make(map[*Service]backing, len(services)),
		services:  make(map[*Workload][]*Service, len(workloads)),
	}
	x.file()
	endpoints := make(map[*Service][]*Workload, len(services))
	for _, w := range x.workloads {
		selecting := x.selectedBy(w)
		if len(selecting) == 0 {
			continue
		}
		x.services[w] = sameList(prev.services[w], selecting)
		for _, svc := range selecting {
			endpoints[svc] = append(endpoints[svc], w)
		}
	}
	for _, svc := range x.all {
		list := svc.Inline
		if svc.Selector != nil {
			list = endpoints[svc]
		}
		x.backings[svc] = newBacking(prev.backings[svc], list)
	}
	return x
}

// file fills selecting.
func (x *namespaceIndex) file() {
	asked := map[label]int{}
	for _, svc := range x.all {
		for k, v := range svc.Selector {
			asked[label{k, v}]++
		}
	}
	x.selecting = map[label][]*Service{}
	for _, svc := range x.all {
		if svc.Selector != nil {
			l := rarest(svc.Selector, func(l label) int { return asked[l] })
			x.selecting[l] = append(x.selecting[l], svc)
		}
	}
}

// rarest returns the label of a selector that has the lowest count.
func rarest(selector map[string]string, count func(label) int) label {
	var best label
	fewest := -1
	for k, v := range selector {
		l := label{k, v}
		n := count(l)
		if fewest < 0 || n < fewest || n == fewest && cmp.Or(cmp.Compare(l.key, best.key), cmp.Compare(l.value, best.value)) < 0 {
			best, fewest = l, n
		}
	}
	return best
}

// selectedBy returns the services that select the workload, sorted.
func (x *namespaceIndex) selectedBy(w *Workload) []*Service {
	out := slices.Clone(x.selecting[label{}])
	for k, v := range w.Labels {
		for _, svc := range x.selecting[label{k, v}] {
			if Selects(svc.Selector, w.Labels) {
				out = append(out, svc)
			}
		}
	}
	slices.SortFunc(out, compareServices)
	return out
}

func newBacking(prev backing, endpoints []*Workload) backing {
	endpoints = sameList(prev.endpoints, endpoints)
	seen := map[ServiceAccount]bool{}
	var accounts []ServiceAccount
	for _, w := range endpoints {
		a := ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount}
		if a.Name != "" && !seen[a] {
			seen[a] = true
			accounts = append(accounts, a)
		}
	}
	slices.SortFunc(accounts, func(a, b ServiceAccount) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return backing{endpoints: endpoints, accounts: sameList(prev.accounts, accounts)}
}

// patched returns a copy with the deltas applied; what they do not touch is
// shared.
func (x *namespaceIndex) patched(services []Delta[*Service], workloads []Delta[*Workload]) *namespaceIndex {
	next := *x
	next.backings = cloned(x.backings)
	if len(workloads) > 0 {
		next.services = cloned(x.services)
		for _, d := range workloads {
			next.replaceWorkload(d.Old, d.New)
		}
	}
	if len(services) > 0 {
		next.selecting = cloned(x.selecting)
		next.services = cloned(next.services)
		for _, d := range services {
			next.dropService(d.Old)
			next.addService(d.New, next.backings[d.Old])
			delete(next.backings, d.Old)
		}
	}
	return &next
}

// cloned is maps.Clone that never returns nil.
func cloned[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return maps.Clone(m)
}

// replaceWorkload takes old out and puts next in; each may be nil.
func (x *namespaceIndex) replaceWorkload(old, next *Workload) {
	touched := map[*Service][]*Workload{}
	if old != nil {
		x.workloads = without(x.workloads, old)
		for _, svc := range x.services[old] {
			touched[svc] = without(x.backings[svc].endpoints, old)
		}
		delete(x.services, old)
	}
	if next != nil {
		x.workloads = with(x.workloads, next, compareKeys)
		if selecting := x.selectedBy(next); len(selecting) > 0 {
			x.services[next] = selecting
			for _, svc := range selecting {
				list, ok := touched[svc]
				if !ok {
					list = x.backings[svc].endpoints
				}
				touched[svc] = with(list, next, compareKeys)
			}
		}
	}
	for svc, list := range touched {
		x.backings[svc] = newBacking(x.backings[svc], list)
	}
}

func (x *namespaceIndex) dropService(svc *Service) {
	if svc == nil {
		return
	}
	x.all = without(x.all, svc)
	if svc.Selector == nil {
		return
	}
	for _, w := range x.backings[svc].endpoints {
		if x.services[w] = without(x.services[w], svc); len(x.services[w]) == 0 {
			delete(x.services, w)
		}
	}
	for l, list := range x.selecting {
		if slices.Contains(list, svc) {
			if x.selecting[l] = without(list, svc); len(x.selecting[l]) == 0 {
				delete(x.selecting, l)
			}
			return
		}
	}
}

// addService puts a service in; before is what stood behind its predecessor.
func (x *namespaceIndex) addService(svc *Service, before backing) {
	if svc == nil {
		return
	}
	x.all = with(x.all, svc, compareServices)
	if svc.Selector == nil {
		x.backings[svc] = newBacking(before, svc.Inline)
		return
	}
	l := rarest(svc.Selector, func(l label) int { return len(x.selecting[l]) })
	x.selecting[l] = with(x.selecting[l], svc, compareServices)
	var endpoints []*Workload
	for _, w := range x.workloads {
		if Selects(svc.Selector, w.Labels) {
			endpoints = append(endpoints, w)
			x.services[w] = with(x.services[w], svc, compareServices)
		}
	}
	x.backings[svc] = newBacking(before, endpoints)
}
