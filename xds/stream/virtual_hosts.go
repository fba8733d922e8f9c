package stream

import (
	"slices"
	"time"
)

// VHDS has one subscription a stream, which names no route configuration. So the state of
// virtual hosts is kept by route configuration, from what was sent for it. A route
// configuration that the peer did not have before, or had with inline virtual hosts,
// starts without any, whatever was sent for it earlier, and waits for the first ones.

// routeConfigForms finds, before a response is sent, the route configurations in it that
// change how their virtual hosts are delivered. True means that the route configuration
// starts without virtual hosts and gets them by VHDS; false means that they are inline.
func (s *Server) routeConfigForms(t *subscriptionState, r *sentResponse) (startsEmpty map[string]bool) {
	if t.typ.url != RouteType {
		return nil
	}
	for _, res := range r.resources {
		if !res.Hosts && !s.hasHosts(res.Name) {
			continue
		}
		empty := false
		if res.Hosts {
			was := t.expected(res.Name)
			_, due := find(t.pending.forced, res.Name)
			e := t.stateOf(res.Name)
			// Of a route configuration that the peer only listed it is not known whether
			// its virtual hosts are inline. One whose inline version was rejected may have
			// left some behind.
			empty = was == nil || !was.Hosts || due || e != nil && e.forced || s.hostsOf(res.Name).inline
		}
		if !res.Hosts || empty {
			if startsEmpty == nil {
				startsEmpty = map[string]bool{}
			}
			startsEmpty[res.Name] = empty
		}
	}
	return startsEmpty
}

// routeConfigsSent schedules the virtual hosts of route configurations that start without
// any, and suspends those of route configurations that have them inline.
func (s *Server) routeConfigsSent(startsEmpty map[string]bool) {
	for _, routeConfig := range sortedKeys(startsEmpty) {
		g := s.hostsOf(routeConfig)
		if !startsEmpty[routeConfig] {
			g.suspend()
			g.inline = true
			continue
		}
		g.inline, g.resendAll, g.awaitingResponse, g.initial = false, true, true, true
		p := g.ensurePending() // rejected virtual hosts are sent again with the others
		p.retries = nil
		for name, e := range p.states {
			if e.unknown {
				g.addUnconfirmedRemoval(name)
			}
			*e = resourceState{acked: e.acked, everHad: e.everHad, lastSent: e.lastSent}
		}
		for _, name := range g.unconfirmedRemovals { // unanswered responses that have it do not count
			e := g.ensureState(name)
			e.lastSent, e.unknown, e.forced = nil, true, true
		}
		s.reconciled = nil
	}
}

// noteRemovedHosts records the virtual hosts that are removed behind a route configuration
// that is not answered yet.
func (s *Server) noteRemovedHosts(t *subscriptionState, r *sentResponse) {
	if routes := s.typeOf(RouteType); t.routeConfig == "" || len(r.removed) == 0 || routes == nil || routes.lastUnanswered(t.routeConfig) == nil {
		return
	}
	for _, name := range r.removed {
		if name != t.absentHost() {
			t.addUnconfirmedRemoval(name)
		}
	}
}

// addUnconfirmedRemoval records a virtual host that the peer may have again once it
// accepts the route configuration.
func (t *subscriptionState) addUnconfirmedRemoval(name string) {
	if at, there := slices.BinarySearch(t.unconfirmedRemovals, name); !there {
		t.unconfirmedRemovals = slices.Insert(t.unconfirmedRemovals, at, name)
	}
}

// routeConfigsAccepted forgets the unconfirmed removals of the route configurations that a
// response had, except for the rejected ones.
func (s *Server) routeConfigsAccepted(t *subscriptionState, r *sentResponse, except map[string]string) {
	hosts := s.typeOf(VirtualHostType)
	if t.typ.url != RouteType || hosts == nil {
		return
	}
	for _, res := range r.resources {
		_, rejected := except[res.Name]
		if g := hosts.hosts[res.Name]; g != nil && res.Hosts && !rejected && t.lastUnanswered(res.Name) == nil {
			g.unconfirmedRemovals = nil
		}
	}
}

func (s *Server) hasHosts(routeConfig string) bool {
	t := s.typeOf(VirtualHostType)
	return t != nil && t.hosts[routeConfig] != nil
}

// hostsOf returns the state of the virtual hosts of a route configuration. It is kept
// before the peer subscribes to virtual hosts: a peer does that when it has received the
// first route configuration that uses VHDS.
func (s *Server) hostsOf(routeConfig string) *subscriptionState {
	t := s.typeOf(VirtualHostType)
	if t == nil {
		var err error
		if t, err = s.addType(VirtualHostType); err != nil {
			return &subscriptionState{typ: &typeState{url: VirtualHostType}, routeConfig: routeConfig} // at the limit of types the peer cannot subscribe to them either
		}
	}
	g := t.hosts[routeConfig]
	if g == nil {
		g = &subscriptionState{typ: t, routeConfig: routeConfig, sub: subscription{wildcard: true}}
		if t.hosts == nil {
			t.hosts = map[string]*subscriptionState{}
		}
		t.hosts[routeConfig] = g
		s.reconciled = nil
	}
	return g
}

// forgetHosts forgets the virtual hosts of route configurations from which the peer
// unsubscribed: when it subscribes again, it has none.
func (s *Server) forgetHosts(routeConfigs map[string]bool) {
	t := s.typeOf(VirtualHostType)
	if t == nil || len(routeConfigs) == 0 {
		return
	}
	for routeConfig := range routeConfigs {
		delete(t.hosts, routeConfig)
	}
	t.forgetInitialHosts(func(routeConfig string) bool { return routeConfigs[routeConfig] })
}

// suspend sends nothing more until virtual hosts of the route configuration are wanted
// again.
func (t *subscriptionState) suspend() {
	t.suspended = true
	p := t.pending
	// The initial virtual hosts are sent once more, unless they are in flight.
	if t.awaitingResponse || p != nil && len(p.forced) > 0 || t.initial && (p == nil || !p.waiting()) {
		t.resendAll, t.awaitingResponse = true, false
	}
	if p == nil {
		return
	}
	if len(p.add)+len(p.remove)+len(p.retries)+len(p.states) > 0 {
		t.compareAll = true
	}
	p.add, p.forced, p.remove, p.retries = nil, nil, nil, nil
	p.addWait.clear()
	for _, e := range p.states {
		t.resendAll = t.resendAll || e.forced
		e.todo, e.candidate = opNone, false
	}
}

// hostsWanted reports whether virtual hosts of a route configuration are to be sent: the
// peer has subscribed to VHDS and has the route configuration without inline ones. Virtual
// hosts that arrive before it are lost, and so are removals: Envoy has the removed ones
// again when the route configuration comes.
func (s *Server) hostsWanted(t *subscriptionState) bool {
	routes := s.typeOf(RouteType)
	if !t.typ.requested || t.inline || routes == nil {
		return false
	}
	want := s.target.Get(RouteType, t.routeConfig)
	if want == nil || !want.Hosts {
		return false
	}
	// Whether a route configuration that the peer only listed has its hosts inline is
	// known only for the target version.
	has := routes.expected(t.routeConfig)
	return has != nil && (has.Hosts || has.Version == want.Version)
}

// awaitsFirstHost reports whether the peer may be waiting for a first virtual host that
// never comes: it rejected the route configuration that it is to have, and keeps the one
// before.
func (s *Server) awaitsFirstHost(t *subscriptionState) bool {
	routes := s.typeOf(RouteType)
	if !t.initial || routes == nil || !s.rejectsTarget(routes, t.routeConfig) {
		return false
	}
	has := routes.expected(t.routeConfig)
	return has != nil && (has.Hosts || has.Body == nil)
}

// rejectsTarget reports whether the peer rejected the target version of a name, and has
// the version that it keeps instead, or will have it with what is in flight.
func (s *Server) rejectsTarget(t *typeState, name string) bool {
	e := t.stateOf(name)
	return e != nil && e.rejectedVersion != "" && e.todo == opNone && !e.candidate && e.rejectedVersion == s.target.Get(t.url, name).version()
}

// adoptInitialHosts creates the state of virtual hosts that the peer has from before this
// stream.
func (s *Server) adoptInitialHosts(t *typeState) {
	routes := s.typeOf(RouteType)
	if t.adopted || !t.requested || routes == nil || !routes.reconciled {
		return
	}
	t.adopted = true
	listed, sure := s.listedRouteConfigs(t)
	for _, routeConfig := range routes.sub.set.all() {
		if t.hosts[routeConfig] != nil {
			continue
		}
		acked := routes.peekState(routeConfig).acked // not what it is sent: it may reject that
		waits := acked != nil && acked.Hosts
		if acked != nil && acked.Body == nil { // whether its hosts are inline is known only for the target version
			if want := routes.want.get(routeConfig); want.version() == acked.Version {
				waits = want.Hosts
			} else if waits = s.rejectsTarget(routes, routeConfig); !waits {
				t.adopted = false
			}
		}
		if !listed[routeConfig] && !waits {
			continue
		}
		g := s.hostsOf(routeConfig)
		if !sure[routeConfig] { // it may be waiting for the first one
			g.awaitingResponse, g.initial = true, true
			g.ensurePending()
		}
	}
	if !t.adopted {
		return
	}
	// Listed virtual hosts of other route configurations do not count.
	t.forgetInitialHosts(func(routeConfig string) bool { return t.hosts[routeConfig] == nil })
}

// listedRouteConfigs are the route configurations of which the peer lists virtual hosts.
// In sure are those of which it surely has some: an unacknowledged virtual host may be
// missing.
func (s *Server) listedRouteConfigs(t *typeState) (listed, sure map[string]bool) {
	listed, sure = map[string]bool{}, map[string]bool{}
	unacknowledged := map[string]bool{}
	for _, name := range s.cfg.Unacknowledged[t.url] {
		unacknowledged[name] = true
	}
	last := ""
	for _, v := range t.initialVersions {
		routeConfig, _, _ := splitHostName(v.Name)
		if routeConfig == last && sure[routeConfig] {
			continue
		}
		last, listed[routeConfig] = routeConfig, true
		sure[routeConfig] = sure[routeConfig] || !unacknowledged[v.Name]
	}
	return listed, sure
}

// sortedHosts are the states of all virtual hosts, sorted by route configuration.
func (t *typeState) sortedHosts() []*subscriptionState {
	switch len(t.hosts) {
	case 0:
		return nil
	case 1:
		for _, g := range t.hosts {
			return []*subscriptionState{g}
		}
	}
	out := make([]*subscriptionState, 0, len(t.hosts))
	for _, routeConfig := range sortedKeys(t.hosts) {
		out = append(out, t.hosts[routeConfig])
	}
	return out
}

// nextHosts returns the next response with virtual hosts. A response has those of one
// route configuration only: if the peer rejects one of two, the result for the other
// depends on their order.
func (s *Server) nextHosts(now time.Time, t *typeState) *Response {
	if !t.requested || !slices.ContainsFunc(t.sortedHosts(), (*subscriptionState).active) {
		return nil
	}
	for _, g := range t.sortedHosts() {
		if g.suspended && g.awaitingResponse {
			return s.send(now, g, &sentResponse{removed: []string{g.absentHost()}})
		}
		if !s.hostsWanted(g) {
			continue
		}
		if r := s.nextAdd(now, g); r != nil {
			return r
		}
	}
	return nil
}

// absentHost is the name of a virtual host that does not exist. Its removal answers a peer
// that waits for a first virtual host, because Envoy ignores an empty response.
func (t *subscriptionState) absentHost() string { return t.routeConfig + "/none" }

func (t *subscriptionState) active() bool { return t.pending != nil || t.awaitingResponse }
