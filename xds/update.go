package xds

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/fold"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// proxyState is what a proxy shall have. Immutable: the next one takes its place
// when something differs.
type proxyState struct {
	cache.Configuration
	workload *mesh.Workload
	gone     bool   // the mesh no longer has the workload
	fault    string // why the view could not be built, or empty
	// generation is that of the snapshot that last changed something, and at when
	// it became known.
	generation uint64
	at         time.Time
}

// updater works out what a proxy shall have, snapshot after snapshot. The
// conductor looks for all proxies; the stream of one only hears when there is
// something for it.
type updater struct {
	current atomic.Pointer[proxyState] // nil before the first look
	looked  atomic.Uint64              // the generation looked at last

	mu     sync.Mutex // guards all following fields
	proxy  view.Proxy // as of the workload of current
	routes cache.Routes
	// listed is for the next look; or nil.
	listed map[string]fold.Form

	owing sync.Mutex // guards all following fields
	owes  []*rollout // whose changes the proxy has not answered
	left  bool       // it will answer nothing any more
}

// look has the proxy see a snapshot, once, and reports whether that changes
// anything for it. The rollout may be nil.
func (c *conn) look(e *cache.Indexed, at time.Time, r *rollout) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Generation <= c.looked.Load() {
		return false
	}
	defer c.looked.Store(e.Generation)
	return c.see(e, at, r)
}

// see is look without asking whether it is due. Called with mu held.
func (c *conn) see(e *cache.Indexed, at time.Time, r *rollout) bool {
	s := c.server
	had := c.current.Load()
	next := &proxyState{}
	if had != nil {
		*next = *had
	}
	w, err := c.claim.workload(e.Snapshot)
	if err != nil {
		// Absence is not emptiness: what it has stands, and is shown as stale.
		if had != nil && !had.gone {
			c.tell(slog.LevelWarn, "workload of a proxy was removed from the mesh; proxy keeps its last configuration", 0, "proxy", c.nodeID, "host", c.peer.Host, "err", err)
			next.gone = true
			c.current.Store(next)
		}
		return false
	}
	if c.moved(w) {
		return false
	}
	if had == nil || w != had.workload || len(c.claim.node.Addresses) > 1 {
		c.proxy = c.claim.proxy(e.Snapshot, w)
		c.proxy.AcceptUnenforced = s.cfg.AcceptUnenforced
	}
	next.Listed, c.listed = c.listed, nil
	now, err := s.cache.Get(e, c.proxy, c.routes, next.Configuration)
	if err != nil {
		s.metrics.faults.Inc()
		s.log.Error("building configuration failed; proxy keeps its last configuration", "proxy", c.nodeID, "err", err)
		next.Listed, next.workload, next.gone, next.fault = nil, w, false, clip(err.Error(), 256)
		c.current.Store(next)
		return false
	}
	changed := now.Resources != next.Resources
	if !changed && had != nil && now.View == had.View && w == had.workload && !had.gone && had.fault == "" {
		return false
	}
	next.Configuration, next.workload, next.gone, next.fault = now, w, false, ""
	if changed {
		next.generation, next.at = e.Generation, at
	}
	if changed && r != nil {
		c.owe(r)
	}
	c.current.Store(next)
	return changed
}

// moved ends the stream, and reports so, if its workload is not any more what the
// host was let in for: it names another host, is another one that a host has, or is in
// another network.
func (c *conn) moved(w *mesh.Workload) bool {
	if !c.reports() {
		return false
	}
	switch o := w.Owner(); {
	case o != "" && o != c.peer.Host:
		c.lose(fmt.Sprintf("workload %s/%s at %s is of host %q: its annotation %s says so", w.Namespace, w.Name, w.Address, o, mesh.AnnotationHost))
	case w.Name != c.claimed.Workload && c.claim.others(w):
		c.lose(fmt.Sprintf("workload %s/%s at %s is not in the mesh any more, and %s there is of another host", w.Namespace, c.claimed.Workload, w.Address, w.Name))
	case w.Network != c.claimed.Network:
		c.evict(status.Error(codes.Unavailable, "workload moved to another network: reconnect"))
	default:
		return false
	}
	return true
}

// inline has a route table travel with its virtual hosts in it from now on.
func (c *conn) inline(layer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.routes.WithInline(layer); now != c.routes {
		c.routes = now
		c.seeAgain()
	}
}

// keepReported has a proxy that comes back keep its route tables as it says that it
// has them, by their versions.
func (c *conn) keepReported(r *stream.Request) {
	if r.GetTypeUrl() != string(stream.RouteType) || len(r.Versions) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.current.Load()
	if o == nil {
		return
	}
	if listed := o.Reported(c.routes, r.Versions); listed != nil {
		c.listed = listed
		c.seeAgain()
	}
}

// seeAgain has the proxy see what there is, since what it takes has changed. Called
// with mu held; not before: what was looked at meanwhile would be newer, and this
// lost.
func (c *conn) seeAgain() {
	e := c.server.cache.At(c.server.cfg.Snapshots.Snapshot())
	c.see(e, time.Now(), nil)
	c.looked.Store(max(c.looked.Load(), e.Generation))
}

// owe notes that a rollout waits for the proxy.
func (c *conn) owe(r *rollout) {
	c.owing.Lock()
	defer c.owing.Unlock()
	if c.left {
		return
	}
	r.touch()
	if len(c.owes) == maxRollouts { // nobody remembers the oldest any more
		c.owes[0].leave()
		c.owes = slices.Delete(c.owes, 0, 1)
	}
	c.owes = append(c.owes, r)
}

// owesNothing has all rollouts wait no longer: the proxy has left.
func (c *conn) owesNothing() {
	c.owing.Lock()
	defer c.owing.Unlock()
	for _, r := range c.owes {
		r.leave()
	}
	c.owes, c.left = nil, true
}

// paid gives the rollouts up to a generation that waited for the proxy, which
// has answered.
func (c *conn) paid(generation uint64) []*rollout {
	c.owing.Lock()
	defer c.owing.Unlock()
	n := 0
	for n < len(c.owes) && c.owes[n].generation <= generation {
		n++
	}
	paid := c.owes[:n:n]
	if c.owes = c.owes[n:]; len(c.owes) == 0 {
		c.owes = nil
	}
	return paid
}

// announce has all proxies see the newest snapshot, as many at a time as there
// are processors, and rings where it changes something.
func (s *Server) announce(ctx context.Context, now time.Time) {
	snap := s.cfg.Snapshots.Snapshot()
	if snap == nil {
		return
	}
	if a := s.announced.Load(); a != nil && a.generation == snap.Generation {
		return
	}
	e := s.cache.At(snap)
	s.announced.Store(&announcement{snap.Generation, now})
	s.quiet.hold()
	defer s.quiet.release()
	conns := s.connections()
	r := s.rollouts.begin(snap, now, len(conns))
	before := s.Work()
	e.Prepare()
	workers := max(1, min(runtime.GOMAXPROCS(0), len(conns)/minBatch))
	var (
		next atomic.Int64
		wg   sync.WaitGroup
	)
	for range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(conns) {
					return
				}
				if conns[i].look(e, now, r) {
					conns[i].ring()
				}
			}
		})
	}
	wg.Wait()
	s.looked.Store(snap.Generation)
	r.seen(s.Work().since(before))
}

// minBatch is how many proxies are worth a goroutine.
const minBatch = 32
