package stream

// completeIfIdle commits the accepted responses if nothing is left to send or to wait for.
func (s *Server) completeIfIdle(t *subscriptionState) {
	if !t.reconciled || !t.idle() {
		return
	}
	if t.initial && !t.suspended { // everything that was sent was rejected
		t.awaitingResponse = true
		return
	}
	if t.pending != nil {
		s.commit(t)
	}
	t.haveScope = t.sub
	if t.routeConfig != "" {
		s.completeHosts(t.typ)
		return
	}
	t.typ.completed(s)
}

// completeHosts marks the type of virtual hosts as converged if no route configuration has
// anything left to do. It is called after every request: the last one that was waited for
// may be suspended, or its route configuration may be unsubscribed.
func (s *Server) completeHosts(t *typeState) {
	known := s.target == nil || t.status.converged == s.target.Number && t.status.nacked == 0
	if !known && t.requested && t.allIdle() {
		t.completed(s)
	}
}

// completed marks a type as converged to the target.
func (t *typeState) completed(s *Server) {
	if t.status.nacked != 0 && !t.hasRejections() {
		t.status.nacked, t.status.lastError = 0, ""
	}
	if t.status.converged != s.target.Number {
		t.status.converged = s.target.Number
		s.addEvent(Event{Kind: EventConverged, Type: t.url, Generation: s.target.Number})
	}
}

// commit moves what accepted responses say into have.
func (s *Server) commit(t *subscriptionState) {
	p := t.pending
	have := t.want
	// This uses states, so it comes before states are deleted: for a name without one,
	// have is right so far.
	if t.suspended {
		have = (*mergedSet)(nil).withPrivate(t.ackedResources())
	} else if t.removalsHeld {
		var extra []*Resource
		for _, r := range t.ackedResources() {
			if t.want.get(r.Name) == nil && p.states[r.Name] == nil {
				extra = append(extra, r)
			}
		}
		have = t.want.withPrivate(extra)
	}
	for name, e := range p.states {
		clean := e.lastSent == nil && !e.unknown && !e.forced && !e.candidate && !e.relayRejected
		if !t.sub.has(name) || clean && e.acked.version() == t.want.get(name).version() {
			delete(p.states, name)
		}
	}
	recount := p.recount || len(p.states) > 0
	t.have, t.haveScope = have, t.sub
	p.sent, p.nackedClusters, p.recount, p.forced = nil, nil, false, nil
	if len(p.states) == 0 {
		t.pending = nil
	}
	if recount {
		t.count = t.countAcked()
	}
	if t.typ.url == ClusterType { // no cluster waits for endpoints any more
		if e := s.typeOf(EndpointType); e != nil && e.pending != nil {
			for name, x := range e.pending.states {
				s.evaluate(&e.subscriptionState, name, x)
			}
		}
	}
}

// ackedResources are the resources that the peer is known to have, sorted by name.
func (t *subscriptionState) ackedResources() []*Resource {
	names := map[string]struct{}{}
	for r := range t.have.all() {
		names[r.Name] = struct{}{}
	}
	if t.pending != nil {
		for _, r := range t.pending.sent {
			for _, res := range r.resources {
				names[res.Name] = struct{}{}
			}
		}
		for name := range t.pending.states {
			names[name] = struct{}{}
		}
	}
	var out []*Resource
	for _, name := range sortedKeys(names) {
		if r := t.peekState(name).acked; r != nil && t.sub.has(name) {
			out = append(out, r)
		}
	}
	return out
}

// countAcked is how many resources the peer is known to have.
func (t *subscriptionState) countAcked() int {
	if t.pending == nil && t.have == nil {
		return 0
	}
	if t.pending == nil && t.haveScope.wildcard {
		return t.have.len()
	}
	return len(t.ackedResources())
}

// hasRejections reports whether something of the type is rejected or unknown.
func (t *typeState) hasRejections() bool {
	for k := range t.states() {
		if k.pending == nil {
			continue
		}
		for _, e := range k.pending.states {
			if e.rejectedVersion != "" || e.unknown {
				return true
			}
		}
	}
	return false
}
