package xds

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/internal/smallmesh"
)

// A fleet whose Envoys are slow or away is admitted without delay: an idle stream loses
// its slot. At 5 s each it would take a minute and a half.
func TestIdleStreamsLoseAdmissionSlots(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	const slow = 18
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		admitAll(o)(c)
		c.MaxNew = 1
	})
	all := fleet(t, o, slow+1)
	for i, p := range all[:slow] {
		p.pauseReading(make(chan struct{})) // it sends its requests and reads nothing
		p.open(r)
		eventually(t, "it has come", func() bool { return r.server.streams.Load() == int64(i+1) })
	}
	began := time.Now()
	all[slow].open(r)
	all[slow].waitConverged(r)
	if took := time.Since(began); took > slow*maxSlotTime/2 {
		t.Errorf("the last one was served after %s", took)
	}
}

// A stream keeps its admission slot as long as something happens, but not longer than
// maxSlotTime.
func TestAdmissionSlotEnds(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c := &conn{server: &Server{cfg: Config{slotIdle: time.Second}}, since: began.Add(-time.Hour)} // it has waited
	if at := c.slotEnds(); !at.IsZero() {
		t.Errorf("a stream without a slot has one until %s", at)
	}
	c.hasSlot, c.lastRequest, c.slotUntil = true, began, began.Add(maxSlotTime)
	at := func(what string, want time.Duration) {
		t.Helper()
		if got := c.slotEnds().Sub(began); got != want {
			t.Errorf("%s: the slot ends after %s, not %s", what, got, want)
		}
	}
	at("given", time.Second)
	c.progressAt(began.Add(2 * time.Second))
	at("some was written", 3*time.Second)
	c.lastRequest = began.Add(2500 * time.Millisecond)
	at("a request", 3500*time.Millisecond)
	c.progressAt(began.Add(4900 * time.Millisecond))
	at("in the end", maxSlotTime)
}

// A peer that reads steadily is not slow, however long it takes and however the machine's
// clock is set.
func TestSlowAt(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c := &conn{server: &Server{cfg: Config{SlowTimeout: time.Minute}}, since: began}
	if at := c.slowAt(); !at.IsZero() {
		t.Errorf("nothing is on its way, and too slow at %s", at)
	}
	c.unwritten.Store(10 << 20)
	c.progressAt(began.Add(time.Hour))
	at := c.slowAt()
	if want := began.Add(time.Hour + time.Minute); !at.Equal(want) {
		t.Errorf("too slow at %s, not %s", at, want)
	}
	if at == at.Round(0) { //nolint:staticcheck // with the monotonic clock, or without
		t.Errorf("%s is of the machine's clock", at)
	}
	(&outgoing{conn: c, size: 10 << 20}).Progress()
	if !c.slowAt().Before(at) { // it is not an hour later
		t.Errorf("progress was not noted: %s", c.slowAt())
	}
}

// While others are received, no more is read of a new connection than it takes to know
// that there is a stream.
func TestConnectionsAreReadWithReceiveSlots(t *testing.T) { //nolint:paralleltest // it looks for a goroutine
	o := smallmesh.Shop()
	r := newRig(t, o, func(c *Config) { c.MaxNew = 1 })
	resumed := make(chan struct{}, 8)
	p := *r.admission.peer.Load()
	p.Resume = func() { resumed <- struct{}{} }
	r.admission.peer.Store(&p)
	for range cap(r.server.receiveSlots) {
		r.server.receiveSlots <- struct{}{} // others are received
	}
	a := r.connect(t, node("web", "127.0.0.11"), nil)
	eventually(t, "it waits", func() bool {
		stacks := make([]byte, 1<<20)
		return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("awaitReceiveSlot"))
	})
	if len(resumed) > 0 {
		t.Error("all of the connection is read before there is a slot")
	}
	<-r.server.receiveSlots
	<-resumed
	r.synced(t, "web.shop")
	a.cancel()
	<-a.err
}
