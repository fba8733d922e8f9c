package view

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Index is a snapshot prepared for building views: what is the same for several proxies is
// computed once. Any goroutine may use it: what is not constant has a lock of its own.
type Index struct {
	*meshContext
	s   *mesh.Snapshot
	seq uint64
	// services are in the order in which they win conflicts.
	services []*mesh.Service
	// inline finds services by the address of an inline endpoint.
	inline *addressIndex
	// virtualServices have their delegates merged in. Those without hosts are left out.
	virtualServices []*virtualService
	// excluding are those that would include more by delegates than they may.
	excluding      []*virtualService
	bound          map[string][]*virtualService // by the Gateways that they are for
	rules          *ruleIndex
	authn          *authn
	policies       *policyIndex[*mesh.AuthorizationPolicy]
	asking         map[string]bool // namespaces with policies of action CUSTOM
	tokens         *policyIndex[*requestAuthentication]
	telemetry      telemetryIndex
	sidecars       *sidecarIndex
	selectorLabels *selectorLabels
	networks       *networkTable // or nil

	// affected says which proxies the newest snapshots affect, the newest last.
	affected []*affectedProxies

	mu    sync.Mutex            // guards diffs
	diffs map[uint64]*indexDiff // by the seq of the previous Index
}

// NewIndex prepares a snapshot, with default settings.
func NewIndex(s *mesh.Snapshot) *Index { return newIndex(nil, s, Settings{}) }

// Next prepares another snapshot, usually the one after x's, with the same settings. It
// takes over what depends on nothing that changed, and the parts made from it. x may be
// nil: then nothing is taken over, and the settings are the defaults.
func (x *Index) Next(s *mesh.Snapshot) *Index { return newIndex(x, s, Settings{}) }

// newIndex uses the settings only if prev is nil.
func newIndex(prev *Index, s *mesh.Snapshot, settings Settings) *Index {
	x := &Index{s: s, diffs: map[uint64]*indexDiff{}}
	switch {
	case prev == nil:
		x.meshContext = newMeshContext(&internPool{settings: settings}, s.MeshConfig.Spec)
	case prev.s.MeshConfig != s.MeshConfig:
		x.meshContext = newMeshContext(prev.internPool, s.MeshConfig.Spec)
	default:
		x.meshContext = prev.meshContext
	}
	x.seq = x.internPool.seq.Add(1)
	if prev == nil || prev.meshContext != x.meshContext {
		prev = x.empty()
		x.fill(prev)
		return x
	}
	x.fill(prev)
	d := newIndexDiff(prev, x)
	x.diffs[prev.seq] = d
	x.affected = appendAffected(prev.affected, x.affectedBy(prev, d))
	return x
}

// empty is an Index without objects, with x's settings.
func (x *Index) empty() *Index {
	return &Index{
		s: &mesh.Snapshot{MeshConfig: x.s.MeshConfig}, meshContext: x.meshContext,
		inline: &addressIndex{}, rules: newRuleIndex(x.s), authn: &authn{}, policies: newPolicyIndex(x.s), tokens: newTokenIndex(x.s), selectorLabels: &selectorLabels{},
	}
}

// fill computes what depends on some kinds of objects only, from the previous index.
func (x *Index) fill(prev *Index) {
	s, d := x.s, x.s.Since(prev.s)
	services := mesh.DeltasOf[*mesh.Service](d)
	x.services = mesh.PatchList(prev.services, services, comparePrecedence)
	x.inline = prev.inline.next(services)
	x.virtualServices, x.excluding, x.bound = prev.virtualServices, prev.excluding, prev.bound
	if len(mesh.DeltasOf[*mesh.VirtualService](d)) > 0 {
		x.virtualServices = mergeDelegates(prev.virtualServices, s.VirtualServices, s.MeshConfig.Spec.GetDefaultVirtualServiceExportTo(), s.OfTenant)
		x.excluding = slices.DeleteFunc(slices.Clone(x.virtualServices), func(vs *virtualService) bool { return len(vs.excluded) == 0 })
		x.bound = boundServices(x.virtualServices)
	}
	rules := mesh.DeltasOf[*mesh.DestinationRule](d)
	x.rules = prev.rules.next(rules, s.DestinationRules)
	x.authn = prev.authn
	if len(mesh.DeltasOf[*mesh.PeerAuthentication](d)) > 0 || prev.authn.defaults == nil {
		x.authn = newAuthn(prev.authn, s)
	}
	x.policies, x.asking = prev.policies, prev.asking
	if len(mesh.DeltasOf[*mesh.AuthorizationPolicy](d)) > 0 {
		x.policies, x.asking = newPolicyIndex(s), namespacesAsking(s)
	}
	x.tokens = prev.tokens
	if len(mesh.DeltasOf[*mesh.RequestAuthentication](d)) > 0 {
		x.tokens = newTokenIndex(s)
	}
	x.telemetry = prev.telemetry
	if len(mesh.DeltasOf[*mesh.Telemetry](d)) > 0 {
		x.telemetry = newTelemetryIndex(s)
	}
	x.sidecars = prev.sidecars
	if len(mesh.DeltasOf[*mesh.Sidecar](d)) > 0 || prev.sidecars == nil {
		x.sidecars = newSidecarIndex(s)
	}
	x.networks = x.networksAfter(prev)
	x.selectorLabels = prev.selectorLabels
	if len(rules) > 0 || !sameSlice(prev.virtualServices, x.virtualServices) || !sameSlice(prev.s.Gateways, s.Gateways) {
		x.selectorLabels = newSelectorLabels(s, x.virtualServices)
	}
}

// sameSlice reports whether two slices are the same memory. Objects are immutable, and a
// snapshot shares unchanged lists with the one before.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// exported reports whether an object of namespace own is visible in ns. An object without
// exportTo follows the mesh's default.
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

// visibility is the precedence of what a namespace sees: first what is visible there only,
// then what is exported to it by name, then what is public (Istio's privateByNamespace,
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

// byVisibility sorts what a namespace sees by visibility, and keeps the order otherwise.
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

// seesService reports whether a service is visible in the namespace. A catalog's service is
// not, if another service has its host there.
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

// seesRoutes reports whether a VirtualService is for the sidecars of a namespace.
func (x *Index) seesRoutes(vs *virtualService, ns string) bool {
	return vs.forMesh && exported(vs.ExportTo, x.config.GetDefaultVirtualServiceExportTo(), vs.Namespace, ns)
}

// visibleVirtualServices are those for sidecars that the namespace sees, in order of
// precedence.
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

// mostSpecific returns the longest host of the list that covers name. An equal host is the
// most specific.
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

// addressIndex finds services by the address of an inline endpoint. It is immutable:
// changes are in a small overlay over a large map that indexes share.
type addressIndex struct{ base, overlay map[string][]*mesh.Service }

// maxOverlay is the size of the overlay at which a new base is made.
const maxOverlay = 256

func (a *addressIndex) at(address string) []*mesh.Service {
	if list, ok := a.overlay[address]; ok {
		return list
	}
	return a.base[address]
}

func (a *addressIndex) next(changes []mesh.Delta[*mesh.Service]) *addressIndex {
	changed := map[string][]*mesh.Service{}
	edit := func(svc *mesh.Service, do func([]*mesh.Service) []*mesh.Service) {
		if svc == nil {
			return
		}
		for _, w := range svc.Inline {
			list, ok := changed[w.Address]
			if !ok {
				list = slices.Clone(a.at(w.Address))
			}
			changed[w.Address] = do(list)
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
	if len(changed) == 0 {
		return a
	}
	for _, list := range changed {
		slices.SortFunc(list, comparePrecedence)
	}
	out := &addressIndex{base: a.base, overlay: make(map[string][]*mesh.Service, len(a.overlay)+len(changed))}
	maps.Copy(out.overlay, a.overlay)
	maps.Copy(out.overlay, changed)
	if len(out.overlay) <= maxOverlay {
		return out
	}
	base := make(map[string][]*mesh.Service, len(a.base)+len(out.overlay))
	for _, m := range []map[string][]*mesh.Service{a.base, out.overlay} {
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
