package stream

import "iter"

// reconcileAll reconciles every subscription with the target. It is called only when the
// peer can be sent something again: generations that came meanwhile are skipped.
func (s *Server) reconcileAll() {
	if s.target == nil || s.reconciled == s.target {
		return
	}
	s.reconciled = s.target // reset below where another pass is needed
	for _, t := range s.order {
		if t.url == VirtualHostType {
			s.adoptInitialHosts(t)
			for _, g := range t.sortedHosts() {
				s.reconcile(g)
				s.completeIfIdle(g)
			}
			s.completeHosts(t)
			continue
		}
		s.reconcile(&t.subscriptionState)
		s.completeIfIdle(&t.subscriptionState)
	}
}

// reconcile compares one subscription with the target.
func (s *Server) reconcile(t *subscriptionState) {
	if !t.typ.requested {
		return
	}
	want, hold := s.wanted(t.typ.url), s.target.HoldRemovals
	if t.routeConfig != "" {
		if !s.hostsWanted(t) {
			t.suspend()
			t.awaitingResponse = s.awaitsFirstHost(t)
			return
		}
		t.suspended = false
		want = s.target.hosts(t.routeConfig)
	}
	switch {
	case !t.reconciled:
		s.applyInitialVersions(t, want)
		s.computePending(t, want, hold)
		t.forceNewEndpoints()
	case t.resendAll || t.compareAll || t.holdRemovals != hold || !t.want.sameSets(want):
		s.computePending(t, want, hold)
	case t.pending == nil && t.have == t.want:
		t.want, t.have = want, want // the same sets, with the deltas that other streams computed
	default:
		t.want = want
	}
}

// computePending finds what is to be sent.
func (s *Server) computePending(t *subscriptionState, want *mergedSet, hold bool) {
	if t.pending != nil || t.resendAll || t.compareAll {
		s.recomputePending(t, want, hold)
		return
	}
	s.computePendingFromIdle(t, want, hold)
}

// computePendingFromIdle is computePending for a subscription with nothing pending.
func (*Server) computePendingFromIdle(t *subscriptionState, want *mergedSet, hold bool) {
	d := want.deltaFrom(t.have, t.sub)
	t.want, t.holdRemovals = want, hold
	keep := t.keepsRemoved()
	t.removalsHeld = keep && len(d.remove) > 0
	switch {
	case len(d.add) == 0 && len(d.remove) == 0:
		t.have = want
	case len(d.add) == 0 && keep:
		t.have = want.withPrivate(t.have.getAll(d.remove))
	default:
		p := t.ensurePending()
		p.add, p.newCount = d.add, d.newCount
		if !keep {
			p.remove = d.remove
		}
	}
}

// getAll returns resources by name.
func (m *mergedSet) getAll(names []string) []*Resource {
	var out []*Resource
	for _, name := range names {
		if r := m.get(name); r != nil {
			out = append(out, r)
		}
	}
	return out
}

// recomputePending is computePending for a subscription with something pending.
func (s *Server) recomputePending(t *subscriptionState, want *mergedSet, hold bool) {
	p := t.ensurePending()
	resend := t.resendAll
	t.awaitingResponse, t.initial = t.awaitingResponse || resend, t.initial || resend
	if t.have == nil && p.empty() { // the usual start of virtual hosts
		t.resendAll, t.compareAll = false, false
		if s.computePendingFromIdle(t, want, hold); resend {
			p.forced = p.add
		}
		return
	}
	names := t.namesToCheck(want, hold)
	wasForced := p.forced
	t.want, t.holdRemovals = want, hold
	t.removalsHeld = t.removalsHeld && t.keepsRemoved() && !t.compareAll // all of them are checked again
	t.resendAll, t.compareAll = false, false
	p.add, p.forced, p.remove, p.newCount = nil, nil, nil, 0
	// Nothing of the initial virtual hosts has been accepted yet, including those that
	// were not wanted at the last reconcile.
	resend = resend || t.routeConfig != "" && t.initial && !p.waiting()
	for name, e := range p.states {
		if resend && want.get(name) != nil {
			e.forced = true
		}
		if e.secondTry && e.rejectedVersion != "" {
			// The NACK may have been the fault of another resource.
			e.rejectedVersion, e.rejectedReason, e.secondTry = "", "", false
		}
		s.evaluate(t, name, e)
	}
	for _, name := range sortedKeys(names) {
		if p.states[name] != nil {
			continue
		}
		_, forced := find(wasForced, name)
		s.schedule(t, name, forced || resend)
	}
}

// empty reports whether nothing is pending or in flight, and no name differs.
func (p *pending) empty() bool {
	return len(p.add)+len(p.forced)+len(p.remove)+len(p.sent)+len(p.states)+len(p.retries) == 0
}

// namesToCheck are the names that may have to be sent or removed.
func (t *subscriptionState) namesToCheck(want *mergedSet, hold bool) map[string]struct{} {
	names := map[string]struct{}{}
	add := func(list []*Resource) {
		for _, r := range list {
			if t.sub.has(r.Name) {
				names[r.Name] = struct{}{}
			}
		}
	}
	d := want.deltaFrom(t.want, t.sub)
	if t.resendAll || t.compareAll || t.holdRemovals && !hold {
		d = want.deltaFrom(nil, t.sub)
		add(t.ackedResources())
		for _, r := range t.pending.sent { // what is in flight will be there, too
			add(r.resources)
		}
	}
	add(d.add)
	for _, name := range d.remove {
		names[name] = struct{}{}
	}
	add(t.pending.add)
	add(t.pending.forced)
	for _, name := range t.pending.remove {
		names[name] = struct{}{}
	}
	return names
}

// schedule adds a name without a resourceState to the additions or removals. Names must
// come in order.
func (s *Server) schedule(t *subscriptionState, name string, forced bool) {
	p := t.pending
	res, expected := t.want.get(name), t.expected(name)
	switch {
	case res == nil && forced && (t.typ.url != VirtualHostType):
		e := t.ensureState(name)
		e.forced = true
		s.evaluate(t, name, e)
	case res == nil && expected != nil && t.keepsRemoved():
		t.removalsHeld = true
	case res == nil && expected != nil:
		p.remove = append(p.remove, name)
	case res != nil && (forced || expected.version() != res.Version):
		p.add = append(p.add, res)
		if forced {
			p.forced = append(p.forced, res)
		}
		if expected == nil {
			p.newCount++
		}
	}
}

// applyInitialVersions compares what the peer listed with the first target.
func (s *Server) applyInitialVersions(t *subscriptionState, want *mergedSet) {
	t.reconciled, t.haveScope = true, t.sub
	listed := t.typ.takeInitialVersions(t.routeConfig)
	has := compareInitialVersions(want, t.sub, listed, t.typ.indexed)
	switch {
	case has.exact:
		t.have = want
	case len(has.have) > 0:
		t.have = (*mergedSet)(nil).withPrivate(has.have)
	}
	t.count = has.count
	allExist := t.sub.len() == 0 || !t.sub.wildcard && len(want.deltaFrom(nil, t.sub).add) == t.sub.len()
	if t.routeConfig == "" && !allExist {
		s.forceMissing(t, want, listed)
	}
	t.want = want
	s.forceLateDependents(t)
	for _, name := range s.cfg.Unacknowledged[t.typ.url] {
		if t.routeConfig != "" {
			if routeConfig, _, ok := splitHostName(name); !ok || routeConfig != t.routeConfig {
				continue
			}
		}
		e := t.ensureState(name) // listed or not: it may have been applied
		e.unknown = true
	}
	if t.pending != nil {
		t.want = t.have // computePending compares with it
	}
}

// forceMissing forces a response for subscribed names that neither exist nor are listed:
// the peer may be waiting for the answer that they do not exist.
func (*Server) forceMissing(t *subscriptionState, want *mergedSet, listed []Version) {
	has := make(map[string]bool, len(listed))
	for _, v := range listed {
		has[v.Name] = true
	}
	for _, name := range t.sub.set.all() {
		if !has[name] && want.get(name) == nil {
			t.ensureState(name).forced = true
		}
	}
}

// forceNewEndpoints marks the endpoints that must not wait for clusters: those of which
// the peer has none.
func (t *subscriptionState) forceNewEndpoints() {
	p := t.pending
	switch {
	case p == nil || t.typ.url != EndpointType:
	case t.have == nil:
		p.forced = p.add
	default:
		var fresh []*Resource
		for _, r := range p.add {
			if t.have.get(r.Name) == nil {
				fresh = append(fresh, r)
			}
		}
		p.forced = mergeLists(p.forced, fresh)
	}
}

// lookUp returns a function like get for many names. It also gives each resource an index
// from 0 on; size is their number.
func (m *mergedSet) lookUp() (at func(name string) (r *Resource, index int), size int) {
	if m == nil {
		return func(string) (*Resource, int) { return nil, 0 }, 0
	}
	indexes := make([]map[string]int32, len(m.sets))
	for i, s := range m.sets {
		indexes[i] = s.lookUp()
		size += len(s.list)
	}
	return func(name string) (*Resource, int) {
		before := 0
		for i, s := range m.sets {
			if at, ok := indexes[i][name]; ok {
				return s.list[at], before + int(at)
			}
			before += len(s.list)
		}
		return nil, 0
	}, size
}

// at returns the resource with an index of lookUp; nil if there is none.
func (m *mergedSet) at(index int) *Resource {
	if m == nil || index < 0 {
		return nil
	}
	for _, s := range m.sets {
		if index < len(s.list) {
			return s.list[index]
		}
		index -= len(s.list)
	}
	return nil
}

// numbered yields all resources with the indexes of lookUp.
func (m *mergedSet) numbered() iter.Seq2[*Resource, int] {
	return func(yield func(*Resource, int) bool) {
		if m == nil {
			return
		}
		index := 0
		for _, s := range m.sets {
			for _, r := range s.list {
				if !yield(r, index) {
					return
				}
				index++
			}
		}
	}
}

// force schedules resources, sorted by name, even if the peer has them.
func (s *Server) force(t *subscriptionState, list []*Resource) {
	if len(list) == 0 {
		return
	}
	p := t.ensurePending()
	if len(p.states) > 0 {
		var others []*Resource
		for _, r := range list {
			if e := p.states[r.Name]; e != nil {
				e.forced = true
				s.evaluate(t, r.Name, e)
			} else {
				others = append(others, r)
			}
		}
		list = others
	}
	for _, r := range list {
		if _, there := find(p.add, r.Name); !there && t.expected(r.Name) == nil {
			p.newCount++
		}
	}
	p.forced = mergeLists(list, p.forced)
	p.add = mergeLists(list, p.add)
}
