package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// After any changes of anything, reconnects, slow times, refusals and times in
// which nothing may be removed, a stream has exactly what a fresh one is given,
// to the byte.
func TestRandomHistoriesEqualFreshStream(t *testing.T) {
	t.Parallel()
	seeds := uint64(8)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed-", seed), func(t *testing.T) {
			t.Parallel()
			history(t, seed, 45, 60)
		})
	}
}

// The same with many streams at a time, for the race detector above all.
func TestManyStreamsEqualFreshStream(t *testing.T) {
	t.Parallel()
	history(t, 100, 200, 40)
}

// traveller is a proxy with a history.
type traveller struct {
	*proxy

	stopped chan struct{} // or nil
	refused bool          // something, on this stream
}

// history is that of a fleet, from the first connection on.
func history(t *testing.T, seed uint64, streams, steps int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 9))
	c := newCountry(seed)
	r := newRig(t, nil, func(cfg *Config) {
		a := &fakeAdmission{}
		a.peer.Store(c.peer())
		cfg.Admission, cfg.MaxPerHost = a, 1<<20
		cfg.GateTimeout = 500 * time.Millisecond // some do not answer for longer
	})
	r.mesh.publish(c.snapshot(nil))
	var all []*traveller
	for _, p := range fleetOf(t, c.homes, streams) {
		p.open(r)
		all = append(all, &traveller{proxy: p})
	}
	for step := range steps {
		for range 1 + rnd.IntN(3) {
			all[rnd.IntN(streams)].live(rnd, r)
		}
		for range 1 + rnd.IntN(2)*rnd.IntN(4) {
			c.change()
		}
		r.mesh.publish(c.snapshot(r.mesh.Snapshot()))
		next := r.mesh.Snapshot().Generation
		eventually(t, "the snapshot is seen", func() bool { return r.server.updatedTo.Load() == next || step%3 == 0 })
		if p := all[rnd.IntN(streams)]; p.follows() && len(c.missing) == 0 && step%3 == 2 { // let some of it arrive
			p.inStep(r)
		}
	}
	c.missing = nil
	r.mesh.publish(c.snapshot(r.mesh.Snapshot()))
	for _, p := range all {
		p.peace(r)
	}
	for _, p := range all {
		p.inStep(r)
	}
	eventually(t, "no change is waited for", func() bool {
		return !slices.ContainsFunc(r.server.Rollouts(), func(x Rollout) bool { return x.Done.IsZero() })
	})
	for i, p := range fleetOf(t, c.homes, streams) { // those have no history
		if i%5 > 0 {
			continue
		}
		p.open(r)
		p.inStep(r)
		got, want := all[i].content(), p.content()
		was := all[i].has()
		for layer, form := range p.has() {
			if was[layer] != form { // it stayed as that one has it, and each was compared already
				dropTable(strings.TrimPrefix(layer, view.RoutesLayer), got, want)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("stream %d (-want +got):\n%.2000s", i, cmp.Diff(want, got))
		}
	}
}

// dropTable takes a route table out of what proxies have.
func dropTable(table string, contents ...map[string]string) {
	for _, c := range contents {
		maps.DeleteFunc(c, func(name, _ string) bool {
			return name == stream.RouteType.Short()+" "+table || strings.HasPrefix(name, stream.VirtualHostType.Short()+" "+table+vhds.Separator)
		})
	}
}

// live has something happen to a proxy.
func (p *traveller) live(rnd *rand.Rand, r *rig) {
	p.t.Helper()
	switch rnd.IntN(5) {
	case 0:
		p.goOn()
		_ = p.close()     // it was cancelled
		p.refused = false // its goroutine has ended
		p.open(r)
	case 1:
		if p.stopped == nil {
			p.stopped = make(chan struct{})
			p.stop(p.stopped)
		}
	case 2:
		p.goOn()
	case 3:
		p.refuses(byte(1 + rnd.IntN(15)))
	default:
		p.refuses(0)
	}
}

// goOn has it read again.
func (p *traveller) goOn() {
	if p.stopped != nil {
		p.stop(nil)
		close(p.stopped)
		p.stopped = nil
	}
}

// refuses has it refuse a part of what it is sent, by version; nothing if that is
// zero. Route tables it takes: refusing one of these has a test of its own.
func (p *traveller) refuses(part byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dislike = nil; part == 0 {
		return
	}
	p.dislike = func(r *stream.Resource) bool {
		bad := r.Version[0]%16 == part
		p.refused = p.refused || bad
		return bad
	}
}

// follows reports whether it reads, and has refused nothing.
func (p *traveller) follows() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped == nil && p.dislike == nil && !p.refused
}

// peace has it read, and refuse nothing any more, nor have refused anything on the
// stream that it has.
func (p *traveller) peace(r *rig) {
	p.t.Helper()
	p.refuses(0)
	p.goOn()
	p.mu.Lock()
	again := p.refused
	p.mu.Unlock()
	if again {
		_ = p.close() // it was cancelled
		p.open(r)
	}
}
