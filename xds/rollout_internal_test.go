package xds

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/cache"
)

// TestClassesOfARollout: proxies of equal configuration are one class, of which the first and the
// last answer are known; classes are bounded, and there are none without an observer.
func TestClassesOfARollout(t *testing.T) {
	t.Parallel()
	begin := func(observed bool) *rollout {
		n := newRollouts().begin(&mesh.Snapshot{Generation: 2}, time.Now(), 1000)
		if observed {
			n.observe()
		}
		return n
	}
	shared := &cache.Resources{}
	n := begin(true)
	var waits []awaited
	for _, name := range []string{"a", "b", "c"} {
		w := n.addAffected(&conn{nodeID: name}, shared)
		waits = append(waits, w)
		w.sent(time.Now())
	}
	for range maxRolloutClasses + 5 {
		n.addAffected(&conn{nodeID: "other"}, &cache.Resources{}).removeAffected()
	}
	n.allUpdated(Work{})
	waits[0].answered(nil)
	first := n.copy().Classes[0]
	waits[1].removeAffected()
	waits[2].answered(make([]ProxyRejection, 1))
	r := n.copy()
	if len(r.Classes) != maxRolloutClasses || r.ClassesMore != 6 || r.Done.IsZero() || r.Updated.IsZero() {
		t.Errorf("%d classes, %d proxies in others, done %s, updated %s", len(r.Classes), r.ClassesMore, r.Done, r.Updated)
	}
	switch c := r.Classes[0]; {
	case c.Proxy != "a" || c.Proxies != 3 || c.Rejected != 1:
		t.Errorf("the class is %+v", c)
	case c.Sent.IsZero() || c.First.Before(c.Sent) || !c.First.Equal(first.First) || !c.Last.After(c.First):
		t.Errorf("sent %s, first answer %s, last %s; after the first answer it was %+v", c.Sent, c.First, c.Last, first)
	}
	alone := begin(false)
	w := alone.addAffected(&conn{nodeID: "a"}, shared)
	w.sent(time.Now())
	alone.allUpdated(Work{})
	w.answered(nil)
	if r := alone.copy(); len(r.Classes) != 0 || r.ClassesMore != 0 || r.Done.IsZero() {
		t.Errorf("nobody observes: %+v", r)
	}
}
