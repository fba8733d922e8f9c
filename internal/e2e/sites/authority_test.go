package sites

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// TestOtherAuthority has site b's server make an authority of its own, because nobody copied the other
// one. Each site goes on by itself, and trusts no host of the other one. What the page says makes them
// one mesh: the authority is copied, and all hosts of site b join again with an empty state directory.
func TestOtherAuthority(t *testing.T) {
	s := newShape(t, shape{own: true})
	s.start()
	s.b.awaitAny(ledger, "orders-b1", "orders-b2")
	for text, n := range s.a.tally(ledger, 10) {
		t.Logf("%d times: %s", n, text)
		if !strings.HasPrefix(text, "error: status 503") {
			t.Errorf("a host of another authority is trusted: %s", text)
		}
	}
	s.a.awaitOnly(orders, "orders-a1", "orders-a2")
	s.b.Server.Stop()
	if err := os.Rename(s.b.StateDir("server"), s.b.StateDir("server")+".old"); err != nil {
		t.Fatal(err)
	}
	s.copyAuthority(s.b)
	s.startServer(s.b)
	var all sync.WaitGroup
	for _, h := range s.b.hosts {
		all.Go(h.Agent.Stop)
	}
	all.Wait()
	for label, h := range s.b.hosts {
		h.Rejoin()
		s.b.startHost(label)
	}
	s.b.AwaitLive(s.b.labels()...)
	s.a.awaitAny(ledger, "orders-b1", "orders-b2")
}
