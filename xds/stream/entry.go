package stream

import (
	"maps"
	"slices"
)

// entry is what is known of one name, where that is not simply what the
// generation says.
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
	// suspect means that it waits in a group to be tried alone.
	suspect bool
	// refused is the version that the peer finally refused, or empty, and reason
	// its words.
	refused, reason string
	// minded means that the peer is a relay that refused it and says so until it
	// hears of the name again, even if it is to have what it has.
	minded bool
}

// at gives the entry of a name, made from what the peer has if there is none.
func (t *typeState) at(name string) *entry {
	if e := t.diff[name]; e != nil {
		return e
	}
	e := t.peek(name)
	if t.diff == nil {
		t.diff = map[string]*entry{}
	}
	t.diff[name] = e
	return e
}

// peek is at without keeping the entry.
func (t *typeState) peek(name string) *entry {
	if e := t.diff[name]; e != nil {
		return e
	}
	e := &entry{}
	if t.base != nil && t.sub.has(name) {
		if r := t.base.Get(t.url, name); r != nil {
			e.acked, e.listed = r, true
		}
	}
	return e
}

type op int

const (
	opNone op = iota
	opAdd
	opRemove
)

// desired says what should be sent of a name now, and with what bytes.
func (s *Server) desired(t *typeState, name string, e *entry) (*Resource, op) {
	if s.target == nil || !t.sub.has(name) || e.suspect {
		return nil, opNone
	}
	follows, behind := s.behind[t.url][name]
	want := s.target.Get(t.url, name)
	forced := e.forced || behind || e.minded && e.refused != want.version()
	unknown := e.unknown && e.last == nil
	has := e.acked
	if e.last != nil {
		has = e.last.sent[name]
	}
	switch {
	case want == nil && behind:
		return follows, opAdd
	case want == nil && s.target.HoldRemovals:
		return nil, opNone
	case want == nil:
		if forced || unknown || has != nil {
			return nil, opRemove
		}
	case e.refused == want.Version:
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

// evaluate puts a name among what is to be sent or removed, or takes it out.
func (s *Server) evaluate(t *typeState, name string) {
	e := t.peek(name)
	if e.acked != nil && e.acked.Body == nil && s.target != nil {
		// Same version, same bytes: now we know what to go back to.
		if r := s.target.Get(t.url, name); r.version() == e.acked.Version {
			e.acked = r
		}
	}
	_, do := s.desired(t, name, e)
	delete(t.adds, name)
	delete(t.removes, name)
	switch do {
	case opAdd:
		if t.adds == nil {
			t.adds = map[string]struct{}{}
		}
		t.adds[name] = struct{}{}
	case opRemove:
		if t.removes == nil {
			t.removes = map[string]struct{}{}
		}
		t.removes[name] = struct{}{}
	case opNone:
		return
	}
	t.at(name)
}

func (s *Server) evaluateIn(url TypeURL, name string) {
	if t := s.types[url]; t != nil {
		s.evaluate(t, name)
	}
}

// settle moves the base of a type forward once nothing is left to send or to
// wait for, and drops what then follows from it.
func (s *Server) settle(t *typeState) {
	if s.target == nil || !t.quiet() {
		return
	}
	for name, e := range t.diff {
		clean := e.last == nil && !e.unknown && !e.forced && !e.suspect
		if !t.sub.has(name) || clean && e.acked.version() == s.target.Get(t.url, name).version() {
			delete(t.diff, name)
		}
	}
	if len(t.diff) == 0 {
		t.diff = nil
	}
	t.adds, t.removes, t.suspects, t.inflight = nil, nil, nil, nil
	t.base = s.target
	t.sub.rest(s.cfg.Interner)
	if len(s.behind[t.url]) == 0 {
		delete(s.behind, t.url) // an emptied map keeps its room
	}
	if t.url == ClusterType { // no cluster waits for anything any more
		for url, names := range s.behind {
			for name := range names {
				s.pruneBehind(url, name)
			}
		}
	}
	if t.status.NackedGeneration != 0 && !t.troubled() {
		t.status.NackedGeneration, t.status.LastError = 0, ""
	}
	if t.status.SettledGeneration != s.target.Number {
		t.status.SettledGeneration = s.target.Number
		s.event(Event{Kind: EventSettled, Type: t.url, Generation: s.target.Number})
	}
}

// quiet reports whether nothing is left to send or to wait for.
func (t *typeState) quiet() bool {
	return len(t.adds) == 0 && len(t.removes) == 0 && len(t.suspects) == 0 && len(t.inflight) == 0 && !t.owed
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
