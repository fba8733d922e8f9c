package stream

import (
	"maps"
	"slices"
)

// entry is what is known of one name, where that is not simply what its track
// says.
type entry struct {
	// acked is what the peer was last known to have, or nil; without a Body where
	// it only said so.
	acked *Resource
	// listed means that the peer has named some version of it, or accepted one.
	listed bool
	// last is the newest unanswered response that has the name, or nil.
	last *response
	// unknown means that a response with it was refused, so that the peer may or
	// may not have it.
	unknown bool
	// forced means that it is sent even if the peer has it.
	forced bool
	// suspect means that it waits in a group to be tried alone, and again that this
	// is the second time.
	suspect, again bool
	// refused is the version that the peer finally refused, or empty, and reason
	// its words.
	refused, reason string
	// minded means that the peer is a relay that refused it and says so until it
	// hears of the name again, even if it is to have what it has.
	minded bool
	// todo is what is left to do.
	todo op
}

type op int

const (
	opNone op = iota
	opAdd
	opRemove
)

// desired says what should be sent of a name now, and with what bytes.
func (s *Server) desired(t *track, name string, e *entry) (*Resource, op) {
	if !t.looked || !t.sub.has(name) || e.suspect || t.asleep {
		return nil, opNone
	}
	want := t.seen.get(name)
	forced := e.forced || e.minded && e.refused != want.version()
	unknown := e.unknown && e.last == nil
	has := e.acked
	if e.last != nil {
		has, _ = e.last.find(name)
	}
	if want == nil {
		if e.forced && t.typ.url == EndpointType {
			if late := s.late(name); late != nil {
				return late, opAdd
			}
		}
		if !t.hold && (forced || unknown || has != nil) {
			return nil, opRemove
		}
		return nil, opNone
	}
	switch {
	case e.refused == want.version():
		return s.desiredRefused(e, unknown || forced)
	case forced || unknown || has.version() != want.Version:
		return want, opAdd
	}
	return nil, opNone
}

// desiredRefused is desired for a name whose wanted version the peer refuses: it
// shall have what it last accepted. Where we do not know that, it is left alone
// if it ever had something, and removed if it never did.
func (*Server) desiredRefused(e *entry, needed bool) (*Resource, op) {
	switch {
	case !needed:
		return nil, opNone
	case e.acked.body() != nil:
		return e.acked, opAdd
	case e.listed:
		return nil, opNone
	default:
		return nil, opRemove
	}
}

// late gives the endpoints of a cluster that was sent, and that may still wait
// for them, as they were then: nobody has them any more, and without them it
// would wait for ever.
func (s *Server) late(name string) *Resource {
	c := s.typeOf(ClusterType)
	if c == nil || c.w == nil {
		return nil
	}
	for _, list := range [][]*response{c.w.sent, c.w.refused} {
		for _, r := range slices.Backward(list) {
			if res, ok := r.find(name); ok && res != nil {
				return r.endpoints.get(name)
			}
		}
	}
	return nil
}

// evaluate finds what is left to do of a name that has an entry.
func (s *Server) evaluate(t *track, name string, e *entry) {
	if e.acked != nil && e.acked.Body == nil && e.acked.Version != e.refused {
		// Same version, same bytes: now we know what to go back to.
		if r := t.seen.get(name); r.version() == e.acked.Version {
			e.acked = r
		}
	}
	_, e.todo = s.desired(t, name, e)
}

// settle notes that nothing is left to send or to wait for, and drops what then
// follows from that.
func (s *Server) settle(t *track) {
	if !t.looked || !t.quiet() {
		return
	}
	if t.begins && !t.asleep { // all that it was sent was refused
		t.owed = true
		return
	}
	if t.w != nil {
		s.fold(t)
	}
	t.scope = t.sub
	if t.table != "" {
		s.settleHosts(t.typ)
		return
	}
	t.typ.settled(s)
}

// settleHosts notes that nothing is left to do for any virtual host. That is asked
// after every request, not only where a track has settled: the last one that was
// waited for may be a track that never does, for it sleeps and was not looked at
// yet, or one that is gone, for the peer gave its table up.
func (s *Server) settleHosts(t *typeState) {
	noted := s.target == nil || t.status.settled == s.target.Number && t.status.nacked == 0
	if !noted && t.opened && t.calm() {
		t.settled(s)
	}
}

// settled notes that all of a type is as it shall be.
func (t *typeState) settled(s *Server) {
	if t.status.nacked != 0 && !t.troubled() {
		t.status.nacked, t.status.lastError = 0, ""
	}
	if t.status.settled != s.target.Number {
		t.status.settled = s.target.Number
		s.event(Event{Kind: EventSettled, Type: t.url, Generation: s.target.Number})
	}
}

// fold makes have say again what the peer has.
func (s *Server) fold(t *track) {
	w := t.w
	have := t.seen
	// While the entries are there: without one a name is as have has said so far.
	if t.asleep {
		have = (*union)(nil).keeping(t.everything())
	} else if t.held {
		var extra []*Resource
		for _, r := range t.everything() {
			if t.seen.get(r.Name) == nil && w.diff[r.Name] == nil {
				extra = append(extra, r)
			}
		}
		have = t.seen.keeping(extra)
	}
	for name, e := range w.diff {
		clean := e.last == nil && !e.unknown && !e.forced && !e.suspect && !e.minded
		if !t.sub.has(name) || clean && e.acked.version() == t.seen.get(name).version() {
			delete(w.diff, name)
		}
	}
	recount := w.recount || len(w.diff) > 0
	t.have, t.scope = have, t.sub
	w.sent, w.refused, w.recount, w.due = nil, nil, false, nil
	if len(w.diff) == 0 {
		t.w = nil
	}
	if recount {
		t.count = t.exact()
	}
	if t.typ.url == ClusterType { // no cluster waits for anything any more
		if e := s.typeOf(EndpointType); e != nil && e.w != nil {
			for name, x := range e.w.diff {
				s.evaluate(&e.track, name, x)
			}
		}
	}
}

// everything lists what the peer has; sorted by name.
func (t *track) everything() []*Resource {
	names := map[string]struct{}{}
	for r := range t.have.all() {
		names[r.Name] = struct{}{}
	}
	if t.w != nil {
		for _, r := range t.w.sent {
			for _, res := range r.list {
				names[res.Name] = struct{}{}
			}
		}
		for name := range t.w.diff {
			names[name] = struct{}{}
		}
	}
	var out []*Resource
	for _, name := range sortedKeys(names) {
		if r := t.peek(name).acked; r != nil && t.sub.has(name) {
			out = append(out, r)
		}
	}
	return out
}

// exact is how many names the peer has.
func (t *track) exact() int {
	if t.w == nil && t.have == nil {
		return 0
	}
	if t.w == nil && t.scope.wildcard {
		return t.have.len()
	}
	return len(t.everything())
}

// troubled reports whether something of the type is refused or unknown.
func (t *typeState) troubled() bool {
	for k := range t.tracks() {
		if k.w == nil {
			continue
		}
		for _, e := range k.w.diff {
			if e.refused != "" || e.unknown {
				return true
			}
		}
	}
	return false
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
