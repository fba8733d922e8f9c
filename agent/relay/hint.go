package relay

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// maxHint bounds what a server's hint counts for: a host that asks once a minute
// is no burden to anybody, and one that stays away for longer gets no changes.
const maxHint = time.Minute

// hintOf is how long a server that refused asked to be left alone; zero if it did
// not say.
func hintOf(err error) time.Duration {
	st, ok := status.FromError(err)
	if !ok {
		return 0
	}
	for _, d := range st.Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return min(max(r.GetRetryDelay().AsDuration(), 0), maxHint)
		}
	}
	return 0
}

// pauses are when the servers that refused may be tried again, by server.
type pauses map[string]time.Time

// note notes what a server said when it ended or refused a stream. The spread is
// from 0 to 1: all that were refused at a moment must not come back at one. Nobody
// comes earlier than he was asked to.
func (p pauses) note(server string, err error, now time.Time, spread float64) {
	delete(p, server)
	if hint := hintOf(err); hint > 0 {
		p[server] = now.Add(hint + time.Duration(spread/4*float64(hint)))
	}
}

// left is how long a server is to be left alone yet.
func (p pauses) left(server string, now time.Time) time.Duration {
	return max(p[server].Sub(now), 0)
}

// soonest is how long all of the servers are to be left alone yet.
func (p pauses) soonest(servers []string, now time.Time) time.Duration {
	var wait time.Duration
	for i, s := range servers {
		if left := p.left(s, now); i == 0 || left < wait {
			wait = left
		}
	}
	return wait
}
