package xds

import (
	"runtime"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// A peer whose identity is revoked while it waits for an admission slot is sent nothing.
func TestRevokedBeforeAdmission(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	r := newRig(t, smallmesh.Shop(), func(c *Config) { c.MaxNew, c.slotIdle = 1, time.Hour })
	r.connectWith(t, node("orders", "127.0.0.12"), nil, &agent{neverReads: true}) // has the only slot, for 5 s
	eventually(t, "connected", func() bool { return len(r.server.connections()) == 1 })
	revoked := make(chan struct{})
	p := *r.admission.peer.Load()
	p.Revoked = revoked
	r.admission.peer.Store(&p)
	a := r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{})
	eventually(t, "both have connected", func() bool { return len(r.server.receiveSlots) == 1 && r.server.streams.Load() == 2 })
	close(revoked)
	<-a.err
	if a.received() > 0 {
		t.Errorf("%d resources went to an identity that was revoked while it waited", a.received())
	}
}

// A proxy that does not answer holds a bounded number of rollouts.
func TestUnansweredRolloutsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), nil)
	r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{slow: make(chan struct{})})
	eventually(t, "connected", func() bool { return len(r.server.connections()) == 1 })
	c := r.server.connections()[0]
	eventually(t, "looked", func() bool { return c.current.Load() != nil })
	s := r.mesh.Snapshot()
	for i := range 200 {
		next := smallmesh.Shop()
		if i%2 == 0 {
			next.Service("new", 9000)
		}
		s = next.Snapshot(s)
		r.mesh.publish(s)
		eventually(t, "announced", func() bool { return r.server.updatedTo.Load() >= s.Generation })
	}
	c.rolloutsMu.Lock()
	n := len(c.unansweredRollouts)
	c.rolloutsMu.Unlock()
	if n > maxRollouts {
		t.Errorf("a proxy that does not answer holds %d rollouts", n)
	}

	// The edit of somebody else is kept for longer than so many of a namespace, and still waits.
	edit := func(generation uint64, namespace string) *rollout {
		ro := r.server.rollouts.begin(&mesh.Snapshot{Generation: generation, Changes: []mesh.Change{{
			Key: mesh.Key{Kind: mesh.KindVirtualService, Namespace: namespace}, Origin: &mesh.Origin{Path: namespace}, Reach: mesh.ReachConfig,
		}}}, time.Now(), 1)
		c.awaitAnswer(ro, nil)
		ro.allUpdated(Work{})
		return ro
	}
	quiet := edit(1000, "quiet")
	for i := range uint64(2 * maxRollouts) {
		edit(1001+i, "loud")
	}
	if now := quiet.copy(); now.Waiting != 1 || now.Affected != 1 || !now.Done.IsZero() {
		t.Errorf("nobody answered, and the edit is done: %+v", now)
	}
}

// Inline delivery is requested during an update to a newer snapshot: both take effect.
func TestInlineRoutesSurviveConcurrentUpdate(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), nil)
	r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{})
	r.synced(t, "web.shop")
	c := r.server.connections()[0]
	c.mu.Lock() // deliverInline waits here during an update to a newer snapshot
	done := make(chan struct{})
	go func() { c.deliverInline("routes/8080"); close(done) }()
	for range 100 { // until it has the lock to wait for
		runtime.Gosched()
	}
	s := smallmesh.Shop().Snapshot(r.mesh.Snapshot())
	r.mesh.current.Store(s)
	c.rebuild(r.server.cache.At(s), time.Now(), nil)
	c.updatedTo.Store(s.Generation)
	c.mu.Unlock()
	<-done
	if o := c.current.Load(); o.Routes() != c.routes {
		t.Errorf("the proxy is to have %+v and has %+v, until the mesh changes again", c.routes, o.Routes())
	}
}
