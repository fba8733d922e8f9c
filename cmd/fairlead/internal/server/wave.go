package server

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// What a wave leaves behind is given back (docs/adr/0044-memory-after-a-wave.md) once nothing has been going on for a
// while: garbage, and what the transport keeps for the next responses.
const (
	lookEvery    = 2 * time.Second
	quietLooks   = 3         // in a row, until a wave is over
	quietBytes   = 256 << 10 // the most that is sent between two quiet looks
	worthBytes   = 64 << 20  // the least that was allocated, or half of what is in use if that is more
	releaseEvery = 15 * time.Second
	calmEvery    = 4 * time.Second // after connections that were not authenticated
)

// wave finds the end of a wave: many proxies that came, or a large change.
type wave struct {
	sent      uint64 // bytes to proxies, up to the last look
	allocated uint64 // bytes, up to the last release
	released  time.Time
	quiet     int  // looks
	calm      bool // many unauthenticated connections have gone
}

// heap is what was allocated since the start, and what of it is in use.
type heap struct{ allocated, live uint64 }

// over reports whether memory is to be given back now, given the bytes that were
// sent since the start.
func (w *wave) over(now time.Time, sent uint64, h heap) bool {
	if sent-w.sent <= quietBytes {
		w.quiet++
	} else {
		w.quiet = 0
	}
	w.sent = sent
	if w.quiet < quietLooks || h.allocated-w.allocated < max(worthBytes, h.live/2) || now.Sub(w.released) < releaseEvery {
		return false
	}
	w.allocated, w.released = h.allocated, now
	return true
}

// followWaves gives memory back after waves, until ctx ends.
func (s *Server) followWaves(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	w := wave{released: s.started}
	for {
		release := false
		select {
		case <-ctx.Done():
			return nil
		case <-s.hosts.acceptor.Calm():
			w.calm = true
		case now := <-tick.C:
			release = w.over(now, s.sentBytes(), readHeap())
		}
		if release || w.afterCalm(time.Now()) {
			runtime.GC() // pools are emptied in two
			debug.FreeOSMemory()
		}
	}
}

// afterCalm reports whether memory is to be given back because many
// unauthenticated connections have gone, whatever else is going on.
func (w *wave) afterCalm(now time.Time) bool {
	if !w.calm || now.Sub(w.released) < calmEvery {
		return false
	}
	w.calm, w.released = false, now
	return true
}

func (s *Server) sentBytes() uint64 {
	var n uint64
	for _, a := range s.xds.Work().Sent {
		n += a.Bytes
	}
	return n
}

func readHeap() heap {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return heap{sample[0].Value.Uint64(), sample[1].Value.Uint64()}
}
