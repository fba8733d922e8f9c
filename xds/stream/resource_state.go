package stream

import (
	"maps"
	"slices"
	"time"
)

// resourceState is what is known of one name, where it differs from what the
// subscriptionState says of all its names.
type resourceState struct {
	// acked is what the peer was last known to have, or nil. It has no Body if the peer
	// only listed the version.
	acked *Resource
	// everHad means that the peer listed or accepted some version.
	everHad bool
	// lastSent is the newest unanswered response that has the name, or nil.
	lastSent *sentResponse
	// unknown means that a response with the name was NACKed, so that the peer may or may
	// not have it.
	unknown bool
	// forced means that it is sent even if the peer has it.
	forced bool
	// candidate means that it waits for a retry, because a NACK may be its fault;
	// secondTry, that this is its second one.
	candidate, secondTry bool
	// rejectedVersion is the version that the peer finally rejected, or empty;
	// rejectedReason is the peer's error message.
	rejectedVersion, rejectedReason string
	// tries counts rejections in a row that are tried again, and retryAt is when the resource is
	// sent again; zero: never.
	tries   int
	retryAt time.Time
	// relayRejected means that the peer is a relay which rejected a version. It reports
	// that until the name is sent again, even if the peer is to have the version that it
	// has.
	relayRejected bool
	// todo is what is to be sent.
	todo op
}

type op int

const (
	opNone op = iota
	opAdd
	opRemove
)

// desired decides what is to be sent of a name now, and with which bytes.
func (s *Server) desired(t *subscriptionState, name string, e *resourceState) (*Resource, op) {
	if !t.reconciled || !t.sub.has(name) || e.candidate || t.suspended {
		return nil, opNone
	}
	want := t.want.get(name)
	forced := e.forced || e.relayRejected && e.rejectedVersion != want.version()
	unknown := e.unknown && e.lastSent == nil
	has := e.acked
	if e.lastSent != nil {
		has, _ = e.lastSent.find(name)
	}
	if want == nil {
		if e.forced && t.typ.url == EndpointType {
			if late := s.endpointsAsSent(name); late != nil {
				return late, opAdd
			}
		}
		if keptUntilUnsubscribed(t.typ.url) {
			if forced && has == nil && !e.everHad && !t.holdRemovals {
				return nil, opRemove // the answer that it does not exist
			}
			return nil, opNone
		}
		if !t.holdRemovals && (forced || unknown || has != nil) {
			return nil, opRemove
		}
		return nil, opNone
	}
	switch {
	case e.rejectedVersion == want.version():
		return s.desiredRejected(e, unknown || forced)
	case forced || unknown || has.version() != want.Version:
		return want, opAdd
	}
	return nil, opNone
}

// desiredRejected is desired for a name whose target version was rejected: the peer is to
// have the version that it accepted last. If that is not known, the name is left alone if
// the peer ever had some version, and removed otherwise.
func (*Server) desiredRejected(e *resourceState, needed bool) (*Resource, op) {
	switch {
	case !needed:
		return nil, opNone
	case e.acked.body() != nil:
		return e.acked, opAdd
	case e.everHad:
		return nil, opNone
	default:
		return nil, opRemove
	}
}

// endpointsAsSent returns the endpoints of a cluster as they were when the cluster was
// sent. The target has none any more, but the cluster may still wait for them, and would
// wait forever.
func (s *Server) endpointsAsSent(name string) *Resource {
	c := s.typeOf(ClusterType)
	if c == nil || c.pending == nil {
		return nil
	}
	for _, list := range [][]*sentResponse{c.pending.sent, c.pending.nackedClusters} {
		for _, r := range slices.Backward(list) {
			if res, ok := r.find(name); ok && res != nil {
				return r.endpoints.get(name)
			}
		}
	}
	return nil
}

// evaluate decides what is to be sent of a name with a resourceState.
func (s *Server) evaluate(t *subscriptionState, name string, e *resourceState) {
	if e.acked != nil && e.acked.Body == nil && e.acked.Version != e.rejectedVersion {
		// Same version, same bytes: this is what to revert to.
		if r := t.want.get(name); r.version() == e.acked.Version {
			e.acked = r
		}
	}
	_, e.todo = s.desired(t, name, e)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
