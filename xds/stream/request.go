package stream

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Request is [Server.Take] for a message decoded by package proto.
func (s *Server) Request(now time.Time, req *discovery.DeltaDiscoveryRequest) error {
	return s.Take(now, newRequest(req))
}

// Take handles a request, of which it keeps nothing but copies. An error means that the
// peer exceeded a limit or broke the protocol; the stream must end.
func (s *Server) Take(now time.Time, req *Request) error {
	url := TypeURL(req.GetTypeUrl())
	if err := s.checkLimits(req); err != nil {
		return fmt.Errorf("taking a request for %q: %w", url, err)
	}
	s.reconcileAll()
	t := s.typeOf(url)
	if t == nil {
		var err error
		if t, err = s.addType(url); err != nil {
			return err
		}
	}
	if req.GetResponseNonce() != "" {
		s.handleAnswer(now, t, req.DeltaDiscoveryRequest)
	}
	names, all := sortedNames(req.GetResourceNamesSubscribe())
	if len(req.GetResourceNamesUnsubscribe()) > 0 {
		s.unsubscribe(t, req.GetResourceNamesUnsubscribe())
	}
	if !t.requested {
		s.firstRequest(t, req, names, all || len(req.GetResourceNamesSubscribe()) == 0 && defaultsToAll(url))
	} else if all || len(names) > 0 {
		s.subscribe(t, names, all)
	}
	s.reconcileAll()
	for _, o := range s.order {
		for k := range o.states() {
			if k.pending != nil {
				s.completeIfIdle(k)
			}
		}
		if o.url == VirtualHostType {
			s.completeHosts(o)
		}
	}
	if t.initialVersions = slices.Clone(t.initialVersions); len(t.initialVersions) == 0 { // else they are not compared yet
		t.indexed = nil
	}
	return nil
}

// errNoType is not an ErrLimit: such a request cannot be handled at all.
var errNoType = errors.New("it has no type URL")

// checkLimits checks the type URL of a request, and its size.
func (s *Server) checkLimits(req *Request) error {
	if req.GetTypeUrl() == "" {
		return errNoType
	}
	if len(req.GetTypeUrl()) > s.cfg.MaxNameBytes {
		return fmt.Errorf("a type URL of %d bytes: %w", len(req.GetTypeUrl()), ErrLimit)
	}
	if n := s.versions + len(req.Versions); n > s.cfg.MaxNames {
		return fmt.Errorf("%d versions, at most %d: %w", n, s.cfg.MaxNames, ErrLimit)
	}
	if n := s.names + len(req.GetResourceNamesSubscribe()); n > s.cfg.MaxNames {
		return fmt.Errorf("%d names, at most %d: %w", n, s.cfg.MaxNames, ErrLimit)
	}
	if n := len(req.GetResourceNamesUnsubscribe()); n > s.cfg.MaxNames {
		return fmt.Errorf("%d names to unsubscribe, at most %d: %w", n, s.cfg.MaxNames, ErrLimit)
	}
	for _, list := range [][]string{req.GetResourceNamesSubscribe(), req.GetResourceNamesUnsubscribe()} {
		for _, name := range list {
			if len(name) > s.cfg.MaxNameBytes {
				return fmt.Errorf("a name of %d bytes: %w", len(name), ErrLimit)
			}
		}
	}
	for _, v := range req.Versions {
		if len(v.Name) > s.cfg.MaxNameBytes || len(v.Version) > s.cfg.MaxNameBytes {
			return fmt.Errorf("a name of %d and a version of %d bytes: %w", len(v.Name), len(v.Version), ErrLimit)
		}
	}
	return nil
}

// firstRequest handles the first request of a type.
func (s *Server) firstRequest(t *typeState, req *Request, names []string, all bool) {
	t.requested = true
	s.reconciled = nil
	if n := len(req.Versions); n > 0 {
		s.versions += n
		t.initialVersions, t.indexed, t.reconnected = req.Versions, req.known, true
	}
	t.sub.wildcard = all
	if t.url == VirtualHostType {
		return // names do not matter: all virtual hosts of a route configuration are sent
	}
	// A wildcard subscriber waits for a response even if there is nothing.
	t.awaitingResponse = all
	s.setNames(t, s.cfg.Interner.intern(names))
}

// setNames replaces the names of a subscription.
func (s *Server) setNames(t *typeState, set *nameSet) {
	s.names += len(set.all()) - t.sub.len()
	t.sub.set = set
}

// defaultsToAll reports whether an empty first request is a wildcard subscription.
func defaultsToAll(t TypeURL) bool {
	return t == ClusterType || t == ListenerType || t == VirtualHostType
}

// subscribe handles subscriptions after the first request: the names are sent, whatever
// the peer has.
func (s *Server) subscribe(t *typeState, names []string, all bool) {
	if t.url == VirtualHostType {
		return
	}
	old := t.sub
	if all {
		t.sub.wildcard, t.awaitingResponse = true, true
	}
	s.setNames(t, s.cfg.Interner.with(old.set, names))
	if !t.reconciled {
		return
	}
	if all && !old.wildcard {
		p := t.ensurePending()
		p.recount = true
		var more []*Resource
		for r := range t.want.all() {
			if !old.has(r.Name) && p.states[r.Name] == nil && t.expected(r.Name) == nil {
				more = append(more, r)
			}
		}
		slices.SortFunc(more, byName) // so far sorted within each layer
		p.add, p.newCount = mergeLists(p.add, more), p.newCount+len(more)
	}
	get := t.want.get
	if len(names) > 32 {
		at, _ := t.want.lookUp()
		get = func(name string) *Resource { r, _ := at(name); return r }
	}
	var list []*Resource
	for _, name := range names {
		r, e := get(name), t.stateOf(name)
		if e == nil { // do not keep the text of the request
			name = cloneName(name, r)
		}
		switch {
		case !old.has(name) && (e != nil || t.inSent(name)):
			// What is known of it is from an earlier subscription.
			e = &resourceState{}
			t.putState(name, e)
		case e == nil && r == nil:
			e = t.ensureState(name)
		case e == nil:
			list = append(list, r)
			continue
		}
		e.forced = true
		s.evaluate(&t.subscriptionState, name, e)
	}
	s.force(&t.subscriptionState, list)
}

// cloneName is a name that is not a substring of a request.
func cloneName(name string, r *Resource) string {
	if r != nil {
		return r.Name
	}
	return strings.Clone(name)
}

// unsubscribe handles names from which the peer unsubscribes.
func (s *Server) unsubscribe(t *typeState, list []string) {
	names, all := sortedNames(list)
	if t.url == VirtualHostType {
		return
	}
	same := t.haveScope == t.sub
	for _, name := range names {
		if t.sub.set.has(name) && !t.sub.wildcard && t.peekState(name).acked != nil {
			t.count--
		}
	}
	if all {
		t.sub.wildcard = false
	}
	s.setNames(t, s.cfg.Interner.without(t.sub.set, names))
	if same {
		t.haveScope = t.sub
	} else {
		if all && t.haveScope.wildcard {
			t.haveScope = subscription{set: t.sub.set}
		}
		t.haveScope.set = s.cfg.Interner.without(t.haveScope.set, names)
	}
	if t.removalsHeld && keptUntilUnsubscribed(t.url) { // what is left is perhaps what all peers have
		t.compareAll, s.reconciled = true, nil
	}
	if t.url == RouteType {
		unsubscribed := make(map[string]bool, len(names))
		for _, name := range names {
			if !t.sub.has(name) {
				unsubscribed[name] = true
			}
		}
		s.forgetHosts(unsubscribed)
	}
	if p := t.pending; p != nil {
		gone := func(r *Resource) bool { return !t.sub.has(r.Name) }
		p.add = slices.DeleteFunc(slices.Clone(p.add), gone)
		p.forced = slices.DeleteFunc(slices.Clone(p.forced), gone)
		p.remove = slices.DeleteFunc(slices.Clone(p.remove), func(name string) bool { return !t.sub.has(name) })
		maps.DeleteFunc(p.states, func(name string, _ *resourceState) bool { return !t.sub.has(name) })
		p.recount = true
	} else if all {
		t.count = t.countAcked()
	}
}

// handleAnswer handles an ACK or a NACK.
func (s *Server) handleAnswer(now time.Time, t *typeState, req *discovery.DeltaDiscoveryRequest) {
	k, r := t.findSent(req.GetResponseNonce())
	if r == nil {
		s.addEvent(Event{Kind: EventStale, Type: t.url})
		return
	}
	t.answered = true
	if req.GetErrorDetail() != nil {
		s.handleNack(now, k, r, req.GetErrorDetail())
		return
	}
	s.accept(k, r, nil)
	t.status.acked, t.status.ackedAt = r.generation, now.UnixNano()
	s.addEvent(Event{
		Kind: EventAccepted, Type: t.url, Generation: r.generation, Names: r.len(),
		Removal: len(r.removed) > 0, Took: now.Sub(r.at),
	})
}

// findSent finds the unanswered response with a nonce, and its subscription.
func (t *typeState) findSent(nonce string) (*subscriptionState, *sentResponse) {
	for k := range t.states() {
		if k.pending == nil {
			continue
		}
		for _, r := range k.pending.sent {
			if !r.accepted && r.nonce == nonce {
				return k, r
			}
		}
	}
	return nil, nil
}
