package stream

import "time"

// removalOrder is the order in which what is gone is removed: what refers before
// what is referred to. Types without an order come after these.
//
//nolint:gochecknoglobals // a read-only table
var removalOrder = [...]TypeURL{ListenerType, VirtualHostType, RouteType, ClusterType, EndpointType}

// wait is how long something has been waiting for an answer to something else.
type wait struct{ since time.Time }

func (w *wait) clear() { w.since = time.Time{} }

// held reports whether t has to wait on: it does until the gate's time is over.
func (s *Server) held(now time.Time, t *typeState, w *wait) bool {
	if w.since.IsZero() {
		w.since = now
	}
	if now.Sub(w.since) < s.cfg.GateTimeout {
		return true
	}
	s.event(Event{Kind: EventGateTimeout, Type: t.url, Generation: s.target.Number})
	return false
}

// NextDeadline is when Next may have something to send although nothing came
// in; zero if never.
func (s *Server) NextDeadline() time.Time {
	var first time.Time
	for _, t := range s.order {
		for _, w := range [...]wait{t.addWait, t.removeWait} {
			if w.since.IsZero() {
				continue
			}
			if d := w.since.Add(s.cfg.GateTimeout); first.IsZero() || d.Before(first) {
				first = d
			}
		}
	}
	return first
}

// nextAdd gives the next response that adds or updates, or nil.
func (s *Server) nextAdd(now time.Time, t *typeState) *Response {
	if len(t.suspects) > 0 {
		return s.nextSuspects(now, t)
	}
	if len(t.adds) == 0 && !t.owed {
		t.addWait.clear()
		return nil
	}
	blocked := s.busy(t) || s.addsBefore(t)
	var names []string
	for _, name := range sortedKeys(t.adds) {
		if t.url != EndpointType || !s.clusterComes(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 && !t.owed {
		blocked, names = true, sortedKeys(t.adds)
	}
	if blocked && s.held(now, t, &t.addWait) {
		return nil
	}
	t.addWait.clear()
	r := &response{sent: map[string]*Resource{}, retry: true}
	size := 0
	for _, name := range names {
		e := t.at(name)
		res, do := s.desired(t, name, e)
		if do != opAdd {
			delete(t.adds, name)
			continue
		}
		if size += len(res.Body) + len(name); size > s.cfg.MaxResponse && len(r.sent) > 0 {
			break
		}
		r.sent[name] = res
		r.retry = r.retry && e.unknown
	}
	if len(r.sent) == 0 {
		if !t.owed {
			return nil
		}
		r.retry = false
	}
	return s.send(now, t, r)
}

// clusterComes reports whether an update of the cluster waits to be sent: its
// endpoints go behind it. Those that a cluster already sent waits for do not.
func (s *Server) clusterComes(name string) bool {
	c := s.types[ClusterType]
	if c == nil {
		return false
	}
	if _, due := s.behind[EndpointType][name]; due {
		return false
	}
	_, ok := c.adds[name]
	return ok
}

// busy reports whether a type must wait for the answer to its own last response.
// Endpoints need not: they change often, and clusters are waiting for them.
func (s *Server) busy(t *typeState) bool {
	if t.url != EndpointType {
		return len(t.inflight) > 0
	}
	for _, r := range t.inflight {
		if r.retry && !r.removal {
			return true
		}
	}
	return len(t.inflight) >= maxInflight
}

// addsBefore reports whether something that t refers to has still to arrive.
func (s *Server) addsBefore(t *typeState) bool {
	switch t.url {
	case ListenerType:
		return s.arriving(ClusterType)
	case RouteType, VirtualHostType:
		return s.arriving(ClusterType) || s.arriving(ListenerType)
	default:
		return false
	}
}

// arriving reports whether something of a type has to be sent or answered yet.
// What follows a refusal does not count: a NACK opens the gate.
func (s *Server) arriving(url TypeURL) bool {
	t := s.types[url]
	if t == nil {
		return false
	}
	if len(t.adds) > 0 || t.owed {
		return true
	}
	for _, r := range t.inflight {
		if !r.removal && !r.retry {
			return true
		}
	}
	return false
}

// leaving reports whether a removal of a type has to be sent or answered yet.
func (s *Server) leaving(url TypeURL) bool {
	t := s.types[url]
	if t == nil {
		return false
	}
	if len(t.removes) > 0 {
		return true
	}
	for _, r := range t.inflight {
		if r.removal {
			return true
		}
	}
	return false
}

// nextRemove gives the next response that removes, or nil.
func (s *Server) nextRemove(now time.Time, t *typeState) *Response {
	if len(t.removes) == 0 {
		t.removeWait.clear()
		return nil
	}
	r := &response{sent: map[string]*Resource{}, removal: true}
	for name := range t.removes {
		// Whoever asks for what does not exist may be waiting to hear so.
		if e := t.at(name); e.acked == nil && e.last == nil && !e.unknown {
			r.sent[name] = nil
		}
	}
	if len(r.sent) > 0 {
		r.retry = true
		return s.send(now, t, r)
	}
	if (len(t.inflight) > 0 || s.removesBefore(t)) && s.held(now, t, &t.removeWait) {
		return nil
	}
	t.removeWait.clear()
	for name := range t.removes {
		r.sent[name] = nil
	}
	return s.send(now, t, r)
}

func (s *Server) removesBefore(t *typeState) bool {
	for _, o := range s.order {
		if s.arriving(o.url) {
			return true
		}
	}
	for _, url := range removalOrder {
		if url == t.url {
			return false
		}
		if s.leaving(url) {
			return true
		}
	}
	return false
}
