package stream

import (
	"slices"
	"strings"
	"time"
)

// EventKind is the kind of an Event.
type EventKind int

// The kinds of Event.
const (
	// EventSent: Next returned a response.
	EventSent EventKind = iota
	// EventAccepted: a response was ACKed.
	EventAccepted
	// EventNacked: a response was NACKed; which of its names is rejected may not be known
	// yet.
	EventNacked
	// EventRejected: one version of a resource was finally rejected.
	EventRejected
	// EventConverged: nothing of this type is left to send or to wait for.
	EventConverged
	// EventGateTimeout: something was sent although an earlier type was not answered in
	// time.
	EventGateTimeout
	// EventStale: an ACK or NACK with an unknown nonce.
	EventStale
)

// Event is something that happened on a stream, for logs and metrics.
type Event struct {
	Kind       EventKind
	Type       TypeURL
	Generation uint64
	Names      int           // how many names the response has
	Removal    bool          // the response removed resources
	Name       string        // of EventRejected
	Version    string        // of EventRejected
	Reason     string        // the peer's error message, of EventNacked and EventRejected
	Took       time.Duration // from sending to the answer
}

// Events returns what has happened since the last call.
func (s *Server) Events() []Event {
	e := s.events
	s.events = nil
	return e
}

// TypeStatus is the state of one type on a stream.
type TypeStatus struct {
	Type     TypeURL
	Wildcard bool
	Names    int // subscribed to by name
	// Resources is how many the peer is known to have.
	Resources int

	// SentGeneration, AckedGeneration and NackedGeneration are those of the last response
	// sent, ACKed and NACKed; NackedGeneration is 0 again once nothing is rejected or
	// unknown. ConvergedGeneration is the last one of which nothing was left to send or to
	// wait for.
	SentGeneration, AckedGeneration, NackedGeneration, ConvergedGeneration uint64
	SentAt, AckedAt, NackedAt                                              time.Time

	// LastError is the error message of the last NACK.
	LastError string
	Rejected  []Rejection // what the peer finally rejected, by name
	// RejectedMore is how many more there are, in a status that was shortened.
	RejectedMore int
	// Unknown is how many names the peer may or may not have after a NACK. A status with
	// Unknown > 0 is partial.
	Unknown int
	// Pending means that something is still to be sent or answered.
	Pending bool
}

// Rejection is one resource that a peer rejected.
type Rejection struct{ Name, Version, Reason string }

// typeProgress is what the status of a type needs beside its subscription states.
type typeProgress struct {
	sent, acked, nacked, converged uint64 // generations
	sentAt, ackedAt, nackedAt      int64  // Unix nanoseconds, 0 is never
	lastError                      string
}

// Status returns a copy of the state by type, in the order in which types are served. Its
// cost grows with the unanswered responses and rejected resources, not with all resources.
func (s *Server) Status() []TypeStatus {
	s.reconcileAll()
	out := make([]TypeStatus, 0, len(s.order))
	for _, t := range s.order {
		if !t.requested {
			continue
		}
		m := &t.status
		st := TypeStatus{
			Type: t.url, Wildcard: t.sub.wildcard, Names: t.sub.len(),
			SentGeneration: m.sent, AckedGeneration: m.acked, NackedGeneration: m.nacked, ConvergedGeneration: m.converged,
			SentAt: unixTime(m.sentAt), AckedAt: unixTime(m.ackedAt), NackedAt: unixTime(m.nackedAt), LastError: m.lastError,
			Pending: s.target == nil,
		}
		for k := range t.states() {
			st.Pending = st.Pending || !k.idle()
			st.Resources += k.count
			if k.pending == nil {
				continue
			}
			for name, e := range k.pending.states {
				if e.unknown {
					st.Unknown++
				}
				if e.rejectedVersion != "" {
					st.Rejected = append(st.Rejected, Rejection{Name: name, Version: e.rejectedVersion, Reason: e.rejectedReason})
				}
			}
		}
		slices.SortFunc(st.Rejected, func(a, b Rejection) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, st)
	}
	return out
}

func unixTime(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// Sent is one resource as a peer has it, or is to have it.
type Sent struct {
	Name string
	// Version is what the peer was last known to have, or empty; Wanted is its version in
	// the target, or empty.
	Version, Wanted string
	// Body is the body of Wanted, or if that is empty, of Version if known.
	Body []byte
	// Unknown means that Version may be wrong after a NACK. Rejected is the peer's error
	// message if it rejected Wanted.
	Unknown  bool
	Rejected string
}

// Sent lists what the peer has and is to have of a type; sorted by name.
func (s *Server) Sent(url TypeURL) []Sent {
	s.reconcileAll()
	t := s.typeOf(url)
	if t == nil {
		return nil
	}
	var out []Sent
	for k := range t.states() {
		if k.routeConfig != "" && k.suspended {
			continue
		}
		names := map[string]struct{}{}
		for r := range k.want.all() {
			names[r.Name] = struct{}{}
		}
		for _, r := range k.ackedResources() {
			names[r.Name] = struct{}{}
		}
		if k.pending != nil {
			for name := range k.pending.states {
				names[name] = struct{}{}
			}
		}
		for name := range names {
			if k.sub.has(name) {
				out = append(out, k.describe(name))
			}
		}
	}
	slices.SortFunc(out, func(a, b Sent) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (t *subscriptionState) describe(name string) Sent {
	e, want := t.peekState(name), t.want.get(name)
	row := Sent{Name: name, Version: e.acked.version(), Wanted: want.version(), Body: want.body(), Unknown: e.unknown}
	if row.Body == nil {
		row.Body = e.acked.body()
	}
	if e.rejectedVersion != "" && e.rejectedVersion == want.version() {
		row.Rejected = e.rejectedReason
	}
	return row
}

// Unacknowledged are the names that a peer may or may not have, at one time. Immutable;
// the zero value is empty.
type Unacknowledged struct {
	names map[TypeURL][]string
	lists []unackedList
}

type unackedList struct {
	url  TypeURL
	list []*Resource // of an unanswered response, or of virtual hosts that were not sent
}

// Empty reports whether there are none.
func (u Unacknowledged) Empty() bool { return len(u.names)+len(u.lists) == 0 }

// Names lists them by type, sorted, for [ServerConfig]; nil if there are none.
func (u Unacknowledged) Names() map[TypeURL][]string {
	if u.Empty() {
		return nil
	}
	out := map[TypeURL][]string{}
	for url, names := range u.names {
		out[url] = slices.Clone(names)
	}
	for _, l := range u.lists {
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

// Unacknowledged returns the names of which the versions may be wrong that the peer lists
// when it reconnects: because of a NACK, or because of an unanswered response. They are
// for the ServerConfig of the peer's next stream. The cost grows with the unanswered
// responses and rejected resources.
func (s *Server) Unacknowledged() Unacknowledged {
	var u Unacknowledged
	add := func(url TypeURL, names ...string) {
		if u.names == nil {
			u.names = map[TypeURL][]string{}
		}
		u.names[url] = append(u.names[url], names...)
	}
	for _, t := range s.order {
		for k := range t.states() {
			if len(k.unconfirmedRemovals) > 0 {
				add(t.url, k.unconfirmedRemovals...)
			}
			u.lists = append(u.lists, k.unsentInitialHosts()...)
			if k.pending == nil {
				continue
			}
			for name, e := range k.pending.states {
				if e.unknown || e.forced && k.routeConfig != "" {
					add(t.url, name)
				}
			}
			for _, r := range k.pending.sent {
				if !r.accepted && len(r.resources) > 0 {
					u.lists = append(u.lists, unackedList{t.url, r.resources})
				}
			}
		}
	}
	// Names that were not compared on this stream are as uncertain as before.
	for url, names := range s.cfg.Unacknowledged {
		for _, name := range names {
			if !s.compared(url, name) {
				add(url, name)
			}
		}
	}
	return u
}

// unsentInitialHosts are the initial virtual hosts that were not sent yet. The peer may
// list them: it may have accepted them behind a route configuration that it then rejected.
func (t *subscriptionState) unsentInitialHosts() (lists []unackedList) {
	if t.routeConfig == "" {
		return nil
	}
	if t.resendAll && t.have != nil {
		for _, s := range t.have.sets {
			lists = append(lists, unackedList{t.typ.url, s.list})
		}
	}
	if t.pending != nil && len(t.pending.forced) > 0 {
		lists = append(lists, unackedList{t.typ.url, t.pending.forced})
	}
	return lists
}

// compared reports whether what the peer listed of a name was compared with a target.
func (s *Server) compared(url TypeURL, name string) bool {
	t := s.typeOf(url)
	if t == nil {
		return false
	}
	if url != VirtualHostType {
		return t.reconciled
	}
	routeConfig, _, _ := splitHostName(name)
	g := t.hosts[routeConfig]
	return g != nil && g.reconciled
}

// UnacknowledgedNames is the compact form of Unacknowledged, to be kept after the stream
// has ended: equal sets of names are shared. Immutable; nil is empty.
type UnacknowledgedNames struct {
	names map[TypeURL]*nameSet
	size  int
}

// Retain makes the compact form; nil if there are none.
func (i *Interner) Retain(u Unacknowledged) *UnacknowledgedNames {
	if u.Empty() {
		return nil
	}
	n := &UnacknowledgedNames{names: map[TypeURL]*nameSet{}}
	for url, names := range u.Names() {
		set := i.intern(names)
		n.names[url] = set
		n.size += set.size()
	}
	return n
}

// Names lists the names by type, sorted, for [ServerConfig].
func (n *UnacknowledgedNames) Names() map[TypeURL][]string {
	out := map[TypeURL][]string{}
	if n == nil {
		return out
	}
	for url, set := range n.names {
		out[url] = slices.Clone(set.all())
	}
	return out
}

// Size estimates how many bytes it keeps if nobody shares them.
func (n *UnacknowledgedNames) Size() int {
	if n == nil {
		return 0
	}
	return n.size
}

// UnacknowledgedNames is [Server.Unacknowledged], by type.
func (s *Server) UnacknowledgedNames() map[TypeURL][]string { return s.Unacknowledged().Names() }
