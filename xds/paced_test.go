package xds

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// paying counts what it is told.
type paying struct {
	Snapshots
	told []time.Duration
}

func (p *paying) Pushed(took time.Duration) { p.told = append(p.told, took) }

// TestPaced tells the source of the snapshots what one cost, once, when half of
// the proxies have answered.
func TestPaced(t *testing.T) {
	t.Parallel()
	p := &paying{}
	n := newRollouts(p).begin(&mesh.Snapshot{Generation: 2}, time.Now().Add(-time.Minute), 4)
	for range 4 {
		n.touch()
	}
	n.answered(nil)
	n.seen(Work{})
	if len(p.told) != 0 {
		t.Errorf("told %v when one of four had answered", p.told)
	}
	n.answered(nil)
	n.answered(nil)
	n.answered(nil)
	if len(p.told) != 1 || p.told[0] < time.Minute {
		t.Errorf("told %v", p.told)
	}
	untouched := newRollouts(p).begin(&mesh.Snapshot{Generation: 3}, time.Now(), 4)
	untouched.seen(Work{})
	if len(p.told) != 2 {
		t.Errorf("told %v of one that touches nobody", p.told)
	}
	newRollouts(nil).begin(&mesh.Snapshot{}, time.Now(), 0).seen(Work{}) // nobody wants to know
}
