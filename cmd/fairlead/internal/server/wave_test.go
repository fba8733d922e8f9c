package server

import (
	"testing"
	"time"
)

// Memory is given back when it has been quiet for a while after much was
// allocated: not in a wave, not for little, and not often.
func TestWaveIsOver(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	start := time.Unix(1000, 0)
	var (
		w               = wave{released: start}
		now             = start
		sent, allocated uint64
	)
	look := func(send, allocate uint64) bool {
		now = now.Add(lookEvery)
		sent += send
		allocated += allocate
		return w.over(now, sent, allocated)
	}
	for range 20 {
		if look(50*mb, 100*mb) {
			t.Fatal("in a wave")
		}
	}
	for range quietLooks - 1 {
		if look(0, 0) {
			t.Fatal("at once")
		}
	}
	if !look(quietBytes, 0) {
		t.Fatal("not after it")
	}
	for range 30 {
		if look(0, mb) {
			t.Fatal("for little")
		}
	}
	if !look(0, 40*mb) {
		t.Fatal("not for what comes in small pieces")
	}
	look(mb, 100*mb)
	from := w.released
	for !look(0, 0) {
		if now.Sub(from) > 10*releaseEvery {
			t.Fatal("never again")
		}
	}
	if d := now.Sub(from); d < releaseEvery {
		t.Fatalf("again after %s", d)
	}
}

func TestAllocatedBytes(t *testing.T) {
	t.Parallel()
	before := allocatedBytes()
	if kept := make([]byte, 8<<20); allocatedBytes()-before < uint64(len(kept)) {
		t.Error("8 MB were allocated and not counted")
	}
}
