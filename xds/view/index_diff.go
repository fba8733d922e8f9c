package view

import (
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// indexDiff is what differs between two indexes with one meshContext, as far as proxies'
// own requests depend on it.
type indexDiff struct {
	*mesh.Diff

	// untracked means that objects differ of a kind that is not in trackedKinds.
	untracked       bool
	services        []serviceDelta
	virtualServices []virtualServiceDelta
	// hosts are the services whose endpoints or rules may have changed, sorted. allRules
	// means that the rule of any service may have changed.
	hosts    []mesh.Hostname
	allRules bool
	// authnNamespaces are the namespaces in which PeerAuthentications require something
	// else.
	authnNamespaces map[string]bool
}

// serviceDelta is a service that differs. endpointsOnly is set if only its endpoints
// differ, and how a client verifies their identities.
type serviceDelta struct {
	mesh.Delta[*mesh.Service]
	endpointsOnly bool
}

// virtualServiceDelta is a VirtualService that differs. routesOnly is set if only its
// routes do.
type virtualServiceDelta struct {
	mesh.Delta[*virtualService]
	routesOnly bool
}

// diffSince returns what differs from another index with the same meshContext.
func (x *Index) diffSince(prev *Index) *indexDiff {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.diffs[prev.seq]
	if d == nil {
		d = newIndexDiff(prev, x)
		x.diffs[prev.seq] = d
	}
	return d
}

func newIndexDiff(prev, x *Index) *indexDiff {
	diff := x.s.Since(prev.s)
	d := &indexDiff{
		Diff:            diff,
		untracked:       prev.networks != x.networks || !diff.Only(trackedKinds()...),
		authnNamespaces: map[string]bool{},
	}
	for _, c := range mesh.DeltasOf[*mesh.Service](diff) {
		d.services = append(d.services, serviceDelta{c, c.Old != nil && c.New != nil && sameRouting(*c.Old, *c.New)})
	}
	for _, c := range mesh.DiffLists(prev.virtualServices, x.virtualServices, compareAge) {
		d.virtualServices = append(d.virtualServices, virtualServiceDelta{c, c.Old != nil && c.New != nil && sameExceptRoutes(*c.Old, *c.New)})
	}
	hosts := map[mesh.Hostname]bool{}
	for svc := range objects(mesh.DeltasOf[*mesh.Service](diff)) {
		hosts[svc.Hostname] = true
	}
	for _, c := range mesh.DeltasOf[*mesh.Workload](diff) {
		if c.Old != nil {
			addHosts(hosts, prev.s.ServicesOf(c.Old))
		}
		if c.New != nil {
			addHosts(hosts, x.s.ServicesOf(c.New))
		}
	}
	for dr := range objects(mesh.DeltasOf[*mesh.DestinationRule](diff)) {
		h := mesh.Hostname(dr.Spec.GetHost())
		d.allRules = d.allRules || h.IsWildcard()
		hosts[h] = true
	}
	d.hosts = slices.Sorted(maps.Keys(hosts))
	for _, ns := range changedAuthnNamespaces(prev.authn, x.authn, x.s) {
		d.authnNamespaces[ns] = true
	}
	return d
}

// trackedKinds are the kinds for which an indexDiff says how they change the requests of
// proxies. Sidecars select the scopeState of a proxy, and Telemetries its routingState.
// RequestAuthentications, AuthorizationPolicies, unenforced policies, WorkloadGroups and
// ProxyConfigs do not affect requests of the proxy.
func trackedKinds() []reflect.Type {
	return []reflect.Type{
		reflect.TypeFor[*mesh.Service](), reflect.TypeFor[*mesh.Workload](), reflect.TypeFor[*mesh.VirtualService](),
		reflect.TypeFor[*mesh.DestinationRule](), reflect.TypeFor[*mesh.PeerAuthentication](),
		reflect.TypeFor[*mesh.Gateway](), reflect.TypeFor[*mesh.Sidecar](), reflect.TypeFor[*mesh.RequestAuthentication](), reflect.TypeFor[*mesh.AuthorizationPolicy](), reflect.TypeFor[*mesh.Telemetry](), reflect.TypeFor[*mesh.Unenforced](), reflect.TypeFor[*mesh.WorkloadGroup](), reflect.TypeFor[*mesh.ProxyConfig](),
	}
}

func addHosts(hosts map[mesh.Hostname]bool, services []*mesh.Service) {
	for _, svc := range services {
		hosts[svc.Hostname] = true
	}
}

// changedAuthnNamespaces are the namespaces with services in which PeerAuthentications
// require something else.
func changedAuthnNamespaces(prev, next *authn, s *mesh.Snapshot) []string {
	if prev == next {
		return nil
	}
	seen := map[string]bool{}
	var out []string
	for _, svc := range s.Services {
		if ns := svc.Namespace; !seen[ns] {
			seen[ns] = true
			if prev.in(ns) != next.in(ns) {
				out = append(out, ns)
			}
		}
	}
	return out
}

// affectedProxies says which proxies a snapshot may affect. For all others, their own part
// of the view, and which shared part they have, stay the same.
type affectedProxies struct {
	seq, prevSeq uint64
	all          bool
	namespaces   map[string]bool
	addresses    map[string]bool
	gateways     bool // all gateway proxies
}

// maxMissedSnapshots is how many snapshots a proxy can miss until it has to be checked
// anyway.
const maxMissedSnapshots = 32

func appendAffected(list []*affectedProxies, ap *affectedProxies) []*affectedProxies {
	if len(list) >= maxMissedSnapshots {
		list = list[len(list)-maxMissedSnapshots+1:]
	}
	return append(slices.Clip(list), ap)
}

// affects reports whether a snapshot after seq, up to this one, may affect the proxy.
func (x *Index) affects(seq uint64, p *Proxy) bool {
	at := x.seq
	for i := len(x.affected) - 1; at != seq; i-- {
		if i < 0 || x.affected[i].seq != at || x.affected[i].includes(p) {
			return true
		}
		at = x.affected[i].prevSeq
	}
	return false
}

func (ap *affectedProxies) includes(p *Proxy) bool {
	if ap.all || ap.gateways && p.Type == Router || ap.namespaces[p.ServiceAccount.Namespace] {
		return true
	}
	if len(ap.addresses) == 0 {
		return false
	}
	return slices.ContainsFunc(p.Addresses, func(a string) bool { return ap.addresses[a] })
}

// affectedBy returns whom the differences from the previous index affect. Only kinds that
// affect fewer proxies than usual are named here.
func (x *Index) affectedBy(prev *Index, d *indexDiff) *affectedProxies {
	ap := &affectedProxies{
		seq: x.seq, prevSeq: prev.seq, all: prev.networks != x.networks || !prev.selectorLabels.sameForSidecars(x.selectorLabels),
		gateways:   len(mesh.DeltasOf[*mesh.Gateway](d.Diff)) > 0,
		namespaces: map[string]bool{}, addresses: map[string]bool{},
	}
	for m := range d.Policies() {
		ap.namespaces[m.Namespace] = true
		ap.all = ap.all || m.Namespace == x.s.RootNamespace()
	}
	for svc := range objects(mesh.DeltasOf[*mesh.Service](d.Diff)) {
		ap.namespaces[svc.Namespace] = true // a service is served by workloads of its namespace only
	}
	for w := range objects(mesh.DeltasOf[*mesh.Workload](d.Diff)) {
		ap.addresses[w.Address] = true
	}
	changed := func(hosts map[mesh.Hostname]bool) bool {
		return len(hosts) > 0 && (d.allRules || len(d.authnNamespaces) > 0 || slices.ContainsFunc(d.hosts, func(h mesh.Hostname) bool { return hosts[h] }))
	}
	ap.all = ap.all || changed(x.collectors) // usually all proxies report to them
	if changed(x.authorizers) {
		for ns := range x.asking {
			ap.namespaces[ns] = true
			ap.all = ap.all || ns == x.s.RootNamespace()
		}
	}
	return ap
}

// objects are the objects that differ, both the old and the new versions.
func objects[T any](deltas []mesh.Delta[*T]) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, c := range deltas {
			if c.Old != nil && !yield(c.Old) || c.New != nil && !yield(c.New) {
				return
			}
		}
	}
}

// sameRouting reports whether two versions of a service have the same name, visibility and
// routes.
func sameRouting(a, b mesh.Service) bool {
	for _, svc := range []*mesh.Service{&a, &b} {
		svc.Meta = routingMeta(svc.Meta)
		svc.Selector, svc.Inline = nil, nil
		svc.SubjectAltNames = nil
	}
	return shallowEqual(&a, &b)
}

// routingMeta is what of an object's metadata decides its precedence.
func routingMeta(m mesh.Meta) mesh.Meta {
	m.Origin, m.Hash = nil, mesh.Hash{}
	return m
}

// sameExceptRoutes reports whether two versions of a VirtualService differ in their routes
// only. sameDestinations checks where the routes lead.
func sameExceptRoutes(a, b virtualService) bool {
	x, y := *a.VirtualService, *b.VirtualService
	for _, vs := range []*mesh.VirtualService{&x, &y} {
		vs.Meta, vs.Spec = routingMeta(vs.Meta), nil
	}
	for _, vs := range []*virtualService{&a, &b} {
		vs.VirtualService, vs.http, vs.hasDelegates, vs.sourceLabels = nil, nil, false, nil
		vs.allDestinations, vs.bySourceNamespace = nil, false
	}
	return shallowEqual(&a, &b) && shallowEqual(&x, &y)
}

func compareHosts(a *service, h mesh.Hostname) int {
	return strings.Compare(string(a.Hostname), string(h))
}
