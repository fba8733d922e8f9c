package view

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Index is a snapshot prepared for building views: what is the same for all
// proxies is worked out once, and so is what turns out to be. It may be used
// from any goroutine: what is not constant has a lock of its own.
type Index struct {
	*epoch
	s   *mesh.Snapshot
	seq uint64
	// services are in the order in which they win conflicts.
	services []*mesh.Service
	// inline are the services by the address of an inline endpoint.
	inline *addressIndex
	// virtualServices have their delegates merged in; those without hosts are
	// not among them.
	virtualServices []*virtualService
	rules           *ruleIndex
	authn           *authn
	sidecars        *sidecarIndex
	labels          *labelPairs

	// touched is what the newest snapshots touched, the newest last.
	touched []*touch

	mu     sync.Mutex        // guards deltas
	deltas map[uint64]*delta // by the seq of the Index that they begin at
}

// NewIndex prepares a snapshot, with default settings.
func NewIndex(s *mesh.Snapshot) *Index { return newIndex(nil, s, Settings{}) }

// Next prepares another snapshot, as a rule the one after x's, with the same
// settings. What depends on nothing that differs between them is taken over, with
// the parts that were made from it. A nil Index has nothing to give, and default
// settings.
func (x *Index) Next(s *mesh.Snapshot) *Index { return newIndex(x, s, Settings{}) }

// newIndex takes the settings only where there is no Index before.
func newIndex(prev *Index, s *mesh.Snapshot, settings Settings) *Index {
	x := &Index{s: s, deltas: map[uint64]*delta{}}
	switch {
	case prev == nil:
		x.epoch = newEpoch(&lineage{settings: settings}, s.MeshConfig.Spec)
	case prev.s.MeshConfig != s.MeshConfig:
		x.epoch = newEpoch(prev.lineage, s.MeshConfig.Spec)
	default:
		x.epoch = prev.epoch
	}
	x.seq = x.lineage.seq.Add(1)
	if prev == nil || prev.epoch != x.epoch {
		prev = x.empty()
		x.fill(prev)
		return x
	}
	x.fill(prev)
	d := between(prev, x)
	x.deltas[prev.seq] = d
	x.touched = appendTouch(prev.touched, x.touch(prev, d))
	return x
}

// empty is an Index of nothing with x's settings.
func (x *Index) empty() *Index {
	return &Index{
		s: &mesh.Snapshot{MeshConfig: x.s.MeshConfig}, epoch: x.epoch,
		inline: &addressIndex{}, rules: newRuleIndex(x.s), authn: &authn{}, labels: &labelPairs{},
	}
}

// fill works out what only some kinds of objects decide, from the index before.
func (x *Index) fill(prev *Index) {
	s, d := x.s, x.s.Since(prev.s)
	services := mesh.DeltasOf[*mesh.Service](d)
	x.services = mesh.PatchList(prev.services, services, byPrecedence)
	x.inline = prev.inline.next(services)
	x.virtualServices = prev.virtualServices
	if len(mesh.DeltasOf[*mesh.VirtualService](d)) > 0 {
		x.virtualServices = mergeDelegates(prev.virtualServices, s.VirtualServices, s.MeshConfig.Spec.GetDefaultVirtualServiceExportTo())
	}
	rules := mesh.DeltasOf[*mesh.DestinationRule](d)
	x.rules = prev.rules.next(rules, s.DestinationRules)
	x.authn = prev.authn
	if len(mesh.DeltasOf[*mesh.PeerAuthentication](d)) > 0 || prev.authn.rest == nil {
		x.authn = newAuthn(prev.authn, s)
	}
	x.sidecars = prev.sidecars
	if len(mesh.DeltasOf[*mesh.Sidecar](d)) > 0 || prev.sidecars == nil {
		x.sidecars = newSidecarIndex(s)
	}
	x.labels = prev.labels
	if len(rules) > 0 || !sameList(prev.virtualServices, x.virtualServices) {
		x.labels = newLabelPairs(s, x.virtualServices)
	}
}

// sameList reports whether two slices are one: objects are immutable, and a
// snapshot shares what did not change with the one before.
func sameList[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// exported reports whether an object of namespace own is seen from ns. An
// object that says nothing follows the mesh's default.
func exported(e mesh.Exports, defaults []string, own, ns string) bool {
	if len(e) > 0 || len(defaults) == 0 {
		return e.To(ns)
	}
	for _, d := range defaults {
		if d == "*" || d == ns || (d == "." && own == ns) {
			return true
		}
	}
	return false
}

// visibility orders what a namespace sees: first what is for it alone, then
// what names it, then what all see (Istio's privateByNamespace,
// exportedToNamespace, public).
func visibility(e mesh.Exports, defaults []string, own, ns string) int {
	list := []string(e)
	if len(list) == 0 {
		list = defaults
	}
	switch {
	case len(list) == 0 || slices.Contains(list, "*"):
		return 2
	case own == ns:
		return 0
	default:
		return 1
	}
}

// byVisibility puts what a namespace sees in order, in each class as it was.
func byVisibility[T any](list []T, class func(T) int) []T {
	var classes [3][]T
	for i, x := range list {
		if c := class(x); c < 2 || classes[2] != nil {
			if classes[2] == nil { // the usual case costs no copy
				classes[2] = append(make([]T, 0, len(list)), list[:i]...)
			}
			classes[c] = append(classes[c], x)
		}
	}
	if classes[2] == nil {
		return list
	}
	return slices.Concat(classes[0], classes[1], classes[2])
}

// seesService reports whether a service is exported to the namespace, and is not
// a catalog's of which the host is another's there.
func (x *Index) seesService(svc *mesh.Service, ns string) bool {
	return exported(svc.ExportTo, x.config.GetDefaultServiceExportTo(), svc.Namespace, ns) && !x.s.Shadowed(svc, ns)
}

// visibleServices are those that the namespace sees, in order of precedence.
func (x *Index) visibleServices(ns string) []*mesh.Service {
	defaults := x.config.GetDefaultServiceExportTo()
	out := make([]*mesh.Service, 0, len(x.services))
	for _, svc := range x.services {
		if x.seesService(svc, ns) {
			out = append(out, svc)
		}
	}
	return byVisibility(out, func(svc *mesh.Service) int { return visibility(svc.ExportTo, defaults, svc.Namespace, ns) })
}

// seesRoutes reports whether a VirtualService is for the sidecars of a
// namespace.
func (x *Index) seesRoutes(vs *virtualService, ns string) bool {
	return vs.forMesh && exported(vs.ExportTo, x.config.GetDefaultVirtualServiceExportTo(), vs.Namespace, ns)
}

// visibleVirtualServices are those for sidecars that the namespace sees, in
// order of precedence.
func (x *Index) visibleVirtualServices(ns string) []*virtualService {
	defaults := x.config.GetDefaultVirtualServiceExportTo()
	var out []*virtualService
	for _, vs := range x.virtualServices {
		if x.seesRoutes(vs, ns) {
			out = append(out, vs)
		}
	}
	return byVisibility(out, func(vs *virtualService) int { return visibility(vs.ExportTo, defaults, vs.Namespace, ns) })
}

// mostSpecific finds the longest host of the list that covers name; an equal
// one is best of all.
func mostSpecific(name mesh.Hostname, hosts []mesh.Hostname) (mesh.Hostname, bool) {
	var best mesh.Hostname
	found := false
	for _, h := range hosts {
		if h == name {
			return h, true
		}
		if !h.IsWildcard() || !strings.HasSuffix(strings.TrimPrefix(string(name), "*"), string(h[1:])) {
			continue
		}
		if !found || len(h) > len(best) || (len(h) == len(best) && h < best) {
			best, found = h, true
		}
	}
	return best, found
}

// addressIndex finds the services by the address of an inline endpoint. Read
// only: what changes lies in a small map over a large one that indexes share.
type addressIndex struct{ base, over map[string][]*mesh.Service }

// maxOver is how much may lie over the large map before there is a new one.
const maxOver = 256

func (a *addressIndex) at(address string) []*mesh.Service {
	if list, ok := a.over[address]; ok {
		return list
	}
	return a.base[address]
}

func (a *addressIndex) next(changes []mesh.Delta[*mesh.Service]) *addressIndex {
	touched := map[string][]*mesh.Service{}
	edit := func(svc *mesh.Service, do func([]*mesh.Service) []*mesh.Service) {
		if svc == nil {
			return
		}
		for _, w := range svc.Inline {
			list, ok := touched[w.Address]
			if !ok {
				list = slices.Clone(a.at(w.Address))
			}
			touched[w.Address] = do(list)
		}
	}
	for _, c := range changes {
		edit(c.Old, func(l []*mesh.Service) []*mesh.Service {
			return slices.DeleteFunc(l, func(s *mesh.Service) bool { return s == c.Old })
		})
		edit(c.New, func(l []*mesh.Service) []*mesh.Service {
			if slices.Contains(l, c.New) {
				return l
			}
			return append(l, c.New)
		})
	}
	if len(touched) == 0 {
		return a
	}
	for _, list := range touched {
		slices.SortFunc(list, byPrecedence)
	}
	out := &addressIndex{base: a.base, over: make(map[string][]*mesh.Service, len(a.over)+len(touched))}
	maps.Copy(out.over, a.over)
	maps.Copy(out.over, touched)
	if len(out.over) <= maxOver {
		return out
	}
	base := make(map[string][]*mesh.Service, len(a.base)+len(out.over))
	for _, m := range []map[string][]*mesh.Service{a.base, out.over} {
		for k, list := range m {
			if len(list) == 0 {
				delete(base, k)
			} else {
				base[k] = list
			}
		}
	}
	return &addressIndex{base: base}
}
