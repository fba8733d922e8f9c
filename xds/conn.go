package xds

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/wire"
)

type deltaStream = grpc.BidiStreamingServer[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse]

// conn is one connected proxy.
type conn struct {
	server *Server

	// Constant after enter.
	id       uint64
	peer     Peer
	quota    *hostQuota
	node     *verifiedNode
	claim    mesh.Claim // the workload as which it was admitted
	nodeID   string
	proxyKey string // identifies the proxy across streams
	version  string // Envoy's
	since    time.Time

	updater

	// Owned by the goroutine of the stream.
	core            *stream.Server
	applied         *proxyState // the state that core was given last
	resources       *cache.Resources
	ownSet          *stream.Set                   // of its ProxyConfig, or nil
	converging      bool                          // the proxy has not answered all of its generation
	convergingSince time.Time                     // when that began
	knownRejections map[stream.Rejection]struct{} // rejections that were reported to a rollout already
	unsent          time.Time                     // when the generation was announced; zero once a response was sent
	hasSlot         bool                          // it has an admission slot, until slotUntil at most
	slotUntil       time.Time
	lastRequest     time.Time // when the last request came, or the slot was given
	retry           stream.Retry
	ends            time.Time // when the stream ends, because its certificate does; or zero
	timer           *time.Timer
	armed           time.Time // when timer fires; zero if it is not set
	envoy           bootstrap.EnvoyState
	credentials     *bootstrap.Credentials // as the agent reports them, or nil
	health          mesh.Health            // the health that follows from the peer's reports
	healthWhy       string
	rejecting       map[stream.TypeURL]bool // or nil

	logLimits *streamLogLimits // of the log

	footprint stream.Footprint // as counted last
	uncounted int              // what it may keep since then, in bytes

	// Atomic. unwritten is how many bytes were sent and not yet handed to the connection.
	// progress is when the connection last took some, in nanoseconds after since. blocked
	// means that the owner waits for it.
	unwritten, progress atomic.Int64
	blocked             atomic.Bool
	// owesSince is convergingSince while converging, for other goroutines, or nil. everAnswered means
	// that it has answered all of a generation once.
	owesSince    atomic.Pointer[time.Time]
	everAnswered atomic.Bool

	wakeup  chan struct{}
	evicted chan error // why the stream ends; capacity 1
	calls   chan ownerCall
	done    chan struct{} // closed when the stream has ended

	unacknowledged *stream.UnacknowledgedNames // names that the proxy may or may not have; readable by all once done is closed
}

// ownerCall is a function that the owner of a stream runs.
type ownerCall struct {
	do   func()
	done chan struct{}
}

func (q ownerCall) run() {
	q.do()
	close(q.done)
}

func (s *Server) newConn(p Peer, v *verifiedNode, routes cache.Routes) *conn {
	n := &conn{
		server: s, peer: p, node: v, nodeID: v.reported.ID(), proxyKey: p.Host + "\x00" + v.reported.ID(), version: v.reported.EnvoyVersion.String(), since: time.Now(),
		updater: updater{routes: routes}, logLimits: newStreamLogLimits(),
		retry: stream.DefaultRetry(), wakeup: make(chan struct{}, 1), evicted: make(chan error, 1), calls: make(chan ownerCall), done: make(chan struct{}),
	}
	n.ends = n.endTime(n.since)
	if n.reports() {
		v.heldByOther = func(w *mesh.Workload) bool { return s.cfg.Health.HeldByOther(p.Host, p.Source.Unmap().WithZone(""), w) }
	}
	return n
}

// runInOwner has the owner of the stream run a function, and waits for it; false if the
// stream has ended or giveUp is closed. If the caller is the owner of another stream, it
// runs its own calls meanwhile; own is nil for other callers.
func (c *conn) runInOwner(giveUp <-chan struct{}, do func(), own *conn) bool {
	q := ownerCall{do, make(chan struct{})}
	var others <-chan ownerCall
	if own != nil {
		others = own.calls
	}
	for {
		select {
		case c.calls <- q:
			<-q.done
			return true
		case o := <-others:
			o.run()
		case <-c.done:
			return false
		case <-giveUp:
			return false
		}
	}
}

// name is NAME.NAMESPACE, as people type it.
func (c *conn) name() string { return c.node.reported.Name + "." + c.node.reported.Namespace }

// reports tells whether the peer's health reports count.
func (c *conn) reports() bool { return c.server.cfg.Health != nil && !c.peer.Anonymous }

func (c *conn) wake() {
	select {
	case c.wakeup <- struct{}{}:
	default: // a notification is pending already
	}
}

// evict ends the stream; the first reason counts.
func (c *conn) evict(err error) {
	select {
	case c.evicted <- err:
	default:
	}
}

// loseWorkload ends the stream because its workload belongs to another host.
func (c *conn) loseWorkload(reason string) {
	c.evict(c.server.reject(c.peer, c.nodeID, errors.New(reason)))
}

// run serves the stream until it ends.
func (c *conn) run(g deltaStream, requests <-chan wire.Frame, first wire.Frame) error {
	ctx := g.Context()
	if err := c.revoked(); err != nil { // while it waited for a slot
		return err
	}
	if err := c.receive(first); err != nil {
		return err
	}
	c.timer = time.NewTimer(maxSlotTime)
	defer c.timer.Stop()
	c.armed = time.Now().Add(maxSlotTime)
	for {
		c.refresh()
		if err := c.push(ctx, g); err != nil {
			return err
		}
		c.arm()
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-c.server.stopped:
			return errStopping
		case <-c.peer.Revoked:
			return c.revoked()
		case err := <-c.evicted:
			return err
		case <-c.wakeup:
		case now := <-c.timer.C:
			c.armed = time.Time{}
			if err := c.onTimer(now); err != nil {
				return err
			}
		case q := <-c.calls:
			q.run()
		case r, ok := <-requests:
			if !ok {
				return status.Error(codes.Canceled, "the proxy closed the stream")
			}
			if err := c.receive(r); err != nil {
				return err
			}
		}
	}
}

// revoked returns an error if the peer's identity was revoked.
func (c *conn) revoked() error {
	select {
	case <-c.peer.Revoked:
		c.log(slog.LevelWarn, "stream closed: host removed or replaced", 0, "proxy", c.nodeID, "host", c.peer.Host)
		return status.Error(codes.PermissionDenied, "identity revoked")
	default:
		return nil
	}
}

// endTime is before the peer's certificate ends, with jitter: hosts that got certificates
// at the same time must not reconnect at the same time.
func (c *conn) endTime(now time.Time) time.Time {
	if c.peer.Until.IsZero() {
		return time.Time{}
	}
	left := c.peer.Until.Sub(now)
	return now.Add(time.Duration(float64(left) * (0.75 + 0.2*rand.Float64()))) //nolint:gosec // jitter needs no secrecy
}

// arm sets the timer for the next deadline. It is only ever set earlier, so that not every
// iteration sets it: onTimer checks which deadlines were reached.
func (c *conn) arm() {
	next := c.ends
	first := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	first(c.slotEnds())
	first(c.slowAt())
	if c.unwritten.Load() < maxUnwritten { // else nothing more can be sent
		first(c.core.NextDeadline())
	}
	if next.IsZero() || !c.armed.IsZero() && !next.Before(c.armed) {
		return
	}
	c.timer.Reset(time.Until(next))
	c.armed = next
}

// onTimer handles the deadlines that were reached; an error ends the stream.
func (c *conn) onTimer(now time.Time) error {
	reached := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	if reached(c.ends) {
		return status.Error(codes.Unavailable, "the certificate of this stream expires soon: reconnect with the new one")
	}
	if reached(c.slowAt()) {
		c.server.metrics.slow.Inc()
		c.log(slog.LevelWarn, "stream closed: proxy does not read (--slow-proxy-timeout)", 0, "proxy", c.nodeID, "host", c.peer.Host,
			"after", c.server.cfg.SlowTimeout, "unread_bytes", c.unwritten.Load())
		return status.Errorf(codes.Unavailable, "the proxy did not read for %s: reconnect", c.server.cfg.SlowTimeout)
	}
	if reached(c.slotEnds()) {
		c.releaseSlot()
	}
	return nil
}

// handleRequest handles one request.
func (c *conn) handleRequest(frame wire.Frame) error {
	c.lastRequest = time.Now()
	c.refresh() // the request is decoded with the names of the generation
	r, err := stream.DecodeRequest(frame.Buffers(), c.core.Target(), stream.DefaultMaxNames)
	frame.Free()
	if err == nil {
		defer r.Release()
	}
	if err == nil && isReport(r.GetTypeUrl()) {
		c.handleReport(r.DeltaDiscoveryRequest)
		return nil
	}
	if err == nil {
		c.applyReportedVersions(r)
		c.applyOwnRequest(r)
		c.refresh()
		err = c.core.Take(c.lastRequest, r)
	}
	if err != nil {
		c.log(slog.LevelWarn, "stream closed", 0, "proxy", c.nodeID, "host", c.peer.Host, "err", err)
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// handleReport handles what an agent reports of its workload or its Envoy.
func (c *conn) handleReport(r *discovery.DeltaDiscoveryRequest) {
	if r.GetTypeUrl() == bootstrap.EnvoyStateType {
		names := r.GetResourceNamesSubscribe()
		if n := len(names); n == 1 || n == 2 {
			// Cloned: do not keep the request in memory.
			c.handleEnvoyState(bootstrap.EnvoyState(strings.Clone(sanitize(names[0], 32))))
		}
		if len(names) == 2 {
			if have, err := bootstrap.ParseCredentials(names[1]); err == nil { // else the last one stays
				c.credentials = have
			}
		}
		return
	}
	if !c.reports() {
		return
	}
	probe, why := mesh.Healthy, ""
	if e := r.GetErrorDetail(); e != nil {
		probe, why = mesh.Unhealthy, sanitize(e.GetMessage(), 256)
	}
	c.health, c.healthWhy = c.server.cfg.Health.ReportProbe(c.id, probe, why)
}

func (c *conn) handleEnvoyState(state bootstrap.EnvoyState) {
	if state == c.envoy {
		return
	}
	c.logEnvoyState(state)
	c.envoy = state
	if c.reports() {
		c.health, c.healthWhy = c.server.cfg.Health.ReportEnvoy(c.id, string(state))
	}
}

// logEnvoyState logs a change of state. The first state of a stream is expected to be live
// or, if the agent has not started its Envoy yet, absent.
func (c *conn) logEnvoyState(state bootstrap.EnvoyState) {
	if c.envoy == "" {
		switch state {
		case bootstrap.EnvoyLive:
			c.server.log.Debug("Envoy is live", "proxy", c.nodeID, "host", c.peer.Host)
			return
		case bootstrap.EnvoyAbsent:
			c.server.log.Debug("waiting for Envoy", "proxy", c.nodeID, "host", c.peer.Host)
			return
		default:
		}
	}
	if skipped, ok := c.logLimits.states.Allow(time.Now()); ok {
		c.log(slog.LevelInfo, "Envoy state changed", skipped, "proxy", c.nodeID, "host", c.peer.Host, "from", string(c.envoy), "to", string(state))
	}
}

// refresh sets the generation of the proxy, if it changed.
func (c *conn) refresh() {
	o := c.current.Load()
	if o == c.applied || o == nil {
		return
	}
	c.applied = o
	if o.Resources == nil {
		return
	}
	if !c.converging {
		c.convergingSince = time.Now()
		since := c.convergingSince
		c.owesSince.Store(&since)
	}
	c.converging = true // even if nothing differs: a rollout may wait for the answer
	if o.own.set != c.ownSet {
		c.ownSet = o.own.set
		c.core.SetOwn(bootstrap.ProxyConfigType, c.ownSet)
	}
	if o.Resources == c.resources {
		return
	}
	c.resources = o.Resources
	c.core.SetGeneration(c.resources.Generation)
	c.unsent = o.at
	if o.at.Before(c.since) {
		c.unsent = c.since
	}
}

// handleEvents logs and counts what has happened on the stream.
func (c *conn) handleEvents(ctx context.Context) {
	log := c.server.log
	debug := log.Enabled(ctx, slog.LevelDebug)
	recount := false
	for _, e := range c.core.Events() {
		c.server.metrics.event(e)
		t := e.Type.Short()
		e.Reason = sanitize(e.Reason, maxLoggedText)
		switch e.Kind {
		case stream.EventSent:
			if debug {
				log.DebugContext(ctx, "push", "proxy", c.nodeID, "type_url", t, "generation", e.Generation, "names", e.Names, "removal", e.Removal)
			}
		case stream.EventAccepted:
			recount = recount || c.rejecting != nil
			if debug {
				log.DebugContext(ctx, "ack", "proxy", c.nodeID, "type_url", t, "generation", e.Generation, "names", e.Names, "took", e.Took)
			}
		case stream.EventNacked:
			recount = true
			c.logRejection(ctx, e)
		case stream.EventRejected:
			recount = true
			c.logRejection(ctx, e)
			c.fallBackToInline(e)
		case stream.EventGateTimeout:
			c.log(slog.LevelWarn, "no ACK from proxy in time, continuing", 0, "proxy", c.nodeID, "type_url", t, "generation", e.Generation)
		case stream.EventStale:
			log.DebugContext(ctx, "ACK for an unknown nonce", "proxy", c.nodeID, "type_url", t)
		case stream.EventConverged:
			recount = recount || c.rejecting != nil
		}
	}
	if recount {
		c.countRejecting()
	}
}

// countRejecting updates the metrics of types of which the proxy rejects something.
func (c *conn) countRejecting() {
	rejecting := map[stream.TypeURL]bool{}
	for _, t := range c.core.Status() {
		if t.Unknown > 0 || len(t.Rejected) > 0 {
			rejecting[t.Type] = true
		}
	}
	for t, g := range c.server.metrics.rejecting {
		switch {
		case rejecting[t] && !c.rejecting[t]:
			g.Inc()
		case !rejecting[t] && c.rejecting[t]:
			g.Dec()
		}
	}
	if len(rejecting) == 0 {
		rejecting = nil
	}
	c.rejecting = rejecting
}

// noteConverged reports to the rollouts that the proxy has answered all of its generation.
func (c *conn) noteConverged() {
	if !c.converging || c.core.Target() == nil {
		return
	}
	types := c.core.Status()
	if !asksForAll(types) {
		return
	}
	var rejected []ProxyRejection
	standing := map[stream.Rejection]struct{}{}
	for _, t := range types {
		if t.Pending {
			return
		}
		for _, r := range t.Rejected {
			standing[r] = struct{}{}
			if _, known := c.knownRejections[r]; !known { // an older one is not caused by this change
				rejected = append(rejected, ProxyRejection{Proxy: c.nodeID, Type: t.Type.Short(), Name: r.Name, Reason: sanitize(r.Reason, 1024)})
			}
		}
	}
	if c.current.Load() == c.applied { // else a newer state waits to be applied
		c.server.metrics.convergence.Observe(seconds(time.Since(c.applied.at)))
	}
	for _, r := range c.takeAnswered(c.applied.generation) {
		r.answered(rejected)
	}
	c.converging, c.knownRejections = false, standing
	c.owesSince.Store(nil)
	c.everAnswered.Store(true)
	if len(standing) == 0 {
		c.knownRejections = nil
	}
	c.releaseSlot()
}

// origins are the objects that the resources of a type were made from, by name.
func (c *conn) origins(t stream.TypeURL) map[string][]string {
	if c.resources == nil {
		return nil
	}
	return c.resources.Origins(t, func(string) bool { return true })
}

// sent lists what the proxy has of a type, with the origins.
func (c *conn) sent(t stream.TypeURL) []ResourceStatus {
	origins := c.origins(t)
	var out []ResourceStatus
	for _, r := range c.core.Sent(t) {
		out = append(out, ResourceStatus{Type: t, Sent: r, Accepted: r.Version == r.Wanted && !r.Unknown, Origins: origins[r.Name]})
	}
	return out
}
