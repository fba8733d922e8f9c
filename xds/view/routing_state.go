package view

import (
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// routingKey is everything within a scopeState that the listeners and routes of a proxy
// depend on.
type routingKey struct {
	interception Interception
	domain       string
	headers      *proxyHeaders // or nil
	access       localAccess
	// reserved are the addresses at which its outbound listeners must not be; or nil.
	reserved *addressSet
	// telemetry is what the proxy reports of its own requests; or nil.
	telemetry *Telemetry
	// captureIPv6 is that of proxyContext.
	captureIPv6 bool
	// gateway is zero for sidecars.
	gateway gatewayKey
}

func (k routingKey) build(*scopeState) *routingState { return &routingState{key: k} }

// addressSet is a set of listener addresses.
type addressSet struct{ Addresses []listenerKey }

func (s *addressSet) all() []listenerKey {
	if s == nil {
		return nil
	}
	return s.Addresses
}

// routingState is the outbound listeners and routes that proxies of one scopeState share.
// Endpoints are not part of it. Guarded by the scopeState's mu.
type routingState struct {
	key        routingKey
	routeNames []string // of the route configurations, sorted; in the order of view.routeConfigurations
	hostLists  map[hostListID]*virtualHostList
	view       *routingView
	judged     judgedRouting
}

// routingView is the immutable result.
type routingView struct {
	listeners           *Layer
	routeConfigurations []*Layer
	warnings            []Warning
	// leftOut are the findings of what is left out of the listeners; findings are all of them, as
	// scopeState.judge found them.
	leftOut  []Finding
	findings *Findings
}

// scopeFor is the scope for the proxies of this routing state.
func (r *routingState) scopeFor(sc *sidecarScope) *sidecarScope {
	pc, out := *sc.proxyContext, *sc
	pc.proxy.Interception, pc.captureIPv6, pc.domain = r.key.interception, r.key.captureIPv6, r.key.domain
	pc.telemetry.Outbound, pc.headers, pc.access = r.key.telemetry, r.key.headers, r.key.access
	out.proxyContext = &pc
	return &out
}

// build computes everything.
func (r *routingState) build(sc *sidecarScope) {
	sc = r.scopeFor(sc)
	if sc.proxy.Type == Router {
		r.buildGateways(sc)
		return
	}
	v := &routingView{}
	o := &outboundListenerBuilder{sc: sc, reserved: r.key.reserved.all(), prev: r.view.listenersByName()}
	listeners, names := o.listeners()
	v.warnings = o.warnings
	v.listeners = sc.layer(ListenersLayer, listeners)
	lists := map[hostListID]*virtualHostList{}
	var routeNames []string
	byDomain := map[hostListID]map[string]*VirtualHost{}
	for _, name := range names {
		id, sniffed, ok := sc.hostListFor(name)
		if !ok {
			continue
		}
		if lists[id] == nil {
			lists[id] = newVirtualHostBuilder(sc, id).list(r.hostLists[id])
		}
		if have := r.routeConfiguration(name); have != nil && r.hostLists[id] != nil && sameSlice(lists[id].hosts, r.hostLists[id].hosts) {
			routeNames = append(routeNames, name)
			v.routeConfigurations = append(v.routeConfigurations, have)
			continue
		}
		if sniffed != "" && byDomain[id] == nil {
			byDomain[id] = lists[id].byDomain()
		}
		routeNames = append(routeNames, name)
		v.routeConfigurations = append(v.routeConfigurations, sc.routeConfigurationLayer(name, lists[id], byDomain[id]))
	}
	r.hostLists, r.routeNames, r.view = lists, routeNames, r.view.reuseIfEqual(v)
}

// routeConfiguration is the existing layer of a name; or nil.
func (r *routingState) routeConfiguration(name string) *Layer {
	if i, ok := slices.BinarySearch(r.routeNames, name); ok {
		return r.view.routeConfigurations[i]
	}
	return nil
}

// listenersByName are the listeners of a view, which may be nil.
func (v *routingView) listenersByName() map[string]*Listener {
	out := map[string]*Listener{}
	if v == nil {
		return out
	}
	for _, p := range v.listeners.Parts {
		if l, ok := p.(*Listener); ok {
			out[l.Name] = l
		}
	}
	return out
}

// reuseIfEqual returns v if the other view is equal to it, else the other one.
func (v *routingView) reuseIfEqual(o *routingView) *routingView {
	if v != nil {
		o.findings = v.findings // until they are judged
	}
	if v != nil && shallowEqual(v, o) {
		return v
	}
	return o
}

// applyRouteChanges applies changes of VirtualServices that differ in their routes only.
func (r *routingState) applyRouteChanges(sc *sidecarScope, edits []mesh.Delta[*virtualService]) {
	sc = r.scopeFor(sc)
	changed := map[hostListID]bool{}
	for id, list := range r.hostLists {
		if next := newVirtualHostBuilder(sc, id).withRouteChanges(list, edits); next != list {
			r.hostLists[id], changed[id] = next, true
		}
	}
	if len(changed) > 0 {
		r.rebuildRouteConfigurations(sc, changed, &routingView{listeners: r.view.listeners, warnings: r.view.warnings})
	}
}

// rebuildRouteConfigurations builds those whose lists of virtual hosts changed, and
// completes the view v.
func (r *routingState) rebuildRouteConfigurations(sc *sidecarScope, changed map[hostListID]bool, v *routingView) {
	v.routeConfigurations = slices.Clone(r.view.routeConfigurations)
	byDomain := map[hostListID]map[string]*VirtualHost{}
	for i, name := range r.routeNames {
		id, sniffed, _ := sc.hostListFor(name)
		if !changed[id] {
			continue
		}
		if sniffed != "" && byDomain[id] == nil {
			byDomain[id] = r.hostLists[id].byDomain()
		}
		v.routeConfigurations[i] = sc.routeConfigurationLayer(name, r.hostLists[id], byDomain[id])
	}
	r.view = r.view.reuseIfEqual(v)
}

// hostListFor returns the list of virtual hosts that a route configuration is made from.
// sniffed is the one host that it is for; empty if it is for all.
func (sc *sidecarScope) hostListFor(routeName string) (id hostListID, sniffed string, ok bool) {
	sniffed, port := splitRouteName(routeName)
	i := sc.egressFor(port, routeName)
	if i < 0 {
		return hostListID{}, "", false
	}
	if e := sc.egress[i]; e.hasPort() && mesh.ParseProtocol(e.spec.GetPort().GetProtocol()) == mesh.HTTPProxy {
		port = 0
	}
	return hostListID{i, port}, sniffed, true
}

// routeConfigurationLayer makes the route configuration of a name from its virtual hosts.
func (sc *sidecarScope) routeConfigurationLayer(name string, list *virtualHostList, byDomain map[string]*VirtualHost) *Layer {
	id, sniffed, _ := sc.hostListFor(name)
	t := &RouteConfiguration{Name: name, VirtualHosts: list.hosts, AllPorts: id.port == 0}
	if sniffed != "" {
		t.VirtualHosts = nil
		if vh := byDomain[sniffed]; vh != nil {
			only := &VirtualHost{Name: vh.Name, Domains: []string{"*"}, Routes: vh.Routes, NoAttemptCount: vh.NoAttemptCount}
			only.origins = vh.origins
			t.VirtualHosts = []*VirtualHost{sc.virtualHosts.intern(only)}
		}
	} else if !list.hasWildcard { // Envoy accepts only one virtual host for "*"
		t.CatchAll = sc.catchAll()
		t.CatchAll.NoAttemptCount, t.CatchAll.ForwardedHost = sc.headers.noAttemptCount(), sc.headers.forwardsHost()
	}
	return sc.layer(RoutesLayer+name, []Part{sc.routeConfigurations.intern(t)})
}
