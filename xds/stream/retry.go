package stream

import (
	"slices"
	"strings"
	"time"
)

// Retry says which rejections are no final ones: the resource is sent again after Min, then after
// twice that, and so on up to Max.
type Retry struct {
	Min, Max time.Duration
	// All has every rejected listener and cluster sent again, whatever the reason. Else only those
	// are whose reason is on the peer's host, see [IsHostError].
	All bool
	// None has nothing sent again: the peer tries by itself.
	None bool
}

// DefaultRetry is the Retry of a peer that nothing else is known of.
func DefaultRetry() Retry { return Retry{Min: 5 * time.Second, Max: 5 * time.Minute} }

// retriedTypes are the types whose resources depend on what is on the host: ports and files.
//
//nolint:gochecknoglobals // a read-only list
var retriedTypes = [...]TypeURL{ClusterType, ListenerType}

// IsHostError reports whether Envoy rejected a listener because of its host: it could not bind, or
// could not open a file, such as an access log in a directory that is gone. Nothing tells when the
// reason ends. Such a listener may be accepted later although it is the same.
func IsHostError(url TypeURL, reason string) bool {
	return url == ListenerType && HostFaultOf(reason) != NoHostFault
}

// HostFault is what is wrong on the host of an Envoy that rejects a listener.
type HostFault int

// The faults of a host. OtherBind is a bind that fails for any other reason.
const (
	NoHostFault HostFault = iota
	PortInUse
	NoAddress
	NotPermitted
	OtherBind
	NoFile
)

// HostFaultOf finds the fault in Envoy's words.
func HostFaultOf(reason string) HostFault {
	_, bind, binds := strings.Cut(reason, "cannot bind '")
	switch {
	case !binds && strings.Contains(reason, "unable to open file '"):
		return NoFile
	case !binds:
		return NoHostFault
	case strings.Contains(bind, "Address already in use"):
		return PortInUse
	case strings.Contains(bind, "Cannot assign requested address"):
		return NoAddress
	case strings.Contains(bind, "Permission denied"):
		return NotPermitted
	default:
		return OtherBind
	}
}

// Wait is the time until the next attempt, after a number of attempts.
func (r Retry) Wait(tries int) time.Duration {
	if tries > 16 { // far above any maximum
		return r.Max
	}
	return min(r.Min<<tries, r.Max)
}

// scheduleRetry is called after every rejection.
func (s *Server) scheduleRetry(now time.Time, t *subscriptionState, e *resourceState) {
	c, url := s.cfg.Retry, t.typ.url
	if c.None || !IsHostError(url, e.rejectedReason) && (!c.All || !slices.Contains(retriedTypes[:], url)) {
		e.tries, e.retryAt = 0, time.Time{}
		return
	}
	e.retryAt = now.Add(c.Wait(e.tries))
	e.tries++
	if s.retryAt.IsZero() || e.retryAt.Before(s.retryAt) {
		s.retryAt = e.retryAt
	}
}

// retryRejected sends the resources again whose time has come.
func (s *Server) retryRejected(now time.Time) {
	if s.retryAt.IsZero() || now.Before(s.retryAt) {
		return
	}
	s.retryAt = time.Time{}
	for _, url := range retriedTypes {
		if t := s.typeOf(url); t != nil && t.pending != nil {
			s.retryType(now, t)
		}
	}
}

func (s *Server) retryType(now time.Time, t *typeState) {
	for _, name := range sortedKeys(t.pending.states) {
		e := t.pending.states[name]
		switch {
		case e.retryAt.IsZero():
		case now.Before(e.retryAt):
			if s.retryAt.IsZero() || e.retryAt.Before(s.retryAt) {
				s.retryAt = e.retryAt
			}
		default:
			e.retryAt = time.Time{}
			if e.rejectedVersion == "" || e.rejectedVersion != t.want.get(name).version() {
				continue // it was replaced, and sent since
			}
			e.rejectedVersion, e.rejectedReason, e.forced = "", "", true
			s.evaluate(&t.subscriptionState, name, e)
		}
	}
}
