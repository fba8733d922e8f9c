package accept

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// oneCPU is an admission with one slot.
func oneCPU() *admission {
	t := newAdmission()
	t.most = 1
	return t
}

// there is a peer that waits.
func there() bool { return false }

func begun(w *waiter) bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}

// wantBegun says which of several handshakes may have begun.
func wantBegun(t *testing.T, what string, list []*waiter, want ...int) {
	t.Helper()
	var got []int
	for i, w := range list {
		if begun(w) {
			got = append(got, i)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v have begun, want %v", what, got, want)
	}
}

// Handshakes that were begun are finished before others begin.
func TestBegunHandshakesComeFirst(t *testing.T) {
	t.Parallel()
	a := oneCPU()
	list := []*waiter{a.enter("a", false, there), a.enter("a", false, there), a.enter("a", false, there)}
	wantBegun(t, "one CPU", list, 0)
	a.leave()
	wantBegun(t, "the first waits for its peer", list, 0, 1)
	a.resume()
	a.leave()
	wantBegun(t, "the first goes on while the second computes", list, 0, 1)
	a.leave()
	wantBegun(t, "nobody computes", list, 0, 1, 2)
	a.end()
}

// Calls that are answered come before new handshakes, and hold them up for a while
// only: the disk may be what they wait for.
func TestAnswersComeFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := oneCPU()
		defer a.end()
		var done []func()
		for range maxAnswering {
			done = append(done, a.answer())
		}
		w := a.enter("a", false, there)
		if begun(w) {
			t.Fatal("a handshake begins while there is enough to finish")
		}
		done[0]()
		if !begun(w) {
			t.Fatal("a handshake does not begin where there is room")
		}
		done[0]()
		done = append(done, a.answer())
		a.leave()
		if w = a.enter("a", false, there); begun(w) {
			t.Fatal("an answer was counted twice")
		}
		time.Sleep(stallTime) //nolint:forbidigo // of synctest
		synctest.Wait()
		if !begun(w) {
			t.Fatal("a handshake waits for ever for a disk that does not answer")
		}
		a.leave()
		time.Sleep(answerTime) //nolint:forbidigo // of synctest
		synctest.Wait()
		for i := range 100 {
			if !begun(a.enter("a", false, there)) {
				t.Fatalf("answers that take long hold up the handshake after %d others", i)
			}
			a.leave()
		}
		for _, f := range done {
			f()
		}
		if a.answering != 0 {
			t.Errorf("%d answers are counted at the end", a.answering)
		}
	})
}

// Something begins, whatever goes on with those that are not made to wait.
func TestHandshakesBeginInAnyCase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := oneCPU()
		defer a.end()
		a.resume() // and never ends
		var list []*waiter
		for range 5 {
			list = append(list, a.enter("a", false, there))
		}
		wantBegun(t, "at first", list)
		for i := range list {
			time.Sleep(stallTime) //nolint:forbidigo // of synctest
			synctest.Wait()
			n := 0
			for _, w := range list {
				if begun(w) {
					n++
				}
			}
			if n != i+1 {
				t.Fatalf("%d begun after %d", n, i+1)
			}
		}
	})
}

// An address has its turn whatever others have waiting.
func TestAddressesAreServedRoundRobin(t *testing.T) {
	t.Parallel()
	a := oneCPU()
	defer a.end()
	a.enter("busy", false, there)
	for range 1000 {
		a.enter("busy", false, there)
	}
	quiet := a.enter("quiet", false, there)
	for range 2 {
		a.leave()
	}
	if !begun(quiet) {
		t.Error("a quiet address waits behind a busy one")
	}
}

// Addresses of hosts do not wait behind those of others, and not for ever before them.
func TestKnownAddressesComeFirst(t *testing.T) {
	t.Parallel()
	a := oneCPU()
	defer a.end()
	a.enter("x", false, there)
	var others, hosts []*waiter
	for i := range 1000 {
		others = append(others, a.enter(strconv.Itoa(i), false, there))
	}
	for range 30 {
		hosts = append(hosts, a.enter("host", true, there))
	}
	for range 40 {
		a.leave()
	}
	n := 0
	for _, w := range others {
		if begun(w) {
			n++
		}
	}
	if !begun(hosts[len(hosts)-1]) || n < 9 || n > 11 {
		t.Errorf("of 40 a %d are of others than hosts, and the last host's has begun: %t", n, begun(hosts[len(hosts)-1]))
	}
}

// Where clients wait for so long that they give up, who has just come is served.
func TestTheNewestComesFirstWhereAllWaitForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := oneCPU()
		defer a.end()
		var list []*waiter
		for range 4 {
			list = append(list, a.enter("a", false, there))
		}
		a.leave()
		wantBegun(t, "in the order in which they came", list, 0, 1)
		a.stalled.Stop()
		time.Sleep(2 * longTime) //nolint:forbidigo // of synctest
		lost := a.enter("b", false, func() bool { return true })
		list = append(list, a.enter("a", false, there))
		a.leave()
		wantBegun(t, "after a long time", list, 0, 1, 4)
		a.leave()
		if !begun(lost) || !a.forget(lost) {
			t.Error("the only one of an address is not asked whether it is gone")
		}
		a.leave()
		a.leave()
		wantBegun(t, "all", list, 0, 1, 2, 3, 4)
	})
}

// Those that have gone while all wait for long do not fill the queue.
func TestClosedConnectionsLeaveTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := oneCPU()
		defer a.end()
		a.enter("a", false, there)
		var lost []*waiter
		for range sweepMost {
			lost = append(lost, a.enter("a", false, func() bool { return true }))
		}
		a.stalled.Stop()
		time.Sleep(2 * longTime) //nolint:forbidigo // of synctest
		a.enter("a", false, there)
		a.leave()
		for i, w := range lost {
			if !begun(w) || a.forget(w) {
				t.Errorf("number %d still waits, or computes", i)
			}
		}
	})
}

// Whatever happens in whatever order, each turn that is given is one that was asked for, no more
// than there may be compute, and nothing is left at the end.
func TestAdmissionAtRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) { admissionAtRandom(t, seed) }) // no handshake stalls while the test waits for a CPU
	}
}

func admissionAtRandom(t *testing.T, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	a := newAdmission()
	a.most = 1 + r.IntN(3)
	var wait, compute []*waiter
	began := 0
	for range 2000 {
		switch r.IntN(4) {
		case 0, 1:
			wait = append(wait, a.enter(strconv.Itoa(r.IntN(5)), r.IntN(2) == 0, there))
		case 2:
			if len(compute) > 0 {
				a.leave()
				compute = compute[1:]
			}
		case 3:
			if len(wait) > 0 {
				i := r.IntN(len(wait))
				if w := wait[i]; a.forget(w) {
					a.leave() // it was given meanwhile
				}
				wait = append(wait[:i], wait[i+1:]...)
			}
		}
		var still []*waiter
		for _, w := range wait {
			if begun(w) {
				compute, began = append(compute, w), began+1
			} else {
				still = append(still, w)
			}
		}
		if wait = still; a.computing != len(compute) || len(compute) > a.most {
			t.Fatalf("seed %d: %d compute, of %d; %d are counted", seed, len(compute), a.most, a.computing)
		}
		if len(wait) > 0 && len(compute) < a.most {
			t.Fatalf("seed %d: %d wait for nothing", seed, len(wait))
		}
	}
	a.end()
	for range compute {
		a.leave()
	}
	for a.computing > 0 {
		a.leave()
	}
	for i := range a.queues {
		if q := &a.queues[i]; len(q.groups) > 0 || q.order.Len() > 0 || a.waiting() != 0 {
			t.Errorf("seed %d: %d addresses are left", seed, len(q.groups))
		}
	}
	if began == 0 {
		t.Errorf("seed %d: nothing began", seed)
	}
}

func TestKnownAddressesAreBounded(t *testing.T) {
	t.Parallel()
	k, err := newKnown(1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * leastKnown {
		k.Add(strconv.Itoa(i), struct{}{})
		k.Add("often", struct{}{})
	}
	if k.Len() != leastKnown {
		t.Errorf("%d addresses are remembered", k.Len())
	}
	if !k.Contains("often") || k.Contains("0") || !k.Contains(strconv.Itoa(2*leastKnown-1)) {
		t.Error("those that came last are not those that are remembered")
	}
}
