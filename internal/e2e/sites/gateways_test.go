package sites

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
)

// TestTwoGateways has site b's second gateway be killed, be stopped, and lose its power, under requests from
// site a. They go on through the first one, by retries and outlier detection.
func TestTwoGateways(t *testing.T) {
	s := newShape(t, shape{two: true})
	s.start()
	s.a.awaitAny(ledger, "orders-b1", "orders-b2")
	second := s.b.edges[1]
	s.awaitPassing(second)
	load := s.a.ask.StartLoad(t, ledger, rate)
	step := func(name string, requests int, do func()) {
		load.Wait(t, rate)
		before, began := load.Now(), time.Now()
		do()
		load.Wait(t, requests)
		r := load.Now()
		failed, last := r.Failed-before.Failed, max(0, r.LastFailure.Sub(began))
		t.Logf("%s: %d of %d requests failed, the last after %s: %v", name, failed, failed+r.Good-before.Good, last, r.Errors)
		if last > failoverWithin {
			t.Errorf("%s: a request failed after %s: %v", name, last, r.Errors)
		}
	}
	step("killed", 3*rate, func() { s.b.kill(second.Label) })
	s.b.startHost(second.Label)
	s.awaitPassing(second)
	step("stopped", 3*rate, second.Agent.Stop)
	s.b.startHost(second.Label)
	s.awaitPassing(second)
	step("without power", 8*rate, func() { s.between.Unplug(second.Host) }) // longer than an ejection
}

// awaitPassing waits until a gateway of site b passes requests of site a.
func (s *sites) awaitPassing(edge *hosttest.Host) {
	s.t.Helper()
	passed := func() int {
		one, err1 := s.b.passes(edge, "9080", "ledger", "orders-b1", sinceEver)
		two, err2 := s.b.passes(edge, "9080", "ledger", "orders-b2", sinceEver)
		if errors.Join(err1, err2) != nil {
			return -1 // it has just started
		}
		return one + two
	}
	before := passed()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		s.a.tally(ledger, 50)
		if now := passed(); now <= before {
			return fmt.Errorf("%s has passed %d connections, before %d", edge.Label, now, before)
		}
		return nil
	})
}
