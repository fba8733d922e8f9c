package stream

import (
	"slices"
	"strings"
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
	// EventStale: an ACK for an unknown nonce.
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
	// RejectedMore is how many there are beside these, where somebody left some out.
	RejectedMore int
	// Unknown is how many names the peer may or may not have, after a refusal. A
	// status with Unknown > 0 is partial.
	Unknown int
	// Pending means that something is to be sent or answered yet.
	Pending bool
}

// Rejection is one resource that a peer refused.
type Rejection struct{ Name, Version, Reason string }

// marks are what a status needs beside the tracks.
type marks struct {
	sent, acked, nacked, settled uint64 // generations
	sentAt, ackedAt, nackedAt    int64  // Unix nanoseconds, 0 is never
	lastError                    string
}

// Status is how the peer stands, by type in the order in which types are
// served. It is a copy. It costs as much as there are responses unanswered and
// resources refused, not as there are resources.
func (s *Server) Status() []TypeStatus {
	s.lookAll()
	out := make([]TypeStatus, 0, len(s.order))
	for _, t := range s.order {
		if !t.opened {
			continue
		}
		m := &t.status
		st := TypeStatus{
			Type: t.url, Wildcard: t.sub.wildcard, Names: t.sub.len(),
			SentGeneration: m.sent, AckedGeneration: m.acked, NackedGeneration: m.nacked, SettledGeneration: m.settled,
			SentAt: moment(m.sentAt), AckedAt: moment(m.ackedAt), NackedAt: moment(m.nackedAt), LastError: m.lastError,
			Pending: s.target == nil,
		}
		for k := range t.tracks() {
			st.Pending = st.Pending || !k.quiet()
			st.Resources += k.count
			if k.w == nil {
				continue
			}
			for name, e := range k.w.diff {
				if e.unknown {
					st.Unknown++
				}
				if e.refused != "" {
					st.Rejected = append(st.Rejected, Rejection{Name: name, Version: e.refused, Reason: e.reason})
				}
			}
		}
		slices.SortFunc(st.Rejected, func(a, b Rejection) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, st)
	}
	return out
}

func moment(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
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
	s.lookAll()
	t := s.typeOf(url)
	if t == nil {
		return nil
	}
	var out []Sent
	for k := range t.tracks() {
		if k.table != "" && k.asleep {
			continue
		}
		names := map[string]struct{}{}
		for r := range k.seen.all() {
			names[r.Name] = struct{}{}
		}
		for _, r := range k.everything() {
			names[r.Name] = struct{}{}
		}
		if k.w != nil {
			for name := range k.w.diff {
				names[name] = struct{}{}
			}
		}
		for name := range names {
			if k.sub.has(name) {
				out = append(out, k.row(name))
			}
		}
	}
	slices.SortFunc(out, func(a, b Sent) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (t *track) row(name string) Sent {
	e, want := t.peek(name), t.seen.get(name)
	row := Sent{Name: name, Version: e.acked.version(), Wanted: want.version(), Body: want.body(), Unknown: e.unknown}
	if row.Body == nil {
		row.Body = e.acked.body()
	}
	if e.refused != "" && e.refused == want.version() {
		row.Rejected = e.reason
	}
	return row
}

// Doubts are what a peer may or may not have, at one moment. Immutable; the zero
// value is none.
type Doubts struct {
	names map[TypeURL][]string
	lists []doubtfulList
}

type doubtfulList struct {
	url  TypeURL
	list []*Resource // of a response that is not answered, or of what is lost
}

// None reports whether there are none.
func (d Doubts) None() bool { return len(d.names)+len(d.lists) == 0 }

// Names lists them by type, sorted, for [ServerConfig.Distrust]; nil if there
// are none.
func (d Doubts) Names() map[TypeURL][]string {
	if d.None() {
		return nil
	}
	out := map[TypeURL][]string{}
	for url, names := range d.names {
		out[url] = slices.Clone(names)
	}
	for _, l := range d.lists {
		for _, r := range l.list {
			out[l.url] = append(out[l.url], r.Name)
		}
	}
	for url, names := range out {
		slices.Sort(names)
		out[url] = slices.Compact(names)
	}
	return out
}

// Doubts are the names that the peer may or may not have in the version that it
// will list when it reconnects, because of a refusal, or because an answer is
// outstanding that may be one: give them to the next Server as Distrust. It costs
// as much as there are responses unanswered and resources refused.
func (s *Server) Doubts() Doubts {
	var d Doubts
	add := func(url TypeURL, names ...string) {
		if d.names == nil {
			d.names = map[TypeURL][]string{}
		}
		d.names[url] = append(d.names[url], names...)
	}
	for _, t := range s.order {
		for k := range t.tracks() {
			if len(k.gone) > 0 {
				add(t.url, k.gone...)
			}
			d.lists = append(d.lists, k.lost()...)
			if k.w == nil {
				continue
			}
			for name, e := range k.w.diff {
				if e.unknown || e.forced && k.table != "" {
					add(t.url, name)
				}
			}
			for _, r := range k.w.sent {
				if !r.accepted && len(r.list) > 0 {
					d.lists = append(d.lists, doubtfulList{t.url, r.list})
				}
			}
		}
	}
	// What was not looked at on this stream is as doubtful as before.
	for url, names := range s.cfg.Distrust {
		for _, name := range names {
			if !s.judged(url, name) {
				add(url, name)
			}
		}
	}
	return d
}

// lost are the virtual hosts that a table begins with, and that were not sent yet:
// the peer may list them, for it took them behind a table which it then refused.
func (t *track) lost() (lists []doubtfulList) {
	if t.table == "" {
		return nil
	}
	if t.again && t.have != nil {
		for _, s := range t.have.sets {
			lists = append(lists, doubtfulList{t.typ.url, s.list})
		}
	}
	if t.w != nil && len(t.w.due) > 0 {
		lists = append(lists, doubtfulList{t.typ.url, t.w.due})
	}
	return lists
}

// judged reports whether what the peer listed of a name was looked at.
func (s *Server) judged(url TypeURL, name string) bool {
	t := s.typeOf(url)
	if t == nil {
		return false
	}
	if url != VirtualHostType {
		return t.looked
	}
	table, _, _ := cutHost(name)
	g := t.groups[table]
	return g != nil && g.looked
}

// Memory is doubts as they are kept for long: their names, which equal ones share.
// Immutable; nil is none.
type Memory struct {
	names map[TypeURL]*nameSet
	size  int
}

// Remember makes a Memory of doubts; nil if there are none.
func (i *Interner) Remember(d Doubts) *Memory {
	if d.None() {
		return nil
	}
	m := &Memory{names: map[TypeURL]*nameSet{}}
	for url, names := range d.Names() {
		set := i.intern(names)
		m.names[url] = set
		m.size += set.size()
	}
	return m
}

// Names lists the names by type, sorted, for [ServerConfig.Distrust].
func (m *Memory) Names() map[TypeURL][]string {
	out := map[TypeURL][]string{}
	if m == nil {
		return out
	}
	for url, set := range m.names {
		out[url] = slices.Clone(set.all())
	}
	return out
}

// Size is about how many bytes it keeps, unless others have the same.
func (m *Memory) Size() int {
	if m == nil {
		return 0
	}
	return m.size
}

// Unknown lists the doubts by type; see [Server.Doubts].
func (s *Server) Unknown() map[TypeURL][]string { return s.Doubts().Names() }
