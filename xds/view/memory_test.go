package view

import (
	"fmt"
	"runtime"
	"testing"
	"weak"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestOldSnapshotsAreCollected changes endpoints of a host that a namespace has twice.
// Nothing may keep old snapshots alive.
func TestOldSnapshotsAreCollected(t *testing.T) {
	t.Parallel()
	f := threeNamespaces(t)
	s := f.w.service("ns0", "b.ns0.svc.cluster.local", 8080)
	s.Name = "again"
	s.Inline, s.Selector = nil, map[string]string{"app": "b"}
	x := NewIndex(f.next())
	f.rebuildViews(x)
	var past []weak.Pointer[mesh.Snapshot]
	for i := range 50 {
		past = append(past, weak.Make(f.s))
		w := *f.w.f.Workloads[2] // of b
		w.Weight = uint32(i%7 + 2)
		f.w.f.Workloads[2] = &w
		x = x.Next(f.next())
		f.rebuildViews(x)
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

// TestUnusedLocalitiesAreCollected builds views for proxies with ever new localities,
// because a proxy can report anything. Nothing may keep unused ones alive.
func TestUnusedLocalitiesAreCollected(t *testing.T) {
	t.Parallel()
	f := threeNamespaces(t)
	f.w.rule("ns0", "b", `{"host":"b.ns0.svc.cluster.local","trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":1}}}`)
	x := NewIndex(f.next())
	f.rebuildViews(x)
	for i := range 1000 {
		p := f.proxies[0]
		p.Locality = mesh.Locality{Region: fmt.Sprintf("r%d", i)}
		x.Build(p) // and it is gone
		if i%100 == 0 {
			runtime.GC()
		}
	}
	runtime.GC()
	for _, ss := range x.scopes.All() {
		if n := len(ss.locations.All()); n > 1 {
			t.Errorf("%s: %d places are kept for proxies in one", ss.key.namespace, n)
		}
	}
	runtime.KeepAlive(f)
}
