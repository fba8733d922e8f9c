package server

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Memory is returned to the system after a peak (docs/adr/0044-memory-after-a-wave.md):
// garbage, and pooled buffers of the transport.
const (
	checkInterval = 2 * time.Second
	quietChecks   = 3         // in a row, until a peak is over
	quietBytes    = 256 << 10 // the most that is sent between two quiet checks
	minAllocated  = 64 << 20  // the least that was allocated, or half of what is in use if that is more
	trimInterval  = 15 * time.Second
	floodInterval = 4 * time.Second // after a flood of unauthenticated connections
)

// memoryTrim finds the end of a peak: many proxies that connected, or a large change.
type memoryTrim struct {
	sent       uint64 // bytes to proxies, up to the last check
	allocated  uint64 // bytes, up to the last trim
	released   time.Time
	quiet      int  // checks
	floodEnded bool // many unauthenticated connections have ended
}

// heap has the bytes that were allocated since the start, and those in use.
type heap struct{ allocated, live uint64 }

// due reports whether to return memory now, given the bytes that were sent since the start.
func (w *memoryTrim) due(now time.Time, sent uint64, h heap) bool {
	if sent-w.sent <= quietBytes {
		w.quiet++
	} else {
		w.quiet = 0
	}
	w.sent = sent
	if w.quiet < quietChecks || h.allocated-w.allocated < max(minAllocated, h.live/2) || now.Sub(w.released) < trimInterval {
		return false
	}
	w.allocated, w.released = h.allocated, now
	return true
}

// trimMemory returns memory to the system after peaks, until ctx ends.
func (s *Server) trimMemory(ctx context.Context) error {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	w := memoryTrim{released: s.started}
	for {
		release := false
		select {
		case <-ctx.Done():
			return nil
		case <-s.hosts.acceptor.Calm():
			w.floodEnded = true
		case now := <-tick.C:
			release = w.due(now, s.sentBytes(), readHeap())
		}
		if release || w.dueAfterFlood(time.Now()) {
			runtime.GC() // FreeOSMemory collects again: two collections empty a pool
			debug.FreeOSMemory()
		}
	}
}

// dueAfterFlood reports whether to return memory because many unauthenticated connections have
// ended, whatever else happens.
func (w *memoryTrim) dueAfterFlood(now time.Time) bool {
	if !w.floodEnded || now.Sub(w.released) < floodInterval {
		return false
	}
	w.floodEnded, w.released = false, now
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
