package relay

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// maxRetryDelay bounds the retry delay that a server can ask for. A host that asks once a
// minute costs a server little, and one that stays away for longer gets no changes.
const maxRetryDelay = time.Minute

// retryDelay is the RetryInfo of a server that rejected a stream; zero if it sent none.
func retryDelay(err error) time.Duration {
	st, ok := status.FromError(err)
	if !ok {
		return 0
	}
	for _, d := range st.Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return min(max(r.GetRetryDelay().AsDuration(), 0), maxRetryDelay)
		}
	}
	return 0
}

// retryTimes are the earliest times at which servers that rejected a stream may be tried
// again.
type retryTimes map[string]time.Time

// note records the retry delay of a server that ended or rejected a stream. The spread, from 0
// to 1, makes hosts that were rejected together come back at different times, and none before
// its delay.
func (p retryTimes) note(server string, err error, now time.Time, spread float64) {
	delete(p, server)
	if hint := retryDelay(err); hint > 0 {
		p[server] = now.Add(hint + time.Duration(spread/4*float64(hint)))
	}
}

// remaining is how long a server must not be tried yet.
func (p retryTimes) remaining(server string, now time.Time) time.Duration {
	return max(p[server].Sub(now), 0)
}

// soonest is how long no server may be tried yet.
func (p retryTimes) soonest(servers []string, now time.Time) time.Duration {
	var wait time.Duration
	for i, s := range servers {
		if left := p.remaining(s, now); i == 0 || left < wait {
			wait = left
		}
	}
	return wait
}
