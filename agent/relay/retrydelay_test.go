package relay

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/race"
)

// full is the answer of a server that has too many streams.
func full(tb testing.TB, after time.Duration) error {
	tb.Helper()
	st, err := status.New(codes.ResourceExhausted, "full").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	if err != nil {
		tb.Fatal(err)
	}
	return st.Err()
}

// refuse makes the server reject every stream with err, or none if err is nil.
func (s *fakeServer) refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = err
}

// refusedAt waits until n streams were rejected, and returns their times.
func (s *fakeServer) refusedAt(tb testing.TB, n int) []time.Time {
	tb.Helper()
	var at []time.Time
	envoytest.Eventually(tb, deadline, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.asked) < n {
			return errNotYet
		}
		at = append(at[:0], s.asked...)
		return nil
	})
	return at
}

// TestRetryDelayIsHonoured: a host does not reconnect before the retry delay; then it does,
// and is served.
func TestRetryDelayIsHonoured(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	const hint = 3 * time.Second
	s := newServer(t)
	s.refuse(full(t, hint))
	h := newHost(t, s.addr)
	r, _ := h.relay()
	at := s.refusedAt(t, 2)
	if apart := at[1].Sub(at[0]); apart < hint {
		t.Errorf("asked again after %s, not %s", apart, hint)
	}
	if why := r.Status().Upstream.LastError; !strings.Contains(why, "control plane is at a limit") || !strings.Contains(why, "retrying in about 3s") {
		t.Errorf("the status says %q", why)
	}
	s.refuse(nil)
	s.streamed(t, 1)
}

// TestRetryDelayIsPerServer: a server that rejects a host does not keep it from another
// server, and is not tried before its delay has passed.
func TestRetryDelayIsPerServer(t *testing.T) {
	t.Parallel()
	busy, other := newServer(t), newServer(t)
	busy.refuse(full(t, time.Hour))
	h := newHost(t, busy.addr, other.addr)
	other.kill()
	h.relay()
	busy.refusedAt(t, 1)
	other.start() // it has been tried in vain until now
	other.streamed(t, 1)
	if n := len(busy.refusedAt(t, 1)); n != 1 {
		t.Errorf("the server that rejected was asked %d times", n)
	}
}

// TestAllServersReject: if all servers reject, the one with the shortest delay is tried first,
// at its time.
func TestAllServersReject(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	const hint = 2 * time.Second
	long, short := newServer(t), newServer(t)
	long.refuse(full(t, time.Hour))
	short.refuse(full(t, hint))
	newHost(t, long.addr, short.addr).relay()
	at := short.refusedAt(t, 3)
	for i := range at[1:] {
		if apart := at[i+1].Sub(at[i]); apart < hint {
			t.Errorf("asked again after %s, not %s", apart, hint)
		}
	}
	if n := len(long.refusedAt(t, 1)); n != 1 {
		t.Errorf("the other one was asked %d times", n)
	}
	short.refuse(nil)
	short.streamed(t, 1)
}

func TestRetryTimes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := retryTimes{}
	left := func(what, server string, want time.Duration) {
		t.Helper()
		if got := p.remaining(server, now); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	left("never rejected", "a", 0)
	p.note("a", full(t, 4*time.Second), now, 0)
	left("not spread", "a", 4*time.Second)
	p.note("a", full(t, 4*time.Second), now, 1)
	left("spread", "a", 5*time.Second)
	p.note("b", full(t, time.Hour), now, 0)
	left("too long", "b", maxRetryDelay)
	p.note("c", full(t, -time.Hour), now, 0)
	left("negative", "c", 0)
	if got := p.soonest([]string{"b", "a"}, now); got != 5*time.Second {
		t.Errorf("the soonest in %s", got)
	}
	if got := p.soonest([]string{"b", "c", "a"}, now); got != 0 {
		t.Errorf("one may be asked, and the soonest in %s", got)
	}
	p.note("a", errors.New("connection refused"), now, 1)
	left("another fault", "a", 0)
}
