package xds

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/fairlist"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/cache"
)

// maxRollouts bounds the rollouts that are kept, and maxRolloutsEach those of one namespace, or of
// health and endpoints: neither a host whose health changes all the time, nor who edits all the time,
// hides the result of somebody else's change.
const (
	maxRollouts     = 128
	maxRolloutsEach = maxRollouts / 2
)

// unansweredFor is how long a proxy must have owed an answer before a snapshot was announced, so that
// nobody waits for its answer to this one.
const unansweredFor = 5 * time.Second

// maxRejections bounds the rejections of one generation that are kept, and maxRejectionsEach those of
// one proxy.
const maxRejections, maxRejectionsEach = 200, 20

// Rollout is the result of one snapshot at the proxies that were connected when it was
// announced.
type Rollout struct {
	Generation uint64
	Started    time.Time
	// Changes are the objects that the snapshot changed.
	Changes []mesh.Change
	// Waiting is the number of proxies that have not answered, Affected of those for which
	// it changed something, Accepted of affected ones that accepted all of it.
	Waiting, Affected, Accepted int
	// Rejected lists the first resources that proxies rejected, with their error messages.
	// RejectedMore is how many others there are.
	Rejected     []ProxyRejection
	RejectedMore int
	// Done is when the last proxy had answered; zero until then.
	Done time.Time
	// Work is what was done for the snapshot. It is known once Complete: all proxies are
	// updated.
	Work     Work
	Complete bool
	// Updated is when all proxies had been looked at; zero until then.
	Updated time.Time
	// Classes are the first classes of proxies that it changed, if the server has an observer;
	// ClassesMore is how many proxies are in others.
	Classes     []RolloutClass
	ClassesMore int
}

// RolloutClass are the proxies that a snapshot gives equal configuration.
type RolloutClass struct {
	// Proxy is the node id of the first one, Proxies how many there are.
	Proxy   string
	Proxies int
	// Sent is when the first response of all was sent, First and Last are when the first and the
	// last proxy had answered everything; zero if none has.
	Sent, First, Last time.Time
	// Rejected are the proxies that rejected something.
	Rejected int
}

// maxRolloutClasses bounds the classes that are kept of a rollout: a fleet of any size has so many
// at most.
const maxRolloutClasses = 32

// Took is the time from the start until all had answered, or until now.
func (r *Rollout) Took(now time.Time) time.Duration {
	if r.Done.IsZero() {
		return now.Sub(r.Started)
	}
	return r.Done.Sub(r.Started)
}

// ProxyRejection is one resource that one proxy rejected.
type ProxyRejection struct{ Proxy, Type, Name, Reason string }

// rollouts are the newest rollouts.
type rollouts struct {
	finished chan struct{}

	mu   sync.Mutex               // guards list
	list *fairlist.List[*rollout] // by generation
}

// rollout is held by the proxies that it affects, each until it has answered, so that no
// search through all proxies is needed.
type rollout struct {
	generation uint64
	finished   chan struct{} // receives when a rollout ends

	mu         sync.Mutex // guards all following fields
	status     Rollout
	classes    map[*cache.Resources]int // places in status.Classes; nil if nobody observes
	notUpdated int                      // proxies that are not updated for this snapshot yet
	unanswered int                      // affected proxies that have not answered
	logged     bool                     // its end was logged
	slowLogged bool                     // that it takes long was logged
}

func newRollouts() *rollouts {
	return &rollouts{
		finished: make(chan struct{}, 1),
		list:     fairlist.New(maxRollouts, func(string) int { return maxRolloutsEach }, (*rollout).author),
	}
}

// author is the namespace of the first object that a person edited, or empty.
func (n *rollout) author() string {
	if i := slices.IndexFunc(n.status.Changes, writtenChange); i >= 0 {
		return "edited in " + n.status.Changes[i].Key.Namespace
	}
	return ""
}

// begin starts the rollout of a new snapshot to the proxies that are connected now.
func (r *rollouts) begin(s *mesh.Snapshot, now time.Time, conns int) *rollout {
	n := &rollout{
		generation: s.Generation, finished: r.finished, notUpdated: conns,
		status: Rollout{Generation: s.Generation, Started: now, Changes: s.Changes},
	}
	if conns == 0 {
		n.status.Done, n.logged = now, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list.Add(n)
	return n
}

// observe keeps classes of proxies from now on. Called before any is added.
func (n *rollout) observe() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.classes = map[*cache.Resources]int{}
}

// addAffected counts a proxy for which the snapshot changes something, and which will
// answer.
func (n *rollout) addAffected(c *conn, has *cache.Resources) awaited {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status.Affected++
	n.unanswered++
	if n.classes == nil {
		return awaited{n, -1}
	}
	at, known := n.classes[has]
	switch {
	case known:
		n.status.Classes[at].Proxies++
	case len(n.status.Classes) < maxRolloutClasses:
		at = len(n.status.Classes)
		n.classes[has] = at
		n.status.Classes = append(n.status.Classes, RolloutClass{Proxy: c.nodeID, Proxies: 1})
	default:
		n.status.ClassesMore++
		at = -1
	}
	return awaited{n, at}
}

// awaited is a rollout that waits for a proxy, which is in one of its classes; -1 is none that
// is kept.
type awaited struct {
	*rollout

	class int
}

// sent records that a response was sent to the proxy.
func (a awaited) sent(now time.Time) {
	if a.class < 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := &a.status.Classes[a.class].Sent; s.IsZero() {
		*s = now
	}
}

// allUpdated records that all proxies are updated, and what was done for that.
func (n *rollout) allUpdated(w Work) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notUpdated, n.status.Work, n.status.Complete, n.status.Updated = 0, w, true, time.Now()
	n.classes = nil // no proxy is added any more
	n.finish(n.status.Updated)
}

// answered records that a proxy has answered everything.
func (a awaited) answered(rejected []ProxyRejection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.class >= 0 {
		c := &a.status.Classes[a.class]
		if c.Last = now; c.First.IsZero() {
			c.First = now
		}
		if len(rejected) > 0 {
			c.Rejected++
		}
	}
	if len(rejected) == 0 {
		a.status.Accepted++
	}
	kept := rejected[:min(len(rejected), maxRejections-len(a.status.Rejected), maxRejectionsEach)]
	a.status.Rejected = append(a.status.Rejected, kept...)
	a.status.RejectedMore += len(rejected) - len(kept)
	a.unanswered--
	a.finish(now)
}

// removeAffected records that a proxy has disconnected without an answer.
func (n *rollout) removeAffected() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status.Affected--
	n.unanswered--
	n.finish(time.Now())
}

// finish ends the rollout if no answer is missing. Called with mu held.
func (n *rollout) finish(now time.Time) {
	if n.notUpdated > 0 || n.unanswered > 0 || !n.status.Done.IsZero() {
		return
	}
	n.status.Done = now
	select {
	case n.finished <- struct{}{}:
	default:
	}
}

// copy returns the Rollout as it is now.
func (n *rollout) copy() Rollout {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.copyLocked()
}

func (n *rollout) copyLocked() Rollout {
	c := n.status
	c.Waiting = max(n.notUpdated, n.unanswered)
	c.Rejected = slices.Clone(n.status.Rejected)
	c.Classes = slices.Clone(n.status.Classes)
	return c
}

func (r *rollouts) all() []*rollout {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list.All())
}

func (r *rollouts) unlogged(now time.Time) []Rollout {
	var out []Rollout
	for _, n := range r.all() {
		if c, ok := n.report(now); ok {
			out = append(out, c)
		}
	}
	return out
}

// report returns the rollout if something is to be logged: that it has ended, or that it
// takes long.
func (n *rollout) report(now time.Time) (Rollout, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	running := n.status.Done.IsZero()
	late := running && !n.slowLogged && now.Sub(n.status.Started) >= slowRollout
	if n.logged || running && !late {
		return Rollout{}, false
	}
	n.slowLogged, n.logged = late || n.slowLogged, !late
	return n.copyLocked(), true
}

// slowRollout is how long a rollout may take before a warning.
const slowRollout = 10 * time.Second

// logRollouts logs the rollouts that are done, or slow.
func (s *Server) logRollouts(now time.Time) {
	for _, n := range s.rollouts.unlogged(now) {
		if s.cfg.Observe != nil && !n.Done.IsZero() {
			s.cfg.Observe(n)
		}
		attrs := []any{
			"changed", changedObjects(n.Changes), "applied", fmt.Sprintf("%d/%d", n.Accepted, n.Affected),
			"took", n.Took(now).Round(time.Millisecond), "generation", n.Generation,
		}
		switch {
		case len(n.Rejected) > 0:
			first := n.Rejected[0]
			s.log.Error("change rejected by a proxy", append(attrs, "rejections", len(n.Rejected)+n.RejectedMore, "proxy", first.Proxy, "name", sanitize(first.Name, maxLoggedText), "err", sanitize(first.Reason, maxLoggedText))...)
		case n.Done.IsZero():
			s.log.Warn("change not answered by all proxies yet", append(attrs, "waiting", n.Waiting)...)
		case n.Affected > 0 && onlyHealth(n.Changes):
			s.log.Debug("change of health applied", attrs...)
		case n.Affected > 0:
			s.log.Info("change applied", attrs...)
		case written(n.Changes): // the author wants to know
			s.log.Info("change affects no proxy's configuration", "changed", changedObjects(n.Changes), "generation", n.Generation)
		default:
			s.log.Debug("change affects no proxy", attrs...)
		}
	}
}

// onlyHealth reports whether only health has changed: the log must not name a file that
// nobody edited.
func onlyHealth(changes []mesh.Change) bool {
	return len(changes) > 0 && !slices.ContainsFunc(changes, func(c mesh.Change) bool { return c.Reach != mesh.ReachHealth })
}

// written reports whether a person has probably edited something: endpoints come and go by
// themselves.
func written(changes []mesh.Change) bool {
	return slices.ContainsFunc(changes, writtenChange)
}

func writtenChange(c mesh.Change) bool {
	return c.Origin != nil && c.Reach != mesh.ReachHealth && c.Reach != mesh.ReachEndpoints
}

// changedObjects returns the files of some of the changed objects.
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

// Rollouts returns the rollouts that are kept, oldest first.
func (s *Server) Rollouts() []Rollout {
	list := s.rollouts.all()
	out := make([]Rollout, 0, len(list))
	for _, n := range list {
		out = append(out, n.copy())
	}
	return out
}

// Convergence returns the rollout of a generation; false if it is not known, or no longer.
func (s *Server) Convergence(generation uint64) (Rollout, bool) {
	for _, n := range s.rollouts.all() {
		if n.generation == generation {
			return n.copy(), true
		}
	}
	return Rollout{}, false
}

// Unanswered is a proxy that has not answered a snapshot.
type Unanswered struct {
	Proxy, Host string
	// Since is since when it owes an answer, to this snapshot or an earlier one.
	Since time.Time
	// Silent means that nobody should wait for it: it owed an answer for long when the snapshot was
	// announced, or has for as long, and never answered all of its configuration.
	Silent bool
}

// Unanswered lists the proxies that have not answered a snapshot, sorted by name.
func (s *Server) Unanswered(n *Rollout) []Unanswered {
	var out []Unanswered
	now := time.Now()
	for _, c := range s.connections() {
		if !c.owesAnswer(n.Generation) {
			continue
		}
		u := Unanswered{Proxy: c.name(), Host: c.peer.Host, Since: n.Started}
		if since := c.owesSince.Load(); since != nil && since.Before(u.Since) {
			u.Since = *since
		}
		u.Silent = n.Started.Sub(u.Since) >= unansweredFor || !c.everAnswered.Load() && now.Sub(u.Since) >= unansweredFor
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b Unanswered) int {
		return cmp.Or(strings.Compare(a.Proxy, b.Proxy), strings.Compare(a.Host, b.Host))
	})
	return out
}
