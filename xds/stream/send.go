package stream

import (
	"slices"
	"strconv"
	"time"
)

// send builds a response and records what is in it.
func (s *Server) send(now time.Time, t *subscriptionState, r *sentResponse) *Response {
	p := t.ensurePending()
	s.nonce++
	r.nonce = strconv.FormatUint(s.nonce, 10)
	r.at = now
	r.generation = s.target.Number
	r.netAdded = t.netAdded(r)
	t.awaitingResponse = false
	startsEmpty := s.routeConfigForms(t, r)
	for name, e := range p.states {
		if _, in := r.find(name); in {
			e.lastSent, e.forced, e.relayRejected, e.todo = r, false, false, opNone
		}
	}
	p.forced = subtract(p.forced, r.resources)
	if p.unanswered() >= maxInflight {
		i := slices.IndexFunc(p.sent, func(o *sentResponse) bool { return !o.accepted })
		s.abandon(t, p.sent[i])
	}
	p.mergeAccepted()
	p.sent = append(p.sent, r)
	t.typ.status.sent, t.typ.status.sentAt = r.generation, now.UnixNano()
	s.addEvent(Event{Kind: EventSent, Type: t.typ.url, Generation: r.generation, Names: r.len(), Removal: len(r.removed) > 0})
	s.forceDependents(t, r)
	s.noteRemovedHosts(t, r)
	s.routeConfigsSent(startsEmpty)
	return &Response{
		TypeURL: t.typ.url, Nonce: r.nonce, SystemVersion: strconv.FormatUint(r.generation, 10),
		Resources: r.resources, Removed: r.removed,
	}
}

// netAdded is how many more resources the peer will have after a response.
func (t *subscriptionState) netAdded(r *sentResponse) int {
	n := 0
	if t.have == nil && len(t.pending.sent) == 0 && len(t.pending.states) == 0 {
		n = len(r.resources)
	} else {
		for _, res := range r.resources {
			if t.expected(res.Name) == nil {
				n++
			}
		}
	}
	for _, name := range r.removed {
		if t.expected(name) != nil {
			n--
		}
	}
	return n
}

// maxWithoutDependents bounds the responses that are kept because the peer has not
// subscribed yet to the type of their dependents.
const maxWithoutDependents = 64

// forceDependents forces what the peer needs again because of a response: the endpoints of
// clusters, and after a reconnect the routes of listeners.
func (s *Server) forceDependents(t *subscriptionState, r *sentResponse) {
	var next TypeURL
	switch t.typ.url {
	case ClusterType:
		next = EndpointType
		r.endpoints = s.target.merged(EndpointType)
	case ListenerType:
		// Within a stream Envoy uses the same routes for the old and the new listener;
		// after a reconnect it may have none.
		if !t.typ.reconnected || t.typ.answered {
			return
		}
		next = RouteType
	default:
		return
	}
	if f := s.typeOf(next); f != nil && f.reconciled {
		s.force(&f.subscriptionState, dependents(&f.subscriptionState, r))
	} else if len(t.typ.withoutDependents) < maxWithoutDependents {
		// The peer may list the dependents when it subscribes; they would not be sent
		// then.
		t.typ.withoutDependents = append(t.typ.withoutDependents, r)
	}
}

// forceLateDependents is forceDependents for responses that were sent before the peer
// subscribed to the type of the dependents.
func (s *Server) forceLateDependents(t *subscriptionState) {
	parent := map[TypeURL]TypeURL{EndpointType: ClusterType, RouteType: ListenerType}[t.typ.url]
	l := s.typeOf(parent)
	if l == nil || len(l.withoutDependents) == 0 {
		return
	}
	late := l.withoutDependents
	l.withoutDependents = nil
	if t.have == nil {
		return // everything is sent anyway
	}
	for _, r := range late {
		for _, res := range dependents(t, r) {
			e := t.ensureState(res.Name)
			e.forced = true
		}
	}
}

// dependents lists the resources that depend on a response, as far as they are subscribed.
func dependents(t *subscriptionState, r *sentResponse) []*Resource {
	if t.typ.url == RouteType {
		return routesOf(r.resources, t)
	}
	var list []*Resource
	for _, res := range r.resources {
		if !t.sub.has(res.Name) {
			continue
		}
		if x := r.endpoints.get(res.Name); x != nil {
			list = append(list, x)
		}
	}
	return list
}

// routesOf lists the subscribed route configurations that listeners use, or all of them if
// a listener's are not known.
func routesOf(listeners []*Resource, routes *subscriptionState) []*Resource {
	names := map[string]struct{}{}
	for _, l := range listeners {
		if l.Refs == nil {
			return routes.want.deltaFrom(nil, routes.sub).add
		}
		for _, name := range l.Refs {
			names[name] = struct{}{}
		}
	}
	var list []*Resource
	for _, name := range sortedKeys(names) {
		if r := routes.want.get(name); r != nil && routes.sub.has(name) {
			list = append(list, r)
		}
	}
	return list
}

// abandon stops waiting for the answer to a response: too many are unanswered.
func (s *Server) abandon(t *subscriptionState, r *sentResponse) {
	p := t.pending
	var names []string
	for _, name := range r.names() {
		if e := t.peekState(name); e.lastSent == r && t.sub.has(name) {
			names = append(names, name)
		}
	}
	p.sent = slices.DeleteFunc(p.sent, func(o *sentResponse) bool { return o == r })
	for _, name := range names {
		e := t.ensureState(name)
		e.lastSent, e.unknown = nil, true
		s.evaluate(t, name, e)
	}
	p.recount = true
}

// accept records that the peer accepted a response, except for some names.
func (s *Server) accept(t *subscriptionState, r *sentResponse, except map[string]string) {
	p := t.pending
	r.accepted, t.initial = true, false
	s.routeConfigsAccepted(t, r, except)
	t.count += r.netAdded
	for name, e := range p.states {
		res, in := r.find(name)
		if _, rejected := except[name]; !in || rejected {
			continue
		}
		e.acked = res
		e.everHad = e.everHad || res != nil
		if e.lastSent == r {
			e.lastSent, e.unknown, e.candidate = nil, false, false
		}
		if e.rejectedVersion != "" && res != nil && t.want.get(name).version() == res.Version {
			e.rejectedVersion, e.rejectedReason = "", ""
		}
		if res != nil && t.want.get(name).version() == res.Version {
			e.tries = 0
		}
		s.evaluate(t, name, e)
	}
}

// removeSent removes a response from those that count.
func (p *pending) removeSent(r *sentResponse) {
	p.sent = slices.DeleteFunc(p.sent, func(o *sentResponse) bool { return o == r })
}
