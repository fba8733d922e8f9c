package mesh

import (
	"cmp"
	"maps"
	"slices"
)

// namespaceIndex is the look-up tables of one namespace. It is immutable.
type namespaceIndex struct {
	// workloads are sorted by Key.
	workloads []*Workload
	// instances are those of a catalog, by service: a namespace may have a whole catalog,
	// and a service selects few of its instances.
	instances persistentMap[string, []*Workload]
	// services is how many there are.
	services int
	// selecting are the services with a selector, indexed by one label of it: a rare one,
	// so that a workload is compared with few services. Empty selectors have the zero
	// label.
	selecting persistentMap[label, []*Service]
	backings  persistentMap[*Service, backing]
}

type label struct{ key, value string }

// backing is the workloads of a service.
type backing struct {
	endpoints []*Workload
	accounts  []ServiceAccount
}

func (x *namespaceIndex) empty() bool { return len(x.workloads) == 0 && x.services == 0 }

// selectedBy returns the services that select the workload, sorted.
func (x *namespaceIndex) selectedBy(w *Workload) []*Service {
	return selectedBy(func(l label) []*Service { return x.selecting.get(l) }, w)
}

func selectedBy(selecting func(label) []*Service, w *Workload) []*Service {
	var out []*Service
	if _, instance := w.Labels[LabelConsulService]; !instance {
		out = slices.Clone(selecting(label{}))
	}
	for k, v := range w.Labels {
		for _, svc := range selecting(label{k, v}) {
			if ServiceSelects(svc.Selector, w.Labels) {
				out = append(out, svc)
			}
		}
	}
	slices.SortFunc(out, CompareServices)
	return out
}

// rarest returns the label of a selector that has the lowest count; none of an
// empty one.
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

func newBacking(prev backing, endpoints []*Workload) backing {
	if slices.Equal(prev.endpoints, endpoints) {
		return prev
	}
	var accounts []ServiceAccount
	var last ServiceAccount
	var seen map[ServiceAccount]bool // or nil: there is one at most
	for _, w := range endpoints {
		a := ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount}
		if a.Name == "" || a == last || seen[a] {
			continue
		}
		if seen == nil && len(accounts) > 0 {
			seen = map[ServiceAccount]bool{last: true}
		}
		if seen != nil {
			seen[a] = true
		}
		last = a
		accounts = append(accounts, a)
	}
	slices.SortFunc(accounts, func(a, b ServiceAccount) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if slices.Equal(prev.accounts, accounts) {
		accounts = prev.accounts
	}
	return backing{endpoints: endpoints, accounts: accounts}
}

// patched returns the tables after a change, and shares what did not change.
func (x *namespaceIndex) patched(services []Delta[*Service], workloads []Delta[*Workload]) *namespaceIndex {
	next := *x
	next.workloads = patched(x.workloads, workloads, compareKeys)
	next.instances = indexed(&x.instances, workloads, compareKeys, instanceOf)
	backings := x.backings.edit()
	if backings.size == 0 {
		backings.resize(len(services))
	}
	fresh := next.replaceServices(x, services, backings)
	next.fill(fresh, backings)
	moves := map[*Service][]Delta[*Workload]{}
	for _, d := range workloads {
		for svc, move := range next.moves(d) {
			if !fresh[svc] {
				moves[svc] = append(moves[svc], move)
			}
		}
	}
	for svc, deltas := range moves {
		before := backings.get(svc)
		backings.put(svc, newBacking(before, patched(before.endpoints, deltas, compareKeys)))
	}
	next.backings = backings.persistentMap
	return &next
}

// moves tells what the change of a workload is to the services that select it
// before or after.
func (x *namespaceIndex) moves(d Delta[*Workload]) map[*Service]Delta[*Workload] {
	out := map[*Service]Delta[*Workload]{}
	if d.Old != nil {
		for _, svc := range x.selectedBy(d.Old) {
			out[svc] = Delta[*Workload]{Old: d.Old}
		}
	}
	if d.New != nil {
		for _, svc := range x.selectedBy(d.New) {
			out[svc] = Delta[*Workload]{Old: out[svc].Old, New: d.New}
		}
	}
	return out
}

// replaceServices replaces services by their new versions. A new version with the same
// selector keeps the workloads; the others with a selector are returned.
func (x *namespaceIndex) replaceServices(prev *namespaceIndex, deltas []Delta[*Service], backings *mapEditor[*Service, backing]) map[*Service]bool {
	fresh := map[*Service]bool{}
	changes := map[label][]Delta[*Service]{}
	for _, d := range deltas {
		var before backing
		if d.Old != nil {
			before = prev.backings.get(d.Old)
			backings.delete(d.Old)
			x.services--
			if l, ok := prev.labelOf(d.Old); ok {
				changes[l] = append(changes[l], Delta[*Service]{Old: d.Old})
			}
		}
		if d.New == nil {
			continue
		}
		x.services++
		switch {
		case d.New.Selector == nil:
			backings.put(d.New, newBacking(before, d.New.Inline))
			continue
		case d.Old != nil && d.Old.Selector != nil && maps.Equal(d.Old.Selector, d.New.Selector):
			backings.put(d.New, before)
		default:
			fresh[d.New] = true
		}
		l := rarest(d.New.Selector, func(l label) int { return len(prev.selecting.get(l)) + len(changes[l]) })
		changes[l] = append(changes[l], Delta[*Service]{New: d.New})
	}
	if len(changes) == 0 {
		return nil
	}
	selecting := prev.selecting.edit()
	for l, deltas := range changes {
		if list := patched(prev.selecting.get(l), deltas, CompareServices); len(list) > 0 {
			selecting.put(l, list)
		} else {
			selecting.delete(l)
		}
	}
	x.selecting = selecting.persistentMap
	return fresh
}

// labelOf returns the label by which a service is indexed.
func (x *namespaceIndex) labelOf(svc *Service) (label, bool) {
	if svc.Selector == nil {
		return label{}, false
	}
	for k, v := range svc.Selector {
		if l := (label{k, v}); slices.Contains(x.selecting.get(l), svc) {
			return l, true
		}
	}
	return label{}, len(svc.Selector) == 0
}

// instanceOf is the service that a workload is an instance of, if it is one.
func instanceOf(w *Workload) []string {
	if name, ok := w.Labels[LabelConsulService]; ok {
		return []string{name}
	}
	return nil
}

// fill finds the workloads of services that are new, by looking at all workloads.
func (x *namespaceIndex) fill(fresh map[*Service]bool, backings *mapEditor[*Service, backing]) {
	if len(fresh) == 0 {
		return
	}
	endpoints := make(map[*Service][]*Workload, len(fresh))
	asked := map[label]int{}
	others := make(map[*Service]bool, len(fresh))
	for svc := range fresh {
		if name, instances := svc.Selector[LabelConsulService]; instances {
			for _, w := range x.instances.get(name) {
				if Selects(svc.Selector, w.Labels) {
					endpoints[svc] = append(endpoints[svc], w)
				}
			}
			continue
		}
		others[svc] = true
		for k, v := range svc.Selector {
			asked[label{k, v}]++
		}
	}
	selecting := map[label][]*Service{}
	for svc := range others {
		l := rarest(svc.Selector, func(l label) int { return asked[l] })
		selecting[l] = append(selecting[l], svc)
	}
	all := x.workloads
	if len(others) == 0 {
		all = nil
	}
	for _, w := range all {
		if _, instance := w.Labels[LabelConsulService]; instance {
			continue // nobody asks for it
		}
		for _, svc := range selectedBy(func(l label) []*Service { return selecting[l] }, w) {
			endpoints[svc] = append(endpoints[svc], w)
		}
	}
	for svc := range fresh {
		backings.put(svc, newBacking(backing{}, endpoints[svc]))
	}
}
