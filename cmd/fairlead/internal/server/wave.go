package server

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// What a wave leaves behind is given back once nothing has been going on for a
// while: garbage, and what the transport keeps for the next responses.
const (
	lookEvery    = 2 * time.Second
	quietLooks   = 3         // in a row, until a wave is over
	quietBytes   = 256 << 10 // the most that is sent between two quiet looks
	worthBytes   = 64 << 20  // the least that was allocated, lest it be done for nothing
	releaseEvery = 30 * time.Second
)

// wave finds the end of a wave: many proxies that came, or a large change.
type wave struct {
	sent      uint64 // bytes to proxies, up to the last look
	allocated uint64 // bytes, up to the last release
	released  time.Time
	quiet     int // looks
}

// over reports whether memory is to be given back now, given what was sent and
// allocated since the start.
func (w *wave) over(now time.Time, sent, allocated uint64) bool {
	if sent-w.sent <= quietBytes {
		w.quiet++
	} else {
		w.quiet = 0
	}
	w.sent = sent
	if w.quiet < quietLooks || allocated-w.allocated < worthBytes || now.Sub(w.released) < releaseEvery {
		return false
	}
	w.allocated, w.released = allocated, now
	return true
}

// followWaves gives memory back after waves, until ctx ends.
func (s *Server) followWaves(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	w := wave{released: s.started}
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if w.over(now, s.sentBytes(), allocatedBytes()) {
				runtime.GC() // pools are emptied in two
				debug.FreeOSMemory()
			}
		}
	}
}

func (s *Server) sentBytes() uint64 {
	var n uint64
	for _, a := range s.xds.Work().Sent {
		n += a.Bytes
	}
	return n
}

func allocatedBytes() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
