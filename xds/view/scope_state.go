package view

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// scopeKey is everything about a proxy that selects its sidecar scope.
type scopeKey struct {
	namespace string
	sidecar   *mesh.Sidecar
	labels    *labelSet // those that selectors use; or nil
	router    bool
	upstream  upstreamSettings
}

func (k scopeKey) build(mc *meshContext) *scopeState { return &scopeState{meshContext: mc, key: k} }

// scopeState is the sidecar scope that proxies share, and what is built from it. It is
// updated to the newest index, and only what differs is built again.
type scopeState struct {
	meshContext *meshContext
	key         scopeKey

	mu    sync.Mutex // guards all following fields, and the scope and the routing states
	index *Index     // of which the rest is; nil if there is none, or an update did not finish
	scope *sidecarScope
	// parts are those of scope.services, for proxies without a location.
	parts      []*serviceParts
	byLocation bool // some parts depend on the location of a proxy
	// clusterVersion counts the changes of which clusters there are, and which have endpoints.
	clusterVersion uint64

	routings  memo[routingKey, *scopeState, routingState]
	outbounds memo[outboundKey, *scopeState, outboundState]
	names     memo[namesKey, *scopeState, namesState]
	// locations has the view of each location. If no part depends on the location, there
	// is one view, for the zero location. The outbound states keep the views alive, so a
	// view goes away with its proxies: they may report any number of localities.
	locations memo[location, *scopeState, locationView]
}

// locationView is what the proxies of one location have of the services. Guarded by the
// scopeState's mu.
type locationView struct {
	location       location
	*serviceLayers // nil if they have to be built again
	// baseParts are the scopeState's parts, and parts are those used here instead. The view
	// keeps them alive. Both are nil for the zero location.
	baseParts, parts []*serviceParts
}

func (l location) build(*scopeState) *locationView { return &locationView{location: l} }

type serviceLayers struct{ clusters, endpoints *Layer }

// outboundKey is everything within a scopeState that a proxy's outbound configuration
// depends on.
type outboundKey struct {
	routingKey
	location location
	// names is empty, and named false, for a proxy whose agent answers no DNS queries.
	named bool
	names namesKey
}

func (k outboundKey) build(ss *scopeState) *outboundState {
	o := &outboundState{scopeState: ss, key: k, fixed: ss.meshContext.fixedLayers.get(ss.meshContext, fixedInput{router: ss.key.router, mode: k.interception, ipv6: k.captureIPv6, keepCase: ss.key.upstream.keepCase})}
	o.routing = ss.routings.get(ss, k.routingKey)
	if k.named {
		o.names = ss.names.get(ss, k.names)
	}
	return o
}

// outboundState is the outbound configuration that several proxies share, updated from one
// index to the next.
type outboundState struct {
	scopeState *scopeState
	key        outboundKey
	routing    *routingState
	fixed      *Layer
	names      *namesState   // or nil
	location   *locationView // guarded by the scopeState's mu; nil until there is a view
	current    atomic.Pointer[outboundAt]
}

type outboundAt struct {
	seq  uint64
	view *outboundView
}

// outboundView is the outbound configuration in one snapshot, or in several in which it is
// the same.
type outboundView struct {
	upstreamLayers
	*routingView

	stacks memo[stackInput, *outboundView, Stack]
}

// upstreamLayers are the layers with the clusters and endpoints that a proxy can reach, and with
// the names of hosts; names is nil if its agent answers none.
type upstreamLayers struct{ clusters, endpoints, fixed, names *Layer }

// outboundOf returns the outbound state of a proxy. reserved are the addresses at which its
// outbound listeners must not be; gateway is zero for a sidecar.
func (pc *proxyContext) outboundOf(reserved []listenerKey, gateway gatewayKey) *outboundState {
	rk := scopeKey{
		namespace: pc.namespace(), sidecar: pc.sidecar, router: pc.proxy.Type == Router,
		labels: pc.relevantLabels(), upstream: pc.upstream,
	}
	ss := pc.scopes.get(pc.meshContext, rk)
	key := outboundKey{location: pc.location}
	if rk.router {
		key.routingKey = routingKey{telemetry: pc.telemetry.Outbound, headers: pc.headers, gateway: gateway}
	} else {
		key.routingKey = routingKey{interception: pc.proxy.Interception, domain: pc.domain, telemetry: pc.telemetry.Outbound, headers: pc.headers, access: pc.access, captureIPv6: pc.captureIPv6}
		if reserved = pc.relevantAddresses(reserved); len(reserved) > 0 {
			key.reserved = pc.addressSets.intern(addressSet{reserved})
		}
		if pc.proxy.Names {
			key.named, key.names = true, pc.namesKeyOf()
		}
	}
	return ss.outbounds.get(ss, key)
}

// relevantLabels are those of the proxy's labels that selectors use.
func (pc *proxyContext) relevantLabels() *labelSet {
	if labels := pc.selectorLabels.relevant(pc.namespace(), pc.proxy.Labels, pc.proxy.Type == Router); len(labels) > 0 {
		return pc.labelSets.intern(labelSet{labels})
	}
	return nil
}

// relevantAddresses are the addresses that an outbound listener could want. There are none
// if no outbound listener binds to its port.
func (pc *proxyContext) relevantAddresses(reserved []listenerKey) []listenerKey {
	binds := map[string]bool{}
	add := func(bind string) { binds[cmp.Or(bind, localhost)] = true }
	var listeners []*networking.IstioEgressListener
	if pc.sidecar != nil {
		listeners = pc.sidecar.Spec.GetEgress()
	}
	for _, l := range listeners {
		if pc.proxy.Interception == InterceptNone || l.GetCaptureMode() == networking.CaptureMode_NONE {
			add(l.GetBind())
		}
	}
	if len(listeners) == 0 && pc.proxy.Interception == InterceptNone {
		add("")
	}
	if len(binds) == 0 {
		return nil
	}
	var out []listenerKey
	for _, k := range reserved {
		if binds[k.Bind] || binds[wildcard] || k.Bind == wildcard {
			out = append(out, k)
		}
	}
	return out
}

// viewAt returns the outbound view in a snapshot. Proxies with the same state wait for the
// one that computes it.
func (o *outboundState) viewAt(x *Index) *outboundView {
	if now := o.current.Load(); now != nil && now.seq == x.seq {
		return now.view
	}
	ss := o.scopeState
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.index != nil && ss.index.seq > x.seq { // the state is already newer than x
		temporary := ss.key.build(ss.meshContext)
		temporary.advanceTo(x)
		return temporary.buildView(o.key.build(temporary))
	}
	ss.advanceTo(x)
	v := ss.buildView(o)
	if now := o.current.Load(); now != nil && now.view.identicalTo(v) {
		v = now.view
	}
	o.current.Store(&outboundAt{x.seq, v})
	return v
}

func (v *outboundView) identicalTo(o *outboundView) bool {
	return v.upstreamLayers == o.upstreamLayers && v.routingView == o.routingView
}

// buildView assembles the outbound view. Called with mu held.
func (ss *scopeState) buildView(o *outboundState) *outboundView {
	o.location = ss.locationViewOf(o.key.location)
	l := ss.layersFor(o.location)
	v := &outboundView{upstreamLayers: upstreamLayers{clusters: l.clusters, endpoints: l.endpoints, fixed: o.fixed}}
	if o.names != nil {
		v.names = o.names.layerFor(ss.scope)
	}
	if o.routing.view == nil {
		o.routing.build(ss.scope)
	}
	ss.judge(o.routing)
	v.routingView = o.routing.view
	return v
}

// locationViewOf returns what the proxies of a location have. Called with mu held.
func (ss *scopeState) locationViewOf(at location) *locationView {
	if !ss.byLocation {
		at = location{}
	}
	return ss.locations.get(ss, at)
}

// layersFor returns the service layers for proxies of a location. Called with mu held.
func (ss *scopeState) layersFor(at *locationView) *serviceLayers {
	if at.serviceLayers != nil {
		return at.serviceLayers
	}
	parts := ss.parts
	if at.location != (location{}) {
		parts = ss.partsFor(at)
		at.baseParts, at.parts = slices.Clone(ss.parts), parts
	}
	at.serviceLayers = &serviceLayers{
		clusters:  ss.scope.serviceLayer(ClustersLayer, parts, func(p *serviceParts) []Part { return p.clusters }),
		endpoints: ss.scope.serviceLayer(EndpointsLayer, parts, func(p *serviceParts) []Part { return p.endpoints }),
	}
	return at.serviceLayers
}

// partsFor returns the parts for proxies of a location. Parts made from an unchanged base
// part are reused.
func (ss *scopeState) partsFor(was *locationView) []*serviceParts {
	sc := ss.scope.at(was.location)
	have := func(i int) *serviceParts {
		if was.baseParts[i] == ss.parts[i] {
			return was.parts[i]
		}
		return nil
	}
	if len(was.baseParts) != len(ss.parts) {
		known := map[*serviceParts]*serviceParts{}
		for i, p := range was.baseParts {
			if p.byLocation {
				known[p] = was.parts[i]
			}
		}
		have = func(i int) *serviceParts { return known[ss.parts[i]] }
	}
	parts := slices.Clone(ss.parts)
	for i, p := range ss.parts {
		if !p.byLocation {
			continue
		}
		if parts[i] = have(i); parts[i] == nil {
			parts[i] = sc.partsOf(ss.scope.services[i])
		}
	}
	return parts
}

// at is the scope for proxies of a location.
func (sc *sidecarScope) at(l location) *sidecarScope {
	pc, out := *sc.proxyContext, *sc
	pc.location = l
	out.proxyContext = &pc
	return &out
}

// advanceTo updates the state to an index. Called with mu held.
func (ss *scopeState) advanceTo(x *Index) {
	if ss.index == x {
		return
	}
	prev := ss.index
	ss.index = nil // until the update is complete: it may panic
	pc := &proxyContext{Index: x, sidecar: ss.key.sidecar, upstream: ss.key.upstream, proxy: Proxy{
		Type: Sidecar, Labels: ss.key.labels.all(), ServiceAccount: mesh.ServiceAccount{Namespace: ss.key.namespace},
	}}
	if ss.key.router {
		pc.proxy.Type = Router
	}
	if prev == nil || !ss.applyDiff(prev, pc) {
		ss.rebuild(pc)
	}
	ss.index = x
}

// rebuild computes everything again; unchanged parts are found in the caches.
func (ss *scopeState) rebuild(pc *proxyContext) {
	ss.scope = newSidecarScope(pc, ss.scope)
	parts := make([]*serviceParts, len(ss.scope.services))
	for i, svc := range ss.scope.services {
		parts[i] = ss.scope.partsOf(svc)
	}
	ss.parts = parts // only now: until here the old parts had to stay in the caches
	ss.clusterVersion++
	ss.invalidateLayers()
	for _, rt := range ss.routings.All() {
		if rt.view != nil {
			rt.build(ss.scope)
		}
	}
}

// invalidateLayers has the layers built again when they are needed.
func (ss *scopeState) invalidateLayers() {
	for _, at := range ss.locations.All() {
		at.serviceLayers = nil
	}
	for _, n := range ss.names.All() {
		n.layer = nil
	}
	ss.byLocation = slices.ContainsFunc(ss.parts, func(p *serviceParts) bool { return p.byLocation })
}

// applyDiff applies the changes since prev in place, if only endpoints, rules or routes
// changed, or few services. It reports false if that is not possible, and the state has to
// be rebuilt.
func (ss *scopeState) applyDiff(prev *Index, pc *proxyContext) bool {
	d := pc.diffSince(prev)
	if d.untracked {
		return false
	}
	sc := ss.scope
	ns := ss.key.namespace
	var replaced, changes []mesh.Delta[*mesh.Service]
	for _, c := range d.services {
		inScope := func(svc *mesh.Service) bool {
			return svc != nil && (svc.Namespace == ns || pc.seesService(svc, ns)) && sc.includes(svc)
		}
		switch {
		case sc.revealsCatalogService(c.Delta, pc):
			return false
		case !inScope(c.Old) && !inScope(c.New):
			ss.noteHidden(c)
		case c.endpointsOnly:
			replaced = append(replaced, c.Delta)
		case len(changes) < maxServiceChanges && sc.isolated(c.Delta, pc):
			changes = append(changes, c.Delta)
		default:
			return false
		}
	}
	var edits []mesh.Delta[*virtualService]
	if ss.key.router && !sc.samePassthrough(pc) {
		return false // other services have clusters for it
	}
	for _, c := range d.virtualServices {
		if ss.key.router {
			continue // routes decide no clusters of it
		}
		sees := func(vs *virtualService) bool {
			return vs != nil && pc.seesRoutes(vs, ns) &&
				slices.ContainsFunc(sc.egress, func(e *egressListener) bool { return e.importsVirtualService(vs) })
		}
		switch {
		case !sees(c.Old) && !sees(c.New):
		case !c.routesOnly || !sc.sameDestinations(c.Delta, pc.s):
			return false
		default:
			edits = append(edits, c.Delta)
		}
	}
	sc.proxyContext = pc
	if len(replaced) > 0 {
		sc.replaceServices(replaced)
	}
	ss.applyServiceChanges(changes)
	rebuildRouting := ss.refreshServices(d)
	if ss.key.router {
		rebuildRouting = sc.updateGateways(d) || rebuildRouting || len(changes) > 0
		changes = nil
	}
	for _, c := range edits {
		sc.replaceVirtualService(c)
		rebuildRouting = rebuildRouting || c.Old.hasL4Routes() || c.New.hasL4Routes()
	}
	for _, rt := range ss.routings.All() {
		switch {
		case rt.view == nil:
		case rebuildRouting || len(replaced) > 0 && len(rt.view.warnings) > 0: // warnings have origins, which may have moved
			rt.build(sc)
		default:
			if len(changes) > 0 {
				rt.applyServiceChanges(sc, changes)
			}
			if len(edits) > 0 {
				rt.applyRouteChanges(sc, edits)
			}
		}
	}
	return true
}

// refreshServices computes the rules and parts of the services in the diff again. It
// reports whether routes have to be built again.
func (ss *scopeState) refreshServices(d *indexDiff) bool {
	sc := ss.scope
	rebuildRouting, changed := false, false
	refresh := func(i int) {
		svc := sc.services[i]
		rule := sc.lookupRule(svc)
		rebuildRouting = rebuildRouting || !sameRouteSettings(svc.rule, rule)
		svc.rule = rule
		if p := sc.partsOf(svc); p != ss.parts[i] {
			if !p.sameClusters(ss.parts[i]) {
				ss.clusterVersion++
			}
			ss.parts[i], changed = p, true
		}
	}
	if d.allRules || len(d.authnNamespaces) > 0 {
		for i, svc := range sc.services {
			if d.allRules || d.authnNamespaces[svc.Namespace] {
				refresh(i)
			}
		}
	}
	for _, h := range d.hosts {
		if i, ok := slices.BinarySearchFunc(sc.services, h, compareHosts); ok {
			refresh(i)
		}
	}
	if changed {
		ss.invalidateLayers()
	}
	return rebuildRouting
}

// replaceServices replaces services by their new versions.
func (sc *sidecarScope) replaceServices(changes []mesh.Delta[*mesh.Service]) {
	replacements := map[*mesh.Service]*mesh.Service{}
	for _, c := range changes {
		replacements[c.Old] = c.New
	}
	each := func(list []*service) {
		for _, s := range list {
			if replacement := replacements[s.Service]; replacement != nil {
				if sameSlice(s.Ports, s.Service.Ports) {
					s.Ports = replacement.Ports
				}
				s.Service = replacement
			}
		}
	}
	each(sc.services)
	for _, e := range sc.egress {
		each(e.services)
	}
}

// replaceVirtualService replaces a VirtualService by its new version.
func (sc *sidecarScope) replaceVirtualService(c mesh.Delta[*virtualService]) {
	for _, e := range sc.egress {
		if i := slices.Index(e.virtualServices, c.Old); i >= 0 {
			e.virtualServices[i] = c.New
		}
	}
}

// sameDestinations reports whether the scope needs the same services for two versions of a
// VirtualService; the new one is of the next snapshot.
func (sc *sidecarScope) sameDestinations(c mesh.Delta[*virtualService], next *mesh.Snapshot) bool {
	from, to := c.Old.destinations(sc.namespace()), c.New.destinations(sc.namespace())
	differs := func(x, in []destinationPorts) bool {
		return slices.ContainsFunc(x, func(r destinationPorts) bool {
			if slices.ContainsFunc(in, func(o destinationPorts) bool { return o.host == r.host && slices.Equal(o.ports, r.ports) }) {
				return false
			}
			return !sc.independentOfRoutes(r.host) || !slices.Equal(sc.s.ServicesOn(r.host), next.ServicesOn(r.host))
		})
	}
	return !differs(from, to) && !differs(to, from)
}

// independentOfRoutes reports whether routes to a host do not decide if it is in the scope:
// it does not exist, or the scope imports all its ports.
func (sc *sidecarScope) independentOfRoutes(h mesh.Hostname) bool {
	switch services := sc.s.ServicesOn(h); len(services) {
	case 0:
		return true
	case 1:
		svc := sc.find(h)
		return svc != nil && svc.hasAllPorts() &&
			slices.ContainsFunc(sc.egress, func(e *egressListener) bool { return slices.Contains(e.services, svc) })
	default:
		return false
	}
}
