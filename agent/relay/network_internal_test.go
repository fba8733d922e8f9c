package relay

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// way is a network to servers that can be cut.
type way struct {
	mu    sync.Mutex // guards all following fields
	up    map[string]bool
	dials int
}

func (w *way) set(server string, up bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up[server] = up
}

// dial answers at once where there is a server, and loses everything where there is none.
func (w *way) dial(ctx context.Context, _, address string) (net.Conn, error) {
	w.mu.Lock()
	up := w.up[address]
	w.dials++
	w.mu.Unlock()
	if up {
		a, b := net.Pipe()
		return a, b.Close()
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// mostReturn is how late a host may try again after a server is back: a look that began before
// needs lookTime, the next one begins within 1.5 times lookEvery, and hosts spread.
const mostReturn = lookTime + lookEvery + lookEvery/2 + returnSpread

// TestLookEndsWithTheFirstServer: a server that does not answer delays nobody whom another answers.
func TestLookEndsWithTheFirstServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &way{up: map[string]bool{"b:1": true}}
		n := network{dial: w.dial}
		began := time.Now()
		if up := n.look(t.Context(), []string{"a:1", "b:1"}); !up || time.Since(began) != 0 {
			t.Errorf("one of two servers is there: %v after %s", up, time.Since(began))
		}
		w.set("b:1", false)
		if up := n.look(t.Context(), []string{"a:1", "b:1"}); up || time.Since(began) != lookTime {
			t.Errorf("no server is there: %v after %s", up, time.Since(began))
		}
	})
}

// TestRestEndsWhenServersReturn: a host that could reach no server notices that one can be
// reached, and only then tries sooner than its back-off says.
func TestRestEndsWhenServersReturn(t *testing.T) {
	t.Parallel()
	servers := []string{"a:1", "b:1"}
	for _, which := range servers {
		synctest.Test(t, func(t *testing.T) {
			w := &way{up: map[string]bool{}}
			n := network{dial: w.dial}
			ctx, cancel := context.WithCancel(t.Context())
			rest := func(d time.Duration) (bool, time.Duration) {
				began := time.Now()
				back := n.rest(ctx, d, servers)
				return back, time.Since(began)
			}
			w.set(which, true)
			for range 3 {
				if back, took := rest(10 * time.Second); back || took != 10*time.Second {
					t.Fatalf("a server that was there all the time is back after %s: %v", took, back)
				}
			}
			w.set(which, false)
			if back, took := rest(10 * time.Second); back || took != 10*time.Second || !n.lost {
				t.Fatalf("nobody is there, and somebody is back after %s: %v", took, back)
			}
			if limit := 2 * (3*6 + 3*20) * 2; w.dials > limit {
				t.Errorf("%d looks in 40 seconds", w.dials)
			}
			time.AfterFunc(5500*time.Millisecond, func() { w.set(which, true) })
			if back, took := rest(time.Minute); !back || took < 5500*time.Millisecond || took > 5500*time.Millisecond+mostReturn {
				t.Fatalf("back after 5.5 s, noticed after %s: %v", took, back)
			}
			if back, took := rest(3 * time.Second); back || took != 3*time.Second {
				t.Fatalf("back a second time after %s: %v", took, back)
			}
			time.AfterFunc(time.Second, cancel)
			if back, took := rest(time.Minute); back || took != time.Second {
				t.Fatalf("the end is noticed after %s: %v", took, back)
			}
		})
	}
}

// TestHostsReturnAtDifferentTimes: when a server is there again, the hosts of a fleet come within
// seven seconds, and not more than one in twenty of them within a tenth of a second.
func TestHostsReturnAtDifferentTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const fleet = 1000
		w := &way{up: map[string]bool{}}
		var mu sync.Mutex
		var at []time.Duration
		var hosts sync.WaitGroup
		began := time.Now()
		const away = 90 * time.Second
		time.AfterFunc(away, func() { w.set("a:1", true) })
		for range fleet {
			n := network{dial: w.dial}
			hosts.Go(func() {
				for !n.rest(t.Context(), 5*time.Second, []string{"a:1"}) {
					if time.Since(began) > 2*away {
						return
					}
				}
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(began)-away)
			})
		}
		hosts.Wait()
		slices.Sort(at)
		if len(at) != fleet || at[0] < 0 || at[fleet-1] > 7*time.Second {
			t.Fatalf("%d hosts, from %s to %s", len(at), at[0], at[len(at)-1])
		}
		for i := range at[:fleet-fleet/20] {
			if at[i+fleet/20]-at[i] < 100*time.Millisecond {
				t.Fatalf("%d of %d hosts come within %s, after %s", fleet/20, fleet, at[i+fleet/20]-at[i], at[i])
			}
		}
		t.Logf("half of the hosts come within %s, all within %s", at[fleet/2], at[fleet-1])
	})
}

// TestHostsLookAtDifferentTimes: hosts that lose a server together do not look for it together.
func TestHostsLookAtDifferentTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Duration
		began := time.Now()
		var hosts sync.WaitGroup
		for range 100 {
			n := network{dial: func(context.Context, string, string) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(began))
				return nil, errors.New("connection refused")
			}}
			hosts.Go(func() { n.rest(t.Context(), 20*time.Second, []string{"a:1"}) })
		}
		hosts.Wait()
		slices.Sort(at)
		for i := range at {
			if at[i] > 5*time.Second && i+40 < len(at) && at[i+40]-at[i] < 100*time.Millisecond {
				t.Fatalf("40 of 100 hosts look within a tenth of a second, after %s", at[i])
			}
		}
	})
}
