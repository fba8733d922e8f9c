package server

import (
	"runtime"
	"testing"
	"time"
)

// Memory is returned when it has been quiet for a while after much was
// allocated: not during a peak, not for little, and not often.
func TestMemoryIsTrimmedAfterAPeak(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	start := time.Unix(1000, 0)
	var (
		w    = memoryTrim{released: start}
		now  = start
		sent uint64
		h    heap
	)
	look := func(send, allocate uint64) bool {
		now = now.Add(checkInterval)
		sent += send
		h.allocated += allocate
		return w.due(now, sent, h)
	}
	for range 20 {
		if look(50*mb, 100*mb) {
			t.Fatal("during a peak")
		}
	}
	for range quietChecks - 1 {
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
		if now.Sub(from) > 10*trimInterval {
			t.Fatal("never again")
		}
	}
	if d := now.Sub(from); d < trimInterval {
		t.Fatalf("again after %s", d)
	}
	h.live = 1000 * mb
	for range 20 {
		if look(0, 20*mb) {
			t.Fatal("for little of what is in use")
		}
	}
	if !look(0, 100*mb) {
		t.Fatal("not for half of it")
	}
}

func TestReadHeap(t *testing.T) {
	t.Parallel()
	before := readHeap()
	kept := make([]byte, 8<<20)
	runtime.GC()
	after := readHeap()
	if after.allocated-before.allocated < uint64(len(kept)) || after.live < uint64(len(kept)) {
		t.Errorf("8 MB were allocated: %+v before, %+v after", before, after)
	}
	runtime.KeepAlive(kept)
}
