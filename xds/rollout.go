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

// maxRejections bounds the rejections of one generation that are remembered.
const maxRejections = 200

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
	// Rejected is what proxies refused of it, in their words: the first of them.
	// RejectedMore is how many others there are.
	Rejected     []ProxyRejection
	RejectedMore int
	// Done is when the last proxy had answered; zero until then.
	Done time.Time
	// Work is what was made for it; Looked, that it is known, for all proxies have
	// been looked at.
	Work   Work
	Looked bool
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

// rollout is followed by the proxies that it touches: each holds it until it has
// answered, so that nobody looks through all of them.
type rollout struct {
	generation uint64
	bell       chan struct{} // of rollouts

	mu     sync.Mutex // guards all following fields
	what   Rollout
	unseen int  // proxies that nobody has looked at for this snapshot yet
	owed   int  // answers that are awaited
	logged bool // its end was told
	slow   bool // that it takes long was told
}

func newRollouts() *rollouts { return &rollouts{bell: make(chan struct{}, 1)} }

// begin follows a new snapshot to the proxies that are connected now.
func (r *rollouts) begin(s *mesh.Snapshot, now time.Time, conns int) *rollout {
	n := &rollout{
		generation: s.Generation, bell: r.bell, unseen: conns,
		what: Rollout{Generation: s.Generation, Started: now, Changes: s.Changes},
	}
	if conns == 0 {
		n.what.Done, n.logged = now, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, n)
	if len(r.list) > maxRollouts {
		r.list = slices.Delete(r.list, 0, 1)
	}
	return n
}

// touch notes that the snapshot changes something for a proxy, which will answer.
func (n *rollout) touch() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.what.Touched++
	n.owed++
}

// seen notes that all proxies have been looked at, and what was made for them.
func (n *rollout) seen(w Work) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unseen, n.what.Work, n.what.Looked = 0, w, true
	n.finish(time.Now())
}

// answered notes that a proxy has answered everything.
func (n *rollout) answered(rejected []ProxyRejection) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(rejected) == 0 {
		n.what.Accepted++
	}
	kept := rejected[:min(len(rejected), maxRejections-len(n.what.Rejected))]
	n.what.Rejected = append(n.what.Rejected, kept...)
	n.what.RejectedMore += len(rejected) - len(kept)
	n.owed--
	n.finish(time.Now())
}

// leave notes that a proxy has gone before it answered: nobody waits for it.
func (n *rollout) leave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.what.Touched--
	n.owed--
	n.finish(time.Now())
}

// finish ends the rollout if nothing is awaited. Called with mu held.
func (n *rollout) finish(now time.Time) {
	if n.unseen > 0 || n.owed > 0 || !n.what.Done.IsZero() {
		return
	}
	n.what.Done = now
	select {
	case n.bell <- struct{}{}:
	default:
	}
}

// copy is a Rollout that nobody changes any more.
func (n *rollout) copy() Rollout {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.copyLocked()
}

func (n *rollout) copyLocked() Rollout {
	c := n.what
	c.Waiting = max(n.unseen, n.owed)
	c.Rejected = slices.Clone(n.what.Rejected)
	return c
}

func (r *rollouts) all() []*rollout {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

func (r *rollouts) unlogged(now time.Time) []Rollout {
	var out []Rollout
	for _, n := range r.all() {
		if c, ok := n.news(now); ok {
			out = append(out, c)
		}
	}
	return out
}

// news gives the rollout if there is something to tell of it: its end, or that it
// takes long.
func (n *rollout) news(now time.Time) (Rollout, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	running := n.what.Done.IsZero()
	late := running && !n.slow && now.Sub(n.what.Started) >= slowRollout
	if n.logged || running && !late {
		return Rollout{}, false
	}
	n.slow, n.logged = late || n.slow, !late
	return n.copyLocked(), true
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
			s.log.Error("change rejected by a proxy", append(attrs, "rejections", len(n.Rejected)+n.RejectedMore, "proxy", first.Proxy, "name", clip(first.Name, maxSaid), "err", clip(first.Reason, maxSaid))...)
		case n.Done.IsZero():
			s.log.Warn("change not answered by all proxies yet", append(attrs, "waiting", n.Waiting)...)
		case n.Touched > 0 && onlyHealth(n.Changes):
			s.log.Debug("change of health applied", attrs...)
		case n.Touched > 0:
			s.log.Info("change applied", attrs...)
		case written(n.Changes): // and who wrote it wants to know
			s.log.Info("change affects no proxy's configuration", "changed", changedObjects(n.Changes), "generation", n.Generation)
		default:
			s.log.Debug("change affects no proxy", attrs...)
		}
	}
}

// onlyHealth reports whether nobody has written anything: a file would be named
// that did not change.
func onlyHealth(changes []mesh.Change) bool {
	return len(changes) > 0 && !slices.ContainsFunc(changes, func(c mesh.Change) bool { return c.Reach != mesh.ReachHealth })
}

// written reports whether a person has most likely written something: endpoints
// come and go by themselves.
func written(changes []mesh.Change) bool {
	return slices.ContainsFunc(changes, func(c mesh.Change) bool {
		return c.Origin != nil && c.Reach != mesh.ReachHealth && c.Reach != mesh.ReachEndpoints
	})
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
	list := s.rollouts.all()
	out := make([]Rollout, 0, len(list))
	for _, n := range list {
		out = append(out, n.copy())
	}
	return out
}

// Convergence tells what became of the snapshot of a generation; false if it is
// not known, or no longer.
func (s *Server) Convergence(generation uint64) (Rollout, bool) {
	for _, n := range s.rollouts.all() {
		if n.generation == generation {
			return n.copy(), true
		}
	}
	return Rollout{}, false
}
