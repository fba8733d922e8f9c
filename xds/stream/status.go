package stream

import (
	"slices"
	"time"
)

// EventKind is what an Event tells.
type EventKind int

// The kinds of Event.
const (
	// EventSent: a response was given to be sent.
	EventSent EventKind = iota
	// EventAccepted: a response was ACKed.
	EventAccepted
	// EventNacked: a response was refused; which of its names is at fault may not be
	// known yet.
	EventNacked
	// EventRejected: one name was finally refused, in one version.
	EventRejected
	// EventSettled: of this type nothing is left to send or to wait for.
	EventSettled
	// EventGateTimeout: something went on although what it waited for was not
	// answered in time.
	EventGateTimeout
	// EventStale: an answer to a response that nobody waits for.
	EventStale
)

// Event is something that happened on a stream, for logs and metrics.
type Event struct {
	Kind       EventKind
	Type       TypeURL
	Generation uint64
	Names      int           // how many names it is about
	Removal    bool          // the response removed
	Name       string        // of EventRejected
	Version    string        // of EventRejected
	Reason     string        // the peer's words, of EventNacked and EventRejected
	Took       time.Duration // from sending to the answer
}

// Events gives what has happened since the last call.
func (s *Server) Events() []Event {
	e := s.events
	s.events = nil
	return e
}

// TypeStatus is how a peer stands with one type.
type TypeStatus struct {
	Type     TypeURL
	Wildcard bool
	Names    int // subscribed to by name
	// Resources is how many the peer is known to have.
	Resources int

	// SentGeneration, AckedGeneration and NackedGeneration are those of the last
	// response sent, accepted and refused; NackedGeneration is 0 again once all
	// is well. SettledGeneration is the last one of which nothing was left to do.
	SentGeneration, AckedGeneration, NackedGeneration, SettledGeneration uint64
	SentAt, AckedAt, NackedAt                                            time.Time

	// LastError is the peer's words of the last refusal.
	LastError string
	Rejected  []Rejection // what the peer finally refused, by name
	// Unknown is how many names the peer may or may not have, after a refusal. A
	// status with Unknown > 0 is partial.
	Unknown int
	// Pending means that something is to be sent or answered yet.
	Pending bool
}

// Rejection is one resource that a peer refused.
type Rejection struct{ Name, Version, Reason string }

// Status is how the peer stands, by type in the order in which types are
// served. It is a copy.
func (s *Server) Status() []TypeStatus {
	out := make([]TypeStatus, 0, len(s.order))
	for _, t := range s.order {
		st := t.status
		st.Pending = s.target == nil || !t.quiet()
		for _, name := range sortedKeys(t.diff) {
			e := t.diff[name]
			if e.unknown {
				st.Unknown++
			}
			if e.refused != "" {
				st.Rejected = append(st.Rejected, Rejection{Name: name, Version: e.refused, Reason: e.reason})
			}
		}
		st.Resources = t.count()
		out = append(out, st)
	}
	return out
}

// count is how many names the peer has.
func (t *typeState) count() int {
	n := 0
	if t.base != nil {
		have := t.base.union(t.url)
		if t.sub.wildcard {
			n = have.len()
		} else {
			for name := range t.sub.all() {
				if have.get(name) != nil {
					n++
				}
			}
		}
	}
	for name, e := range t.diff {
		if t.base != nil && t.sub.has(name) {
			if t.base.Get(t.url, name) != nil {
				n--
			}
		}
		if e.acked != nil {
			n++
		}
	}
	return n
}

// Sent is one resource as a peer has it, or shall have it.
type Sent struct {
	Name string
	// Version is what the peer was last known to have, or empty; Wanted is what it
	// shall have, or empty.
	Version, Wanted string
	// Body is that of Wanted, or where there is none of Version, as far as known.
	Body []byte
	// Unknown means that Version may not be true, after a refusal; Rejected is the
	// peer's words, where it refused Wanted.
	Unknown  bool
	Rejected string
}

// Sent lists what the peer has and shall have of a type; sorted by name.
func (s *Server) Sent(url TypeURL) []Sent {
	t := s.types[url]
	if t == nil {
		return nil
	}
	names := map[string]struct{}{}
	for r := range s.target.All(url) {
		names[r.Name] = struct{}{}
	}
	for r := range t.base.All(url) {
		names[r.Name] = struct{}{}
	}
	for name := range t.diff {
		names[name] = struct{}{}
	}
	var out []Sent
	for _, name := range sortedKeys(names) {
		if !t.sub.has(name) {
			continue
		}
		e := t.peek(name)
		r := s.target.Get(url, name)
		row := Sent{Name: name, Version: e.acked.version(), Wanted: r.version(), Body: r.body(), Unknown: e.unknown}
		if row.Body == nil {
			row.Body = e.acked.body()
		}
		if e.refused != "" && e.refused == r.version() {
			row.Rejected = e.reason
		}
		out = append(out, row)
	}
	return out
}

// Unknown lists the names that the peer may or may not have in the version that
// it will list when it reconnects, because of a refusal, or because an answer
// is outstanding that may be one: give it to the next Server as Distrust. Nil if
// there are none.
func (s *Server) Unknown() map[TypeURL][]string {
	var out map[TypeURL][]string
	for _, t := range s.order {
		for _, name := range sortedKeys(t.diff) {
			if e := t.diff[name]; !e.unknown && (e.last == nil || e.last.removal) {
				continue
			}
			if out == nil {
				out = map[TypeURL][]string{}
			}
			out[t.url] = append(out[t.url], name)
		}
	}
	// A type that was not asked for on this stream is as doubtful as before.
	for url, names := range s.cfg.Distrust {
		if s.types[url] != nil {
			continue
		}
		if out == nil {
			out = map[TypeURL][]string{}
		}
		out[url] = slices.Clone(names)
	}
	return out
}
