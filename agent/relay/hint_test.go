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
)

// full is what a server says that has too many streams.
func full(tb testing.TB, after time.Duration) error {
	tb.Helper()
	st, err := status.New(codes.ResourceExhausted, "full").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	if err != nil {
		tb.Fatal(err)
	}
	return st.Err()
}

// refuse has every stream refused, or none with a nil error.
func (s *fakeServer) refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = err
}

// refusedAt waits until so many streams were refused, and says when.
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

// Nobody comes back earlier than the server asked; then he does, and is served.
func TestHintIsHonoured(t *testing.T) {
	t.Parallel()
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

// A server that refuses does not keep a host from another one, nor is it asked
// again in the meantime.
func TestHintIsOfOneServer(t *testing.T) {
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
		t.Errorf("the one that refused was asked %d times", n)
	}
}

// Where all refuse, the one that is to be asked first is asked first, at its time.
func TestEveryServerRefuses(t *testing.T) {
	t.Parallel()
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

func TestPauses(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := pauses{}
	left := func(what, server string, want time.Duration) {
		t.Helper()
		if got := p.left(server, now); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	left("never refused", "a", 0)
	p.note("a", full(t, 4*time.Second), now, 0)
	left("not spread", "a", 4*time.Second)
	p.note("a", full(t, 4*time.Second), now, 1)
	left("spread", "a", 5*time.Second)
	p.note("b", full(t, time.Hour), now, 0)
	left("too long", "b", maxHint)
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
