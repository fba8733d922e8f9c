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
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// proxyState is what a proxy is to have. Immutable: a new one replaces it when something
// differs.
type proxyState struct {
	cache.Configuration
	workload *mesh.Workload
	own      ownConfig
	gone     bool   // no workload of the mesh fits the host any more
	goneWhy  string // what became of it
	fault    string // why the view could not be built, or empty
	// generation is that of the last snapshot that changed something, and at when that was
	// announced.
	generation uint64
	at         time.Time
}

// updater computes what a proxy is to have, snapshot after snapshot. [Server.announce]
// updates all proxies; the owner of a stream is woken only if something changed for it.
type updater struct {
	current   atomic.Pointer[proxyState] // nil before the first update
	updatedTo atomic.Uint64              // the generation of the last update

	mu     sync.Mutex // guards all following fields
	proxy  view.Proxy // with the workload of current
	routes cache.Routes
	// reportedForms are for the next rebuild; or nil.
	reportedForms map[string]vhds.Form
	// asksOwn means that the peer has subscribed to its ProxyConfig.
	asksOwn bool

	rolloutsMu         sync.Mutex // guards all following fields
	unansweredRollouts []awaited  // which the proxy has not answered
	left               bool       // the stream has ended
}

// update brings the proxy to a snapshot, once, and reports whether that changes anything
// for it. The rollout may be nil.
func (c *conn) update(e *cache.Indexed, at time.Time, r *rollout) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Generation <= c.updatedTo.Load() {
		return false
	}
	defer c.updatedTo.Store(e.Generation)
	return c.rebuild(e, at, r)
}

// rebuild is update without a check of the generation. Called with mu held.
func (c *conn) rebuild(e *cache.Indexed, at time.Time, r *rollout) bool {
	s := c.server
	had := c.current.Load()
	next := &proxyState{}
	if had != nil {
		*next = *had
	}
	w, err := c.node.workload(e.Snapshot)
	if err != nil {
		// Absence is not emptiness: the proxy keeps what it has, and is shown as stale.
		if had == nil {
			return false
		}
		if why := c.node.lost(e.Snapshot, had.workload); !had.gone || why != had.goneWhy {
			c.log(slog.LevelWarn, "no workload of the mesh fits a proxy any more; proxy keeps its last configuration", 0,
				"proxy", c.nodeID, "host", c.peer.Host, "reason", why, "err", err)
			next.gone, next.goneWhy = true, why
			c.current.Store(next)
		}
		return false
	}
	if c.moved(w) {
		return false
	}
	if had == nil || w != had.workload || len(c.node.reported.Addresses) > 1 {
		c.proxy = c.node.proxy(e.Snapshot, w)
		c.proxy.AcceptUnenforced = s.cfg.AcceptUnenforced
	}
	next.ReportedForms, c.reportedForms = c.reportedForms, nil
	now, err := s.cache.Get(e, c.proxy, c.routes, next.Configuration)
	if err != nil {
		s.metrics.faults.Inc()
		s.log.Error("building configuration failed; proxy keeps its last configuration", "proxy", c.nodeID, "err", err)
		next.ReportedForms, next.workload, next.gone, next.goneWhy, next.fault = nil, w, false, "", sanitize(err.Error(), 256)
		c.current.Store(next)
		return false
	}
	own, err := c.ownConfigOf(e.Snapshot, w, next.own)
	if err != nil { // the proxy keeps the last one
		s.metrics.faults.Inc()
		s.log.Error("building the ProxyConfig failed; agent keeps its last one", "proxy", c.nodeID, "err", err)
	}
	changed := now.Resources != next.Resources || own.set != next.own.set
	if !changed && own.in.Same(next.own.in) && had != nil && now.View == had.View && w == had.workload && !had.gone && had.fault == "" {
		return false
	}
	next.Configuration, next.workload, next.own, next.gone, next.goneWhy, next.fault = now, w, own, false, "", ""
	if changed {
		next.generation, next.at = e.Generation, at
	}
	if changed && r != nil {
		c.awaitAnswer(r, now.Resources)
	}
	c.current.Store(next)
	return changed
}

// moved ends the stream, and reports so, if the workload is no longer the one that the
// host was admitted for: it names another host, belongs to another host, or is in another
// network.
func (c *conn) moved(w *mesh.Workload) bool {
	if !c.reports() {
		return false
	}
	switch o := w.Owner(); {
	case o != "" && o != c.peer.Host:
		c.loseWorkload(fmt.Sprintf("workload %s/%s at %s belongs to host %q: annotation %s", w.Namespace, w.Name, w.Address, o, mesh.AnnotationHost))
	case w.Name != c.claim.Workload && c.node.heldByOther(w):
		c.loseWorkload(fmt.Sprintf("workload %s/%s at %s is no longer in the mesh, and %s at that address belongs to another host", w.Namespace, c.claim.Workload, w.Address, w.Name))
	case w.Network != c.claim.Network:
		c.evict(status.Error(codes.Unavailable, "workload moved to another network: reconnect"))
	default:
		return false
	}
	return true
}

// deliverInline delivers a route configuration with inline virtual hosts from now on.
func (c *conn) deliverInline(layer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.routes.WithInline(layer); now != c.routes {
		c.routes = now
		c.refreshView()
	}
}

// applyReportedVersions keeps the form of route configurations (VHDS or inline) that a
// reconnecting proxy has, as its versions tell.
func (c *conn) applyReportedVersions(r *stream.Request) {
	if r.GetTypeUrl() != string(stream.RouteType) || len(r.Versions) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.current.Load()
	if o == nil {
		return
	}
	if listed := o.FormsOf(c.routes, r.Versions); listed != nil {
		c.reportedForms = listed
		c.refreshView()
	}
}

// refreshView rebuilds after a change of what the proxy supports. Called with mu held,
// which must not be released in between: an update to a newer snapshot would be
// overwritten.
func (c *conn) refreshView() {
	e := c.server.cache.At(c.server.cfg.Snapshots.Snapshot())
	c.rebuild(e, time.Now(), nil)
	c.updatedTo.Store(max(c.updatedTo.Load(), e.Generation))
}

// awaitAnswer records that a rollout waits for the proxy.
func (c *conn) awaitAnswer(r *rollout, has *cache.Resources) {
	c.rolloutsMu.Lock()
	defer c.rolloutsMu.Unlock()
	if c.left {
		return
	}
	waits := r.addAffected(c, has)
	if len(c.unansweredRollouts) == maxRollouts { // one at least is not kept any more
		kept := c.server.rollouts.all()
		c.unansweredRollouts = slices.DeleteFunc(c.unansweredRollouts, func(a awaited) bool {
			forgotten := !slices.Contains(kept, a.rollout)
			if forgotten {
				a.removeAffected()
			}
			return forgotten
		})
	}
	c.unansweredRollouts = append(c.unansweredRollouts, waits)
}

// dropRollouts releases all rollouts: the stream has ended.
func (c *conn) dropRollouts() {
	c.rolloutsMu.Lock()
	defer c.rolloutsMu.Unlock()
	for _, r := range c.unansweredRollouts {
		r.removeAffected()
	}
	c.unansweredRollouts, c.left = nil, true
}

// owesAnswer reports whether the rollout of a snapshot waits for the proxy.
func (c *conn) owesAnswer(generation uint64) bool {
	c.rolloutsMu.Lock()
	defer c.rolloutsMu.Unlock()
	return slices.ContainsFunc(c.unansweredRollouts, func(r awaited) bool { return r.generation == generation })
}

// markSent records in the rollouts that wait for the proxy that a response was sent.
func (c *conn) markSent(now time.Time) {
	if c.server.cfg.Observe == nil {
		return
	}
	c.rolloutsMu.Lock()
	defer c.rolloutsMu.Unlock()
	for _, r := range c.unansweredRollouts {
		r.sent(now)
	}
}

// takeAnswered returns and forgets the rollouts up to a generation, which the proxy has
// answered.
func (c *conn) takeAnswered(generation uint64) []awaited {
	c.rolloutsMu.Lock()
	defer c.rolloutsMu.Unlock()
	n := 0
	for n < len(c.unansweredRollouts) && c.unansweredRollouts[n].generation <= generation {
		n++
	}
	paid := c.unansweredRollouts[:n:n]
	if c.unansweredRollouts = c.unansweredRollouts[n:]; len(c.unansweredRollouts) == 0 {
		c.unansweredRollouts = nil
	}
	return paid
}

// announce updates all proxies to the newest snapshot, in as many goroutines as there are
// processors, and wakes the streams for which something changed.
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
	s.announcing.hold()
	defer s.announcing.release()
	conns := s.connections()
	r := s.rollouts.begin(snap, now, len(conns))
	if s.cfg.Observe != nil {
		r.observe()
	}
	before := s.Work()
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Prepare()
		updateAll(ctx, conns, func(c *conn) bool { return c.update(e, now, r) })
	}()
	select {
	case <-done:
	case <-ctx.Done(): // nobody waits for the view that is being built; the goroutines end with it
		return
	}
	s.updatedTo.Store(snap.Generation)
	r.allUpdated(s.Work().since(before))
}

// updateAll updates connections, in as many goroutines as there are processors, until ctx is done.
func updateAll(ctx context.Context, conns []*conn, update func(*conn) bool) {
	workers := max(1, min(runtime.GOMAXPROCS(0), len(conns)/minProxiesPerWorker))
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
				if update(conns[i]) {
					conns[i].wake()
				}
			}
		})
	}
	wg.Wait()
}

// minProxiesPerWorker is how many proxies are worth a goroutine.
const minProxiesPerWorker = 32
