package issue

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/refusals"
)

// TestNobodyPushesOutAHost: neither unauthenticated peers nor another host, however
// many reasons they are refused for.
func TestNobodyPushesOutAHost(t *testing.T) {
	t.Parallel()
	for _, loud := range []string{"", "web-2"} {
		s := &Service{}
		s.note(Refusal{Peer: "127.0.0.1:1", Host: "web-1", Reason: "join token has expired"}, time.Now())
		for i := range 2 * refusals.Max {
			s.note(Refusal{Peer: "127.0.0.2:1", Host: loud, Reason: fmt.Sprintf("certificate request of %d bytes", i)}, time.Now())
		}
		if all := s.Refusals(); len(all) != refusals.Max || !slices.ContainsFunc(all, func(x Refusal) bool { return x.Host == "web-1" }) {
			t.Errorf("%q: %d are listed, want %d with web-1 among them", loud, len(all), refusals.Max)
		}
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
		s.note(Refusal{Peer: c.first, Reason: "no token"}, now)
		if news := s.note(Refusal{Peer: c.second, Reason: "no token"}, now); news == c.one {
			t.Errorf("%s after %s: news %v", c.second, c.first, news)
		}
	}
}
