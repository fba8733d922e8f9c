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

// Request is [Server.Take] for a message that was decoded as protocol buffers are.
func (s *Server) Request(now time.Time, req *discovery.DeltaDiscoveryRequest) error {
	return s.Take(now, requestOf(req))
}

// Take takes what the peer says; the versions that it lists belong to the Server
// from then on. An error means that the peer broke a limit or the protocol; the
// stream must end.
func (s *Server) Take(now time.Time, req *Request) error {
	url := TypeURL(req.GetTypeUrl())
	if err := s.check(req); err != nil {
		return fmt.Errorf("taking a request for %q: %w", url, err)
	}
	s.lookAll()
	t := s.typeOf(url)
	if t == nil {
		var err error
		if t, err = s.addType(url); err != nil {
			return err
		}
	}
	if req.GetResponseNonce() != "" {
		s.answer(now, t, req.DeltaDiscoveryRequest)
	}
	names, all := sortedNames(req.GetResourceNamesSubscribe())
	if len(req.GetResourceNamesUnsubscribe()) > 0 {
		s.unsubscribe(t, req.GetResourceNamesUnsubscribe())
	}
	if !t.opened {
		s.open(t, req, names, all || len(req.GetResourceNamesSubscribe()) == 0 && defaultsToAll(url))
	} else if all || len(names) > 0 {
		s.subscribe(t, names, all)
	}
	s.lookAll()
	for _, o := range s.order {
		for k := range o.tracks() {
			if k.w != nil {
				s.settle(k)
			}
		}
		if o.url == VirtualHostType {
			s.settleHosts(o)
		}
	}
	if len(t.listed) > 0 && (s.target != nil || len(s.order) > 1) { // else it is compared in a moment
		t.listed = owned(t.listed)
	}
	return nil
}

// errNoType is no limit: it cannot be told what such a request is about.
var errNoType = errors.New("it has no type URL")

// check judges a request by what it says of its type, and by its size.
func (s *Server) check(req *Request) error {
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
		return fmt.Errorf("%d names given up, at most %d: %w", n, s.cfg.MaxNames, ErrLimit)
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

// open takes the first request of a type.
func (s *Server) open(t *typeState, req *Request, names []string, all bool) {
	t.opened = true
	s.looked = nil
	if n := len(req.Versions); n > 0 {
		s.versions += n
		t.listed, t.reconnected = req.Versions, true
	}
	t.sub.wildcard = all
	if t.url == VirtualHostType {
		return // names do not matter: all come that belong to a route configuration
	}
	// Who waits for everything may be waiting to hear that there is nothing.
	t.owed = all
	s.setNames(t, s.cfg.Interner.intern(names))
}

// setNames replaces the names that are asked for.
func (s *Server) setNames(t *typeState, set *nameSet) {
	s.names += len(set.all()) - t.sub.len()
	t.sub.set = set
}

// defaultsToAll reports whether an empty first subscription asks for everything.
func defaultsToAll(t TypeURL) bool {
	return t == ClusterType || t == ListenerType || t == VirtualHostType
}

// subscribe takes names that are asked for later than in the first request: they
// are sent, whatever the peer has.
func (s *Server) subscribe(t *typeState, names []string, all bool) {
	if t.url == VirtualHostType {
		return
	}
	old := t.sub
	if all {
		t.sub.wildcard, t.owed = true, true
	}
	s.setNames(t, s.cfg.Interner.with(old.set, names))
	if !t.looked {
		return
	}
	if all && !old.wildcard {
		w := t.open()
		w.recount = true
		var more []*Resource
		for r := range t.seen.all() {
			if !old.has(r.Name) && w.diff[r.Name] == nil && t.will(r.Name) == nil {
				more = append(more, r)
			}
		}
		slices.SortFunc(more, byName) // layer by layer until now
		w.add, w.added = mergeLists(w.add, more), w.added+len(more)
	}
	get := t.seen.get
	if len(names) > 32 {
		at, _ := t.seen.lookUp()
		get = func(name string) *Resource { r, _ := at(name); return r }
	}
	var list []*Resource
	for _, name := range names {
		r, e := get(name), t.entry(name)
		if e == nil { // the text of the request is not to be kept
			name = ownName(name, r)
		}
		switch {
		case !old.has(name) && (e != nil || t.mentioned(name)):
			// What is known of it is from when it was asked for before.
			e = &entry{}
			t.put(name, e)
		case e == nil && r == nil:
			e = t.at(name)
		case e == nil:
			list = append(list, r)
			continue
		}
		e.forced = true
		s.evaluate(&t.track, name, e)
	}
	s.force(&t.track, list)
}

// ownName is a name with a text that does not belong to a request.
func ownName(name string, r *Resource) string {
	if r != nil {
		return r.Name
	}
	return strings.Clone(name)
}

// unsubscribe takes names that are given up.
func (s *Server) unsubscribe(t *typeState, list []string) {
	names, all := sortedNames(list)
	if t.url == VirtualHostType {
		return
	}
	same := t.scope == t.sub
	for _, name := range names {
		if t.sub.set.has(name) && !t.sub.wildcard && t.peek(name).acked != nil {
			t.count--
		}
	}
	if all {
		t.sub.wildcard = false
	}
	s.setNames(t, s.cfg.Interner.without(t.sub.set, names))
	if same {
		t.scope = t.sub
	} else {
		if all && t.scope.wildcard {
			t.scope = subscription{set: t.sub.set}
		}
		t.scope.set = s.cfg.Interner.without(t.scope.set, names)
	}
	if t.url == RouteType {
		given := make(map[string]bool, len(names))
		for _, name := range names {
			if !t.sub.has(name) {
				given[name] = true
			}
		}
		s.dropGroups(given)
	}
	if w := t.w; w != nil {
		gone := func(r *Resource) bool { return !t.sub.has(r.Name) }
		w.add = slices.DeleteFunc(slices.Clone(w.add), gone)
		w.due = slices.DeleteFunc(slices.Clone(w.due), gone)
		w.remove = slices.DeleteFunc(slices.Clone(w.remove), func(name string) bool { return !t.sub.has(name) })
		maps.DeleteFunc(w.diff, func(name string, _ *entry) bool { return !t.sub.has(name) })
		w.recount = true
	} else if all {
		t.count = t.exact()
	}
}

// answer takes an ACK or a NACK.
func (s *Server) answer(now time.Time, t *typeState, req *discovery.DeltaDiscoveryRequest) {
	k, r := t.find(req.GetResponseNonce())
	if r == nil {
		s.event(Event{Kind: EventStale, Type: t.url})
		return
	}
	t.answered = true
	if req.GetErrorDetail() != nil {
		s.nack(now, k, r, req.GetErrorDetail())
		return
	}
	s.accept(k, r, nil)
	t.status.acked, t.status.ackedAt = r.generation, now.UnixNano()
	s.event(Event{
		Kind: EventAccepted, Type: t.url, Generation: r.generation, Names: r.len(),
		Removal: len(r.gone) > 0, Took: now.Sub(r.at),
	})
}

// find gives the unanswered response with a nonce, and its track.
func (t *typeState) find(nonce string) (*track, *response) {
	for k := range t.tracks() {
		if k.w == nil {
			continue
		}
		for _, r := range k.w.sent {
			if !r.accepted && r.nonce == nonce {
				return k, r
			}
		}
	}
	return nil, nil
}
