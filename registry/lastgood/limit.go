package lastgood

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// DefaultMaxExpansion is how much all objects of a source that is bound to namespaces may be
// after expansion, if nothing else is said.
const DefaultMaxExpansion = 1_000_000

// MaxWeight is what all objects of such a source may cost a proxy, in units of 500 bytes; see
// [manifest.Object.Weight].
const MaxWeight = 1_000_000

// Sized is an object with what it makes after expansion.
type Sized struct {
	Key       mesh.Key
	Expansion int
	// Weight is what it costs each proxy; see [manifest.Object.Weight].
	Weight int
	// Fragment has the object alone, as it is in the mesh.
	Fragment *mesh.Fragment
}

// Excess is an object that is refused, because its source has too much.
type Excess struct {
	// Expansion is that of the object, with the workloads of the source that it selects. Total
	// is that of the source, and Max its limit.
	Expansion, Total, Max int
	// Proxy says that they are what it costs each proxy, in units of 500 bytes.
	Proxy bool
}

// String is for people.
func (e Excess) String() string {
	if e.Proxy {
		return fmt.Sprintf("its directory or prefix, which is bound to namespaces, costs a proxy %s, and may cost %s (with a larger --max-expansion, more); "+
			"the largest objects are refused first, and this one costs %s: use fewer hosts, ports, subsets, routes, headers or regular expressions, or smaller ones", weightText(e.Total), weightText(e.Max), weightText(e.Expansion))
	}
	return fmt.Sprintf("its directory or prefix, which is bound to namespaces, makes %d after expansion (hosts × ports × endpoints, hosts × routes), and may make %d (--max-expansion); "+
		"the largest objects are refused first, and this one makes %d: use fewer, or split it", e.Total, e.Max, e.Expansion)
}

// weightText is a weight as people read it: about so much memory.
func weightText(units int) string { return fmt.Sprintf("some %d kB (%d units)", (units+1)/2, units) }

// OverLimit are the objects to refuse so that the others of a source make at most limit after expansion, and cost a
// proxy no more than [MaxWeight]: the largest first, and those that restrict behind all others. It depends on the
// objects alone: not on their order, nor on what was in force before, so that every server refuses the same.
func OverLimit(list []Sized, limit int) map[mesh.Key]Excess {
	if limit <= 0 {
		return nil
	}
	list = withSelected(list, limit)
	out := map[mesh.Key]Excess{}
	refuseLargest(list, limit, func(x Sized) int { return x.Expansion }, func(x Sized, total int) {
		out[x.Key] = Excess{Expansion: x.Expansion, Total: total, Max: limit}
	})
	list = withProxies(slices.DeleteFunc(list, func(x Sized) bool { return has(out, x.Key) }))
	most := max(limit, MaxWeight)
	refuseLargest(list, most, func(x Sized) int { return x.Weight }, func(x Sized, total int) {
		out[x.Key] = Excess{Expansion: x.Weight, Total: total, Max: most, Proxy: true}
	})
	if len(out) == 0 {
		return nil
	}
	return out
}

// refuseLargest calls refuse for the largest objects, so that the others are within the limit.
func refuseLargest(list []Sized, limit int, size func(Sized) int, refuse func(x Sized, total int)) {
	total := 0
	for _, x := range list {
		total += size(x)
	}
	if total <= limit {
		return
	}
	slices.SortFunc(list, func(a, b Sized) int {
		return cmp.Or(compareBools(restricts(a.Fragment), restricts(b.Fragment)), -cmp.Compare(size(a), size(b)), a.Key.Compare(b.Key))
	})
	left := total
	for _, x := range list {
		if left <= limit {
			break
		}
		left -= size(x)
		refuse(x, total)
	}
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// label is a label with its namespace.
type label struct{ namespace, key, value string }

// withSelected counts the workloads of a source that its services select.
func withSelected(list []Sized, limit int) []Sized {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Sized) int { return a.Key.Compare(b.Key) })
	s := selection{labels: map[label][]*mesh.Workload{}, known: map[string]int{}, budget: 16 * limit}
	for _, x := range list {
		for _, w := range x.Fragment.Workloads {
			s.labels[label{namespace: w.Namespace}] = append(s.labels[label{namespace: w.Namespace}], w)
			for k, v := range w.Labels {
				s.labels[label{w.Namespace, k, v}] = append(s.labels[label{w.Namespace, k, v}], w)
			}
		}
	}
	if len(s.labels) == 0 {
		return list
	}
	for i, x := range list {
		services := x.Fragment.Services
		if len(services) > 0 && services[0].Selector != nil {
			list[i].Expansion = max(x.Expansion, len(services)*max(1, len(services[0].Ports))*s.count(services[0]))
		}
	}
	return list
}

// selection counts the workloads that selectors select.
type selection struct {
	labels map[label][]*mesh.Workload
	known  map[string]int
	// budget is how many workloads may be compared with selectors. Behind that, those that have
	// the rarest label of a selector count, so that the work stays linear.
	budget int
}

func (s *selection) count(svc *mesh.Service) int {
	name := fmt.Sprintf("%s %q", svc.Namespace, svc.Selector) // maps are printed in order
	if n, known := s.known[name]; known {
		return n
	}
	rarest := s.labels[label{namespace: svc.Namespace}]
	for _, k := range slices.Sorted(maps.Keys(svc.Selector)) {
		if have := s.labels[label{svc.Namespace, k, svc.Selector[k]}]; len(have) < len(rarest) {
			rarest = have
		}
	}
	n := len(rarest)
	if s.budget -= n; s.budget > 0 && len(svc.Selector) > 1 {
		n = 0
		for _, w := range rarest {
			if mesh.Selects(svc.Selector, w.Labels) {
				n++
			}
		}
	}
	s.known[name] = n
	return n
}

// LimitExpansion bounds what all objects of the set make after expansion; zero means no bound.
// Call it before the first Put.
func (s *Set) LimitExpansion(limit int) { s.limit = limit }

// NeededLimit is the limit by which nothing is refused.
func NeededLimit(list []Sized, limit int) int {
	for {
		refused := OverLimit(list, limit)
		if len(refused) == 0 {
			return limit
		}
		for _, excess := range refused { // with more of them, proxies have more, too
			limit = max(limit, excess.Total)
		}
	}
}

// NeededLimit is the limit by which nothing of the set is refused, if something is; else 0. Call it after [Set.Assemble].
func (s *Set) NeededLimit() int {
	if len(s.refused) == 0 {
		return 0
	}
	return NeededLimit(s.sized(), s.limit)
}

// refuse decides again which objects are refused, because there are too many.
func (s *Set) refuse() {
	if s.limit <= 0 || len(s.touched) == 0 {
		return
	}
	now := OverLimit(s.sized(), s.limit)
	for _, m := range []map[mesh.Key]Excess{s.refused, now} {
		for key := range m {
			if _, was := s.refused[key]; was == has(now, key) {
				continue
			}
			s.touch(key)
		}
	}
	s.faulty = s.faulty || !maps.Equal(s.refused, now)
	s.refused = now
}

func has(m map[mesh.Key]Excess, key mesh.Key) bool {
	_, ok := m[key]
	return ok
}

// sized are the objects with what they make.
func (s *Set) sized() []Sized {
	list := make([]Sized, 0, len(s.definitions.one))
	for key := range s.definitions.one {
		if _, g, _ := s.definitions.winner(key); g != nil && g.Fragment != nil {
			list = append(list, Sized{Key: key, Expansion: max(1, g.Expansion), Weight: g.Weight, Fragment: g.Fragment})
		}
	}
	return list
}

// inForce is what is in force of an object; or nil.
func (s *Set) inForce(key mesh.Key) *mesh.Fragment {
	_, g, _ := s.definitions.winner(key)
	switch {
	case g == nil:
		return nil
	case has(s.refused, key):
		return g.Refused
	default:
		return g.Fragment
	}
}

// excessFaults report the objects that are refused.
func (s *Set) excessFaults() []manifest.Fault {
	var out []manifest.Fault
	for key, excess := range s.refused {
		if _, g, _ := s.definitions.winner(key); g != nil {
			out = append(out, ExcessFault(g.Origin, key, excess))
		}
	}
	return out
}

// ExcessFault reports an object that is refused.
func ExcessFault(at *mesh.Origin, key mesh.Key, e Excess) manifest.Fault {
	return faultAt(at, key, CodeExcess, e.String())
}
