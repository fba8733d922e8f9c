package view

import (
	"fmt"
	"runtime"
	"testing"
	"weak"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestSnapshotsAreLetGo has endpoints flap behind a host that a namespace has
// twice: nothing may keep the snapshots that are past.
func TestSnapshotsAreLetGo(t *testing.T) {
	t.Parallel()
	f := town(t)
	s := f.w.service("ns0", "b.ns0.svc.cluster.local", 8080)
	s.Name = "again"
	s.Inline, s.Selector = nil, map[string]string{"app": "b"}
	x := NewIndex(f.next())
	f.look(x)
	var past []weak.Pointer[mesh.Snapshot]
	for i := range 50 {
		past = append(past, weak.Make(f.s))
		w := *f.w.f.Workloads[2] // of b
		w.Weight = uint32(i%7 + 2)
		f.w.f.Workloads[2] = &w
		x = x.Next(f.next())
		f.look(x)
	}
	runtime.GC()
	alive := 0
	for _, p := range past {
		if p.Value() != nil {
			alive++
		}
	}
	if alive > 1 {
		t.Errorf("%d of %d past snapshots are alive", alive, len(past))
	}
	for i, p := range f.proxies {
		if d := differenceOf(NewIndex(f.s).Build(p), f.views[i]); d != "" {
			t.Errorf("%s: %s", p.ID, d)
		}
	}
	runtime.KeepAlive(x)
}

// TestPlacesAreLetGo has proxies come and go in a mesh in which nothing changes,
// each from a place that nobody has heard of: a proxy may say what it likes.
func TestPlacesAreLetGo(t *testing.T) {
	t.Parallel()
	f := town(t)
	f.w.rule("ns0", "b", `{"host":"b.ns0.svc.cluster.local","trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":1}}}`)
	x := NewIndex(f.next())
	f.look(x)
	for i := range 1000 {
		p := f.proxies[0]
		p.Locality = mesh.Locality{Region: fmt.Sprintf("r%d", i)}
		x.Build(p) // and it is gone
		if i%100 == 0 {
			runtime.GC()
		}
	}
	runtime.GC()
	for _, r := range x.realms.All() {
		if n := len(r.places.All()); n > 1 {
			t.Errorf("%s: %d places are kept for proxies in one", r.key.namespace, n)
		}
	}
	runtime.KeepAlive(f)
}
