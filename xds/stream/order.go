package stream

import (
	"slices"
	"time"
)

// removalOrder is the order in which what is gone is removed: what refers before
// what is referred to. Types without an order come after these. Virtual hosts
// go in the response that changes others of their table: a name may have moved
// from one to the other.
//
//nolint:gochecknoglobals // a read-only table
var removalOrder = [...]TypeURL{ListenerType, RouteType, ClusterType, EndpointType}

// wait is how long something has been waiting for an answer to something else.
type wait struct{ since time.Time }

func (w *wait) clear() { w.since = time.Time{} }

// held reports whether t has to wait on: it does until the gate's time is over.
func (s *Server) held(now time.Time, t *track, w *wait) bool {
	if w.since.IsZero() {
		w.since = now
	}
	if now.Sub(w.since) < s.cfg.GateTimeout {
		return true
	}
	s.event(Event{Kind: EventGateTimeout, Type: t.typ.url, Generation: s.target.Number})
	return false
}

// NextDeadline is when Next may have something to send although nothing came
// in; zero if never.
func (s *Server) NextDeadline() time.Time {
	var first time.Time
	for _, t := range s.order {
		for k := range t.tracks() {
			if k.w == nil {
				continue
			}
			for _, w := range [...]wait{k.w.addWait, k.w.removeWait} {
				if w.since.IsZero() {
					continue
				}
				if d := w.since.Add(s.cfg.GateTimeout); first.IsZero() || d.Before(first) {
					first = d
				}
			}
		}
	}
	return first
}

// nextAdd gives the next response that adds or updates, or nil.
func (s *Server) nextAdd(now time.Time, t *track) *Response {
	if !t.looked || t.asleep {
		return nil
	}
	if t.w != nil && len(t.w.suspects) > 0 {
		return s.nextSuspects(now, t)
	}
	if !t.adding() {
		if t.w != nil {
			t.w.addWait.clear()
		}
		return nil
	}
	w := t.open()
	ready := s.ready(t)
	blocked := s.busy(t) || s.addsBefore(t)
	if ready != nil && !t.owed && !s.anyReady(t, ready) {
		blocked, ready = true, nil
	}
	if blocked && s.held(now, t, &w.addWait) {
		return nil
	}
	w.addWait.clear()
	r := &response{}
	var stay []*Resource
	r.list, stay, r.retry = s.choose(t, ready)
	w.added = max(0, w.added-len(r.list))
	if w.add = stay; len(stay) == 0 {
		w.add = nil
	}
	if t.table != "" {
		r.gone, w.remove = s.goners(t), nil
		if r.len() == 0 && t.owed {
			r.gone = []string{t.none()}
		}
	}
	if r.len() == 0 {
		if !t.owed {
			s.settle(t)
			return nil
		}
		r.retry = false
	}
	return s.send(now, t, r)
}

// choose takes what fits into a response from what is to be added, and leaves
// what does not, or is not ready; only names without an entry are left there.
func (s *Server) choose(t *track, ready func(string) bool) (list, stay []*Resource, retry bool) {
	w := t.w
	limit := s.cfg.MaxResponse
	if t.table != "" {
		limit = 1 << 62 // a name may move from one virtual host to another
	}
	if ready == nil && len(w.diff) == 0 {
		size := 0
		for i, r := range w.add {
			if size += len(r.Body) + len(r.Name); size > limit && i > 0 {
				return w.add[:i:i], w.add[i:], false
			}
		}
		return w.add, nil, len(w.add) == 0
	}
	size, full := 0, false
	fits := func(r *Resource) bool {
		n := len(r.Body) + len(r.Name)
		full = full || size+n > limit && len(list) > 0
		if !full {
			size += n
			list = append(list, r)
		}
		return !full
	}
	for _, r := range w.add {
		if w.diff[r.Name] != nil || !t.sub.has(r.Name) {
			continue
		}
		if ready != nil && !ready(r.Name) || !fits(r) {
			stay = append(stay, r)
		}
	}
	retry = len(list) == 0
	for _, name := range sortedKeys(w.diff) {
		e := w.diff[name]
		if e.todo != opAdd || ready != nil && !ready(name) {
			continue
		}
		var res *Resource
		if res, e.todo = s.desired(t, name, e); e.todo == opAdd && fits(res) {
			retry = retry && e.unknown
		}
	}
	slices.SortFunc(list, byName)
	return list, stay, retry
}

// ready says which endpoints may be sent while updates of clusters are to be
// sent: those of the others. Nil if all may.
func (s *Server) ready(t *track) func(name string) bool {
	if t.typ.url != EndpointType {
		return nil
	}
	c := s.typeOf(ClusterType)
	if c == nil || !c.adding() {
		return nil
	}
	return func(name string) bool { return !s.clusterComes(c, t, name) }
}

// clusterComes reports whether an update of the cluster waits to be sent: its
// endpoints go behind it. Those that a cluster already sent waits for do not.
func (*Server) clusterComes(c *typeState, t *track, name string) bool {
	if e := t.entry(name); e != nil && e.forced {
		return false
	}
	if _, due := find(t.w.due, name); due {
		return false
	}
	if c.w == nil {
		return false
	}
	if e := c.w.diff[name]; e != nil {
		return e.todo == opAdd
	}
	_, comes := find(c.w.add, name)
	return comes
}

func (s *Server) anyReady(t *track, ready func(string) bool) bool {
	for _, r := range t.w.add {
		if t.w.diff[r.Name] == nil && ready(r.Name) {
			return true
		}
	}
	for name, e := range t.w.diff {
		if e.todo == opAdd && ready(name) {
			return true
		}
	}
	return false
}

// busy reports whether a track must wait for the answer to its own last response.
// Endpoints need not: they change often, and clusters are waiting for them.
func (s *Server) busy(t *track) bool {
	if t.w == nil {
		return false
	}
	if t.typ.url != EndpointType {
		return t.w.waiting()
	}
	for _, r := range t.w.sent {
		if !r.accepted && r.retry && len(r.gone) == 0 {
			return true
		}
	}
	return t.w.unanswered() >= maxInflight
}

// addsBefore reports whether something that t refers to has still to arrive.
func (s *Server) addsBefore(t *track) bool {
	switch t.typ.url {
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
	t := s.typeOf(url)
	if t == nil || !t.opened {
		return false
	}
	for k := range t.tracks() {
		if k.adding() {
			return true
		}
		if k.w != nil && slices.ContainsFunc(k.w.sent, func(r *response) bool {
			return !r.accepted && !r.retry && (len(r.list) > 0 || len(r.gone) == 0 || k.table != "")
		}) {
			return true
		}
	}
	return false
}

// leaving reports whether a removal of a type has to be sent or answered yet.
func (s *Server) leaving(url TypeURL) bool {
	t := s.typeOf(url)
	if t == nil {
		return false
	}
	if t.removing() {
		return true
	}
	return t.w != nil && slices.ContainsFunc(t.w.sent, func(r *response) bool { return !r.accepted && len(r.gone) > 0 })
}

// nextRemove gives the next response that removes, or nil.
func (s *Server) nextRemove(now time.Time, t *track) *Response {
	if !t.removing() {
		if t.w != nil {
			t.w.removeWait.clear()
		}
		return nil
	}
	w := t.w
	var vain []string // whoever asks for what does not exist may be waiting to hear so
	for name, e := range w.diff {
		if e.todo == opRemove && e.acked == nil && e.last == nil && !e.unknown {
			vain = append(vain, name)
		}
	}
	if len(vain) > 0 {
		slices.Sort(vain)
		return s.send(now, t, &response{gone: vain, retry: true})
	}
	if (w.waiting() || s.removesBefore(t)) && s.held(now, t, &w.removeWait) {
		return nil
	}
	w.removeWait.clear()
	gone := s.goners(t)
	if w.remove = nil; len(gone) == 0 {
		s.settle(t)
		return nil
	}
	return s.send(now, t, &response{gone: gone})
}

// goners are the names to be removed; sorted.
func (*Server) goners(t *track) []string {
	if len(t.w.diff) == 0 {
		return t.w.remove
	}
	var gone []string
	for _, name := range t.w.remove {
		if t.w.diff[name] == nil && t.sub.has(name) {
			gone = append(gone, name)
		}
	}
	for name, e := range t.w.diff {
		if e.todo == opRemove {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	return gone
}

func (s *Server) removesBefore(t *track) bool {
	for _, o := range s.order {
		if s.arriving(o.url) {
			return true
		}
	}
	for _, url := range removalOrder {
		if url == t.typ.url {
			return false
		}
		if s.leaving(url) {
			return true
		}
	}
	return false
}
