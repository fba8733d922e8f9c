package xds

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// maxRollouts bounds the generations whose fate is remembered.
const maxRollouts = 64

// Rollout is what became of one snapshot at the proxies that were connected when
// it came.
type Rollout struct {
	Generation uint64
	Started    time.Time
	// Changes are the objects that the snapshot changed.
	Changes []mesh.Change
	// Waiting are proxies that have not answered, Touched those that it changed
	// something for, Accepted those of them that took all of it. Counts.
	Waiting, Touched, Accepted int
	// Rejected is what proxies refused of it, in their words.
	Rejected []ProxyRejection
	// Done is when the last proxy had answered; zero until then.
	Done time.Time
}

// Took is the time from the start until all had answered, or until now.
func (r *Rollout) Took(now time.Time) time.Duration {
	if r.Done.IsZero() {
		return now.Sub(r.Started)
	}
	return r.Done.Sub(r.Started)
}

// ProxyRejection is one resource that one proxy refused.
type ProxyRejection struct{ Proxy, Type, Name, Reason string }

// rollouts follow snapshots to the proxies.
type rollouts struct {
	bell chan struct{}

	mu   sync.Mutex // guards list
	list []*rollout // by generation
}

type rollout struct {
	Rollout
	waiting map[uint64]bool // connections; true once it is known to be touched
	logged  bool            // its end was told
	slow    bool            // that it takes long was told
}

func newRollouts() *rollouts { return &rollouts{bell: make(chan struct{}, 1)} }

// begin follows a new snapshot to the proxies that are connected now.
func (r *rollouts) begin(s *mesh.Snapshot, now time.Time, conns []*conn) {
	n := &rollout{
		Rollout: Rollout{Generation: s.Generation, Started: now, Changes: s.Changes},
		waiting: map[uint64]bool{},
	}
	for _, c := range conns {
		n.waiting[c.id] = false
	}
	if len(conns) == 0 {
		n.Done, n.logged = now, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, n)
	if len(r.list) > maxRollouts {
		r.list = slices.Delete(r.list, 0, 1)
	}
}

// rolloutStep says that a proxy went on from one snapshot to another.
type rolloutStep struct {
	from, to uint64
	touched  bool // and that its configuration differs
}

// seen notes that a proxy has looked at the snapshots up to a generation.
func (r *rollouts) seen(c *conn, step rolloutStep) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.list {
		if _, waits := n.waiting[c.id]; !waits || n.Generation > step.to {
			continue
		}
		switch {
		case n.Generation <= step.from:
			// Looked at before; it waits for the answer.
		case step.touched:
			if !n.waiting[c.id] {
				n.Touched++
			}
			n.waiting[c.id] = true
		default:
			r.finish(n, c.id, now)
		}
	}
}

// settled notes that a proxy has answered everything up to a generation.
func (r *rollouts) settled(c *conn, generation uint64, rejected []ProxyRejection) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.list {
		touched, waits := n.waiting[c.id]
		if !waits || n.Generation > generation {
			continue
		}
		if touched && len(rejected) == 0 {
			n.Accepted++
		}
		if touched {
			n.Rejected = append(n.Rejected, rejected...)
		}
		r.finish(n, c.id, now)
	}
}

// leave notes that a proxy has gone: nobody waits for it.
func (r *rollouts) leave(id uint64) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.list {
		if touched, waits := n.waiting[id]; waits {
			if touched {
				n.Touched--
			}
			r.finish(n, id, now)
		}
	}
}

// finish takes a connection off a rollout. Called with mu held.
func (r *rollouts) finish(n *rollout, id uint64, now time.Time) {
	delete(n.waiting, id)
	if len(n.waiting) > 0 || !n.Done.IsZero() {
		return
	}
	n.Done = now
	select {
	case r.bell <- struct{}{}:
	default:
	}
}

// slowRollout is how long a rollout may take before a person is told.
const slowRollout = 10 * time.Second

// logRollouts tells what became of the snapshots that are done, or slow.
func (s *Server) logRollouts(now time.Time) {
	for _, n := range s.rollouts.unlogged(now) {
		attrs := []any{
			"changed", changedObjects(n.Changes), "applied", fmt.Sprintf("%d/%d", n.Accepted, n.Touched),
			"took", n.Took(now).Round(time.Millisecond), "generation", n.Generation,
		}
		switch {
		case len(n.Rejected) > 0:
			first := n.Rejected[0]
			s.log.Error("change rejected by a proxy", append(attrs, "rejections", len(n.Rejected), "proxy", first.Proxy, "name", first.Name, "err", first.Reason)...)
		case n.Done.IsZero():
			s.log.Warn("change not answered by all proxies yet", append(attrs, "waiting", n.Waiting)...)
		case n.Touched > 0 && onlyHealth(n.Changes):
			s.log.Debug("change of health applied", attrs...)
		case n.Touched > 0:
			s.log.Info("change applied", attrs...)
		default:
			s.log.Debug("change touches no proxy", attrs...)
		}
	}
}

func (r *rollouts) unlogged(now time.Time) []Rollout {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Rollout
	for _, n := range r.list {
		late := n.Done.IsZero() && !n.slow && now.Sub(n.Started) >= slowRollout
		if n.logged || n.Done.IsZero() && !late {
			continue
		}
		n.slow, n.logged = late || n.slow, !late
		out = append(out, n.copy())
	}
	return out
}

// copy is a Rollout that nobody changes any more. Called with mu held.
func (n *rollout) copy() Rollout {
	c := n.Rollout
	c.Waiting = len(n.waiting)
	c.Rejected = slices.Clone(n.Rejected)
	return c
}

// onlyHealth reports whether nobody has written anything: a file would be named
// that did not change.
func onlyHealth(changes []mesh.Change) bool {
	return len(changes) > 0 && !slices.ContainsFunc(changes, func(c mesh.Change) bool { return c.Reach != mesh.ReachHealth })
}

// changedObjects names where a few of the changed objects are written.
func changedObjects(changes []mesh.Change) []string {
	const most = 4
	var out []string
	for _, c := range changes {
		if c.Origin == nil {
			continue
		}
		where := c.Origin.Path
		if slices.Contains(out, where) {
			continue
		}
		if len(out) == most {
			return append(out, "…")
		}
		out = append(out, where)
	}
	return out
}

// Rollouts are the snapshots whose fate is remembered, oldest first.
func (s *Server) Rollouts() []Rollout {
	s.rollouts.mu.Lock()
	defer s.rollouts.mu.Unlock()
	out := make([]Rollout, 0, len(s.rollouts.list))
	for _, n := range s.rollouts.list {
		out = append(out, n.copy())
	}
	return out
}

// Convergence tells what became of the snapshot of a generation; false if it is
// not known, or no longer.
func (s *Server) Convergence(generation uint64) (Rollout, bool) {
	s.rollouts.mu.Lock()
	defer s.rollouts.mu.Unlock()
	for _, n := range s.rollouts.list {
		if n.Generation == generation {
			return n.copy(), true
		}
	}
	return Rollout{}, false
}
