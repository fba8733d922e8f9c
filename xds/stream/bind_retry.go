package stream

import (
	"strings"
	"time"
)

// A listener whose address another process has is rejected. Nothing tells when the address
// becomes free, so the listener is sent again after bindRetryMin, then after twice that, and
// so on up to bindRetryMax.
const (
	bindRetryMin = 5 * time.Second
	bindRetryMax = 5 * time.Minute
)

// IsBindError reports whether Envoy rejected a listener because it could not bind. Such a
// listener may be accepted later although it is the same.
func IsBindError(url TypeURL, reason string) bool {
	return url == ListenerType && strings.Contains(reason, "cannot bind '")
}

// scheduleBindRetry is called after every rejection.
func (s *Server) scheduleBindRetry(now time.Time, t *subscriptionState, e *resourceState) {
	if !IsBindError(t.typ.url, e.rejectedReason) {
		e.bindErrors, e.retryAt = 0, time.Time{}
		return
	}
	wait := bindRetryMax
	if e.bindErrors < 16 { // far above the maximum
		wait = min(bindRetryMin<<e.bindErrors, bindRetryMax)
		e.bindErrors++
	}
	e.retryAt = now.Add(wait)
	if s.bindRetry.IsZero() || e.retryAt.Before(s.bindRetry) {
		s.bindRetry = e.retryAt
	}
}

// retryBinds sends the listeners again whose time has come.
func (s *Server) retryBinds(now time.Time) {
	if s.bindRetry.IsZero() || now.Before(s.bindRetry) {
		return
	}
	s.bindRetry = time.Time{}
	t := s.typeOf(ListenerType)
	if t == nil || t.pending == nil {
		return
	}
	for _, name := range sortedKeys(t.pending.states) {
		e := t.pending.states[name]
		switch {
		case e.retryAt.IsZero():
		case now.Before(e.retryAt):
			if s.bindRetry.IsZero() || e.retryAt.Before(s.bindRetry) {
				s.bindRetry = e.retryAt
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
