package view

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Index is a snapshot prepared for building views: what is the same for all
// proxies is worked out once, and so is what turns out to be. It may be used
// from any goroutine: all but memo is constant after construction.
type Index struct {
	s            *mesh.Snapshot
	defaults     MeshDefaults
	trustDomains []string
	// services are in the order in which they win conflicts.
	services []*mesh.Service
	// inline are the services by the address of an inline endpoint.
	inline map[string][]*mesh.Service
	// virtualServices have their delegates merged in; those without hosts are
	// not among them.
	virtualServices []*virtualService
	rules           *ruleIndex
	authn           *authn
	// labelKeys are the labels of proxies that any selection looks at; sorted.
	labelKeys []string

	memo memo
}

// virtualService is one whose delegates have been merged into it.
type virtualService struct {
	*mesh.VirtualService
	http []*networking.HTTPRoute
}

// NewIndex prepares a snapshot.
func NewIndex(s *mesh.Snapshot) *Index { return newIndex(nil, s) }

// Next prepares another snapshot, as a rule the one after x's. What depends on
// nothing that differs between them is taken over, with the parts that were made
// from it. A nil Index has nothing to give.
func (x *Index) Next(s *mesh.Snapshot) *Index { return newIndex(x, s) }

func newIndex(prev *Index, s *mesh.Snapshot) *Index {
	mc := s.MeshConfig.Spec
	x := &Index{
		s: s,
		defaults: MeshDefaults{
			ConnectTimeout: mc.GetConnectTimeout().AsDuration(),
			DNSRefreshRate: mc.GetDnsRefreshRate().AsDuration(),
			H2Upgrade:      mc.GetH2UpgradePolicy().String() == "UPGRADE",
			Keepalive:      mc.GetTcpKeepalive(),
		},
		trustDomains: slices.Compact(append([]string{s.TrustDomain()}, mc.GetTrustDomainAliases()...)),
		services:     slices.Clone(s.Services),
		inline:       map[string][]*mesh.Service{},
	}
	slices.SortStableFunc(x.services, func(a, b *mesh.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Hostname, b.Hostname),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, svc := range x.services {
		for _, w := range svc.Inline {
			x.inline[w.Address] = append(x.inline[w.Address], svc)
		}
	}
	x.takeOver(prev)
	return x
}

// takeOver fills in what only some kinds of objects decide, from the index
// before where these are the same.
func (x *Index) takeOver(prev *Index) {
	s, mc := x.s, x.s.MeshConfig.Spec
	same := prev != nil && prev.s.MeshConfig == s.MeshConfig
	routes := same && sameList(prev.s.VirtualServices, s.VirtualServices)
	rules := same && sameList(prev.s.DestinationRules, s.DestinationRules)
	peers := same && sameList(prev.s.PeerAuthentications, s.PeerAuthentications)
	x.memo = memo{routing: newCache(nil), ports: newCache(nil)}
	if routes {
		x.virtualServices = prev.virtualServices
	} else {
		x.virtualServices = mergeDelegates(s.VirtualServices, mc.GetDefaultVirtualServiceExportTo())
	}
	if rules {
		x.rules = prev.rules
	} else {
		x.rules = newRuleIndex(s, mc.GetDefaultDestinationRuleExportTo())
	}
	if peers {
		x.authn = prev.authn
	} else {
		x.authn = newAuthn(s)
	}
	if rules && peers {
		x.memo.ports.before = prev.memo.ports.now
	}
	if routes && rules && sameList(prev.s.Services, s.Services) && sameList(prev.s.Sidecars, s.Sidecars) {
		x.memo.routing.before = prev.memo.routing.now
	}
	x.labelKeys = labelKeys(s, x.virtualServices)
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

// visibleServices are those that the namespace sees, in order of precedence.
func (x *Index) visibleServices(ns string) []*mesh.Service {
	defaults := x.s.MeshConfig.Spec.GetDefaultServiceExportTo()
	var out []*mesh.Service
	for _, svc := range x.services {
		if exported(svc.ExportTo, defaults, svc.Namespace, ns) {
			out = append(out, svc)
		}
	}
	slices.SortStableFunc(out, func(a, b *mesh.Service) int {
		return cmp.Compare(visibility(a.ExportTo, defaults, a.Namespace, ns), visibility(b.ExportTo, defaults, b.Namespace, ns))
	})
	return out
}

// visibleVirtualServices are those for sidecars that the namespace sees, in
// order of precedence.
func (x *Index) visibleVirtualServices(ns string) []*virtualService {
	defaults := x.s.MeshConfig.Spec.GetDefaultVirtualServiceExportTo()
	var out []*virtualService
	for _, vs := range x.virtualServices {
		gateways := vs.Spec.GetGateways()
		if len(gateways) > 0 && !slices.Contains(gateways, "mesh") {
			continue
		}
		if exported(vs.ExportTo, defaults, vs.Namespace, ns) {
			out = append(out, vs)
		}
	}
	slices.SortStableFunc(out, func(a, b *virtualService) int {
		return cmp.Compare(visibility(a.ExportTo, defaults, a.Namespace, ns), visibility(b.ExportTo, defaults, b.Namespace, ns))
	})
	return out
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
