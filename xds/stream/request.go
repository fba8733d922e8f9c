package stream

import (
	"fmt"
	"slices"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Request takes what the peer says. An error means that the peer broke a limit
// or the protocol; the stream must end.
func (s *Server) Request(now time.Time, req *discovery.DeltaDiscoveryRequest) error {
	url := TypeURL(req.GetTypeUrl())
	if err := s.check(req); err != nil {
		return fmt.Errorf("taking a request for %q: %w", url, err)
	}
	t, first := s.types[url], false
	if t == nil {
		var err error
		if t, err = s.addType(url); err != nil {
			return err
		}
		first = true
	}
	if req.GetResponseNonce() != "" {
		s.answer(now, t, req)
	}
	if first {
		s.open(t, req)
	}
	s.subscribe(t, req, first)
	s.settle(t)
	return nil
}

// check judges a request by its size alone.
func (s *Server) check(req *discovery.DeltaDiscoveryRequest) error {
	if req.GetTypeUrl() == "" {
		return fmt.Errorf("no type URL: %w", ErrLimit)
	}
	if len(req.GetTypeUrl()) > s.cfg.MaxNameBytes {
		return fmt.Errorf("a type URL of %d bytes: %w", len(req.GetTypeUrl()), ErrLimit)
	}
	if n := len(req.GetInitialResourceVersions()); n > s.cfg.MaxNames {
		return fmt.Errorf("%d versions, at most %d: %w", n, s.cfg.MaxNames, ErrLimit)
	}
	if n := s.names + len(req.GetResourceNamesSubscribe()); n > s.cfg.MaxNames {
		return fmt.Errorf("%d names, at most %d: %w", n, s.cfg.MaxNames, ErrLimit)
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		if len(name) > s.cfg.MaxNameBytes {
			return fmt.Errorf("a name of %d bytes: %w", len(name), ErrLimit)
		}
	}
	for name, version := range req.GetInitialResourceVersions() {
		if len(name) > s.cfg.MaxNameBytes || len(version) > s.cfg.MaxNameBytes {
			return fmt.Errorf("a name of %d and a version of %d bytes: %w", len(name), len(version), ErrLimit)
		}
	}
	return nil
}

// open takes the first request of a type.
func (s *Server) open(t *typeState, req *discovery.DeltaDiscoveryRequest) {
	names := req.GetResourceNamesSubscribe()
	t.sub.wildcard = slices.Contains(names, wildcardName) || len(names) == 0 && defaultsToAll(t.url)
	// Who waits for everything may be waiting to hear that there is nothing.
	t.owed = t.sub.wildcard
	for name, version := range req.GetInitialResourceVersions() {
		if version == "" {
			continue
		}
		e := t.at(name)
		e.listed = true
		e.acked = &Resource{Name: name, Version: version}
		t.reconnected = true
	}
	for _, name := range s.cfg.Distrust[t.url] {
		t.at(name).unknown = true // listed or not: it may have been applied all the same
	}
	if s.target == nil {
		return
	}
	if t.sub.wildcard {
		for r := range s.target.All(t.url) {
			s.evaluate(t, r.Name)
		}
		for name := range t.diff {
			s.evaluate(t, name)
		}
	}
}

// defaultsToAll reports whether an empty first subscription asks for everything.
func defaultsToAll(t TypeURL) bool {
	return t == ClusterType || t == ListenerType || t == VirtualHostType
}

// subscribe takes the names that a request asks for, and those it gives up.
func (s *Server) subscribe(t *typeState, req *discovery.DeltaDiscoveryRequest, first bool) {
	for _, name := range req.GetResourceNamesUnsubscribe() {
		s.unsubscribe(t, name)
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		if name == wildcardName {
			s.subscribeAll(t, first)
			continue
		}
		var e *entry
		if t.sub.has(name) {
			e = t.at(name)
		} else {
			// What base says of it is not this peer's: it did not ask then.
			if e = t.diff[name]; e == nil || !first {
				e = &entry{}
			}
			if t.diff == nil {
				t.diff = map[string]*entry{}
			}
			t.diff[name] = e
		}
		if !t.sub.named(name) {
			s.names++
			t.sub.add(name)
		}
		// A name asked for is sent, unless the peer has just said what it has.
		if _, has := req.GetInitialResourceVersions()[name]; !first || !has {
			e.forced = true
		}
		s.evaluate(t, name)
	}
	t.status.Names = t.sub.len()
	t.status.Wildcard = t.sub.wildcard
}

func (s *Server) subscribeAll(t *typeState, first bool) {
	if first {
		return
	}
	if !t.sub.wildcard {
		// What base has beyond the names was not this peer's.
		for name := range t.sub.all() {
			t.at(name)
		}
		t.base = nil
		t.sub.wildcard = true
	}
	t.owed = true
	if s.target != nil {
		s.retarget(t)
	}
}

func (s *Server) unsubscribe(t *typeState, name string) {
	if name == wildcardName {
		t.sub.wildcard = false
		for name := range t.diff {
			s.drop(t, name)
		}
		return
	}
	if t.sub.named(name) {
		s.names--
		t.sub.remove(name)
	}
	s.drop(t, name)
}

// drop forgets a name that the peer no longer asks for.
func (s *Server) drop(t *typeState, name string) {
	if t.sub.has(name) {
		return
	}
	delete(t.diff, name)
	delete(t.adds, name)
	delete(t.removes, name)
}

// answer takes an ACK or a NACK.
func (s *Server) answer(now time.Time, t *typeState, req *discovery.DeltaDiscoveryRequest) {
	i := slices.IndexFunc(t.inflight, func(r *response) bool { return r.nonce == req.GetResponseNonce() })
	if i < 0 {
		s.event(Event{Kind: EventStale, Type: t.url})
		return
	}
	r := t.inflight[i]
	t.inflight = slices.Delete(t.inflight, i, i+1)
	t.answered = true
	if req.GetErrorDetail() != nil {
		s.nack(now, t, r, req.GetErrorDetail())
		return
	}
	s.accept(t, r, sortedKeys(r.sent))
	t.status.AckedGeneration = r.generation
	t.status.AckedAt = now
	s.event(Event{Kind: EventAccepted, Type: t.url, Generation: r.generation, Names: len(r.sent), Removal: r.removal, Took: now.Sub(r.at)})
}

// accept notes that the peer has what a response said of these names.
func (s *Server) accept(t *typeState, r *response, names []string) {
	for _, name := range names {
		e := t.diff[name]
		if e == nil || !t.sub.has(name) {
			continue
		}
		e.acked = r.sent[name]
		e.listed = e.listed || !r.removal
		if e.last == r {
			e.last, e.unknown, e.suspect = nil, false, false
		}
		if e.refused != "" && !r.removal && s.target.Get(t.url, name).version() == e.acked.version() {
			e.refused, e.reason = "", ""
		}
		s.evaluate(t, name)
	}
}

// troubled reports whether something of the type is refused or unknown.
func (t *typeState) troubled() bool {
	for _, e := range t.diff {
		if e.refused != "" || e.unknown {
			return true
		}
	}
	return false
}
