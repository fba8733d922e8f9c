package issue

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestUnauthenticatedPeersPushOutNoHost(t *testing.T) {
	t.Parallel()
	r, now := &refusals{}, time.Now()
	r.add(Refusal{Time: now, Peer: "127.0.0.1:1", Host: "web-1", Reason: "join token has expired"})
	for i := range 2 * maxRefusals {
		r.add(Refusal{Time: now, Peer: fmt.Sprintf("127.0.0.2:%d", i), Reason: fmt.Sprintf("certificate request of %d bytes", i)})
	}
	if len(r.list) != maxRefusals || !slices.ContainsFunc(r.list, func(x Refusal) bool { return x.Host == "web-1" }) {
		t.Errorf("%d are kept, and the first is %+v: want %d with web-1 among them", len(r.list), r.list[0], maxRefusals)
	}
	for i := range 2 * maxRefusals {
		r.add(Refusal{Time: now, Host: fmt.Sprintf("host-%d", i), Reason: "join token has expired"})
	}
	if last := r.list[len(r.list)-1]; len(r.list) != maxRefusals || last.Host != fmt.Sprintf("host-%d", 2*maxRefusals-1) {
		t.Errorf("%d are kept, the last is %+v", len(r.list), last)
	}
}

// Peers without a certificate are counted by the machine that they may be: its rate,
// and what is kept of its refusals.
func TestUnauthenticatedPeersAreCountedByMachine(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		first, second string
		one           bool
	}{
		{"10.1.2.3:4", "10.1.2.3:5", true},
		{"10.1.2.3:4", "[::ffff:10.1.2.3]:5", true},
		{"10.1.2.3:4", "10.1.2.4:4", false},
		{"[2001:db8::1]:4", "[2001:db8::ffff:1:2:3]:5", true},
		{"[2001:db8::1]:4", "[2001:db8:0:1::1]:4", false},
	} {
		s := &Service{unauthenticated: newLimiter(1, 1)}
		if !s.allow(call{addr: c.first}, now) {
			t.Fatalf("%s: its first request is refused", c.first)
		}
		if got := s.allow(call{addr: c.second}, now); got == c.one {
			t.Errorf("%s after %s: allowed %v", c.second, c.first, got)
		}
		s.refusals.add(Refusal{Time: now, Peer: c.first, Reason: "no token"})
		if news := s.refusals.add(Refusal{Time: now, Peer: c.second, Reason: "no token"}); news == c.one {
			t.Errorf("%s after %s: news %v", c.second, c.first, news)
		}
	}
}
