package xds

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// Who loses its identity while it waits for its turn is sent nothing.
func TestRevokedWhileWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t, shop(), func(c *Config) { c.MaxNew, c.turnIdle = 1, time.Hour })
	r.connectWith(t, node("orders", "127.0.0.12"), nil, &agent{deaf: true}) // has the only turn, for 5 s
	eventually(t, "connected", func() bool { return len(r.server.connections()) == 1 })
	revoked := make(chan struct{})
	p := *r.admission.peer.Load()
	p.Revoked = revoked
	r.admission.peer.Store(&p)
	a := r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{})
	eventually(t, "both are heard", func() bool { return len(r.server.heard) == 1 && r.server.streams.Load() == 2 })
	close(revoked)
	<-a.err
	if a.received() > 0 {
		t.Errorf("%d resources went to an identity that was revoked while it waited", a.received())
	}
}

// A proxy that does not answer holds no more than is remembered.
func TestOwesIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, shop(), nil)
	r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{slow: make(chan struct{})})
	eventually(t, "connected", func() bool { return len(r.server.connections()) == 1 })
	c := r.server.connections()[0]
	eventually(t, "looked", func() bool { return c.current.Load() != nil })
	s := r.mesh.Snapshot()
	for i := range 200 {
		next := shop()
		if i%2 == 0 {
			next.service("new", 9000)
		}
		s = next.snapshot(s)
		r.mesh.publish(s)
		eventually(t, "announced", func() bool { return r.server.looked.Load() >= s.Generation })
	}
	c.owing.Lock()
	n := len(c.owes)
	c.owing.Unlock()
	if n > maxRollouts {
		t.Errorf("a proxy that does not answer holds %d rollouts", n)
	}
}

// A table is to travel whole while a newer snapshot is looked at: both hold.
func TestWholeIsNotLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, shop(), nil)
	r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{})
	r.synced(t, "web.shop")
	c := r.server.connections()[0]
	c.mu.Lock() // whole waits here, while announce looks with a newer snapshot
	done := make(chan struct{})
	go func() { c.whole("routes/8080"); close(done) }()
	for range 100 { // until it has the lock to wait for
		runtime.Gosched()
	}
	s := shop().snapshot(r.mesh.Snapshot())
	r.mesh.current.Store(s)
	c.see(r.server.classes.at(s), time.Now(), nil)
	c.looked.Store(s.Generation)
	c.mu.Unlock()
	<-done
	if o := c.current.Load(); o.key.forms != c.forms {
		t.Errorf("the proxy is to have %+v and has %+v, until the mesh changes again", c.forms, o.key.forms)
	}
}

// A stream that had asked for the snapshot just before has nobody go back to it.
func TestLateSnapshot(t *testing.T) {
	t.Parallel()
	o := shop()
	for i := range 50 {
		o.service(fmt.Sprintf("s%d", i), 8080)
	}
	mc := o.snapshot(nil).MeshConfig
	snap := func(prev *mesh.Snapshot) *mesh.Snapshot {
		return mesh.NewSnapshot(prev, mc, []*mesh.Fragment{{Source: "files", Services: slices.Clone(o.services), Workloads: slices.Clone(o.workloads)}})
	}
	s1 := snap(nil)
	o.service("new", 8080)
	s2 := snap(s1)
	c := &classes{}
	c.at(s1).index()
	e2 := c.at(s2)
	e2.index()
	get := func(e *epoch, i int) sight {
		v, err := c.get(e, view.Proxy{
			ID: strconv.Itoa(i), Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "web"},
			Addresses: []string{"127.0.0.11"}, Interception: view.InterceptNone,
		}, forms{}, sight{})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	keep := []sight{get(e2, 0), get(c.at(s1), 1)} // a stream that had asked for the snapshot just before
	before := e2.index().Stats()
	for i := range 20 {
		keep = append(keep, get(e2, i+2))
	}
	if w := e2.index().Stats().Minus(before); w.VirtualHosts > 60 {
		t.Errorf("each proxy has everything worked out for itself: %+v", w)
	}
	_ = keep
}
