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

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// After any sequence of changes, reconnects, slow peers, NACKs and held removals, a stream
// has exactly what a new one is sent, to the byte.
func TestRandomHistoriesEqualFreshStream(t *testing.T) {
	t.Parallel()
	seeds := uint64(8)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed-", seed), func(t *testing.T) {
			t.Parallel()
			runHistory(t, seed, 45, 60)
		})
	}
}

// The same with many streams at once, for the race detector.
func TestManyStreamsEqualFreshStream(t *testing.T) {
	t.Parallel()
	streams := 200
	if testing.Short() && !race.Enabled {
		streams = 50
	}
	runHistory(t, 100, streams, 40)
}

// randomProxy is a proxy to which random things happen.
type randomProxy struct {
	*proxy

	stopped  chan struct{} // or nil
	rejected bool          // it rejected something on this stream
}

// runHistory runs a random history of a fleet, from the first connection on.
func runHistory(t *testing.T, seed uint64, streams, steps int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 9))
	c := newRandomMesh(seed)
	r := newRig(t, nil, func(cfg *Config) {
		a := &fakeAdmission{}
		a.peer.Store(c.peer())
		cfg.Admission, cfg.MaxPerHost = a, 1<<20
		cfg.GateTimeout = 500 * time.Millisecond // some do not answer for longer
	})
	r.mesh.publish(c.snapshot(nil))
	var all []*randomProxy
	for _, p := range fleetOf(t, c.proxies, streams) {
		p.open(r)
		all = append(all, &randomProxy{proxy: p})
	}
	for step := range steps {
		for range 1 + rnd.IntN(3) {
			all[rnd.IntN(streams)].step(rnd, r)
		}
		for range 1 + rnd.IntN(2)*rnd.IntN(4) {
			c.change()
		}
		r.mesh.publish(c.snapshot(r.mesh.Snapshot()))
		next := r.mesh.Snapshot().Generation
		eventually(t, "the snapshot is seen", func() bool { return r.server.updatedTo.Load() == next || step%3 == 0 })
		if p := all[rnd.IntN(streams)]; p.readsAndAccepts() && len(c.missing) == 0 && step%3 == 2 { // let some of it be applied
			p.waitConverged(r)
		}
	}
	c.missing = nil
	r.mesh.publish(c.snapshot(r.mesh.Snapshot()))
	for _, p := range all {
		p.acceptAll(r)
	}
	for _, p := range all {
		p.waitConverged(r)
	}
	eventually(t, "no change is waited for", func() bool {
		return !slices.ContainsFunc(r.server.Rollouts(), func(x Rollout) bool { return x.Done.IsZero() })
	})
	for i, p := range fleetOf(t, c.proxies, streams) { // new proxies, for comparison
		if i%5 > 0 {
			continue
		}
		p.open(r)
		p.waitConverged(r)
		got, want := all[i].content(), p.content()
		was := all[i].routeForms()
		for layer, form := range p.routeForms() {
			if was[layer] != form { // it kept its form, and was compared already
				dropRouteConfig(strings.TrimPrefix(layer, view.RoutesLayer), got, want)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("stream %d (-want +got):\n%.2000s", i, cmp.Diff(want, got))
		}
	}
}

// dropRouteConfig removes a route configuration from what proxies have.
func dropRouteConfig(routeConfig string, contents ...map[string]string) {
	for _, c := range contents {
		maps.DeleteFunc(c, func(name, _ string) bool {
			return name == stream.RouteType.Short()+" "+routeConfig || strings.HasPrefix(name, stream.VirtualHostType.Short()+" "+routeConfig+vhds.Separator)
		})
	}
}

// step has something happen to the proxy.
func (p *randomProxy) step(rnd *rand.Rand, r *rig) {
	p.t.Helper()
	switch rnd.IntN(5) {
	case 0:
		p.resume()
		_ = p.close()      // it was cancelled
		p.rejected = false // its goroutine has ended
		p.open(r)
	case 1:
		if p.stopped == nil {
			p.stopped = make(chan struct{})
			p.pauseReading(p.stopped)
		}
	case 2:
		p.resume()
	case 3:
		p.reject(byte(1 + rnd.IntN(15)))
	default:
		p.reject(0)
	}
}

// resume has it read again.
func (p *randomProxy) resume() {
	if p.stopped != nil {
		p.pauseReading(nil)
		close(p.stopped)
		p.stopped = nil
	}
}

// reject has it reject a part of what it is sent, chosen by version; nothing if part is
// zero. It accepts route configurations: rejecting these has a test of its own.
func (p *randomProxy) reject(part byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rejectResource = nil; part == 0 {
		return
	}
	p.rejectResource = func(r *stream.Resource) bool {
		bad := r.Version[0]%16 == part
		p.rejected = p.rejected || bad
		return bad
	}
}

// readsAndAccepts reports whether it reads, and has rejected nothing.
func (p *randomProxy) readsAndAccepts() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped == nil && p.rejectResource == nil && !p.rejected
}

// acceptAll has it read and accept everything. It reconnects if it rejected something on
// its stream.
func (p *randomProxy) acceptAll(r *rig) {
	p.t.Helper()
	p.reject(0)
	p.resume()
	p.mu.Lock()
	again := p.rejected
	p.mu.Unlock()
	if again {
		_ = p.close() // it was cancelled
		p.open(r)
	}
}
