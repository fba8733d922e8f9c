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
)

type deltaStream = grpc.BidiStreamingServer[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse]

// conn is one connected proxy.
type conn struct {
	server *Server

	// Constant after enter.
	id      uint64
	peer    Peer
	account *account
	claim   *claim
	claimed mesh.Claim // the workload that it was let in as
	nodeID  string
	key     string // what the proxy is known by from one stream to the next
	version string // Envoy's
	since   time.Time

	updater

	// Owned by the goroutine of the stream.
	core       *stream.Server
	seen       *proxyState // the one that core was told of
	resources  *cache.Resources
	settling   bool                          // it has not been answered in full
	reported   map[stream.Rejection]struct{} // refusals that were told already
	unsent     time.Time                     // when that was announced; zero once something was sent
	fresh      bool                          // it has the turn of a new stream, until freshUntil at most
	freshUntil time.Time
	asked      time.Time // when the peer said something last, or was given its turn
	ends       time.Time // when the stream ends, because its certificate does; or zero
	timer      *time.Timer
	armed      time.Time // when timer fires; zero if it does not
	envoy      bootstrap.EnvoyState
	health     mesh.Health // that follows from what the peer reports, if that counts
	healthWhy  string
	rejecting  map[stream.TypeURL]bool // or nil

	lines *lineLimits // of the log

	kept      stream.Footprint // as it was weighed last
	unweighed int              // what it may keep since, in bytes

	// Atomic. What is sent and not yet handed to the connection: its bytes, when
	// that last went on, in nanoseconds after since, and whether the owner waits for it.
	unwritten, progress atomic.Int64
	blocked             atomic.Bool

	bell      chan struct{}
	evicted   chan error // why the stream ends; has room for one
	questions chan question
	done      chan struct{} // closed when the stream has ended

	doubts *stream.Memory // what the proxy may or may not have; for all to read once done is closed
}

// question has the owner of a stream do something.
type question struct {
	do       func()
	answered chan struct{}
}

func (q question) answer() {
	q.do()
	close(q.answered)
}

func (s *Server) newConn(p Peer, c *claim, routes cache.Routes) *conn {
	n := &conn{
		server: s, peer: p, claim: c, nodeID: c.node.ID(), key: p.Host + "\x00" + c.node.ID(), version: c.node.EnvoyVersion.String(), since: time.Now(),
		updater: updater{routes: routes}, lines: newLineLimits(),
		bell: make(chan struct{}, 1), evicted: make(chan error, 1), questions: make(chan question), done: make(chan struct{}),
	}
	n.ends = n.endTime(n.since)
	if n.reports() {
		c.others = func(w *mesh.Workload) bool { return s.cfg.Health.HeldByOther(p.Host, p.Source.Unmap().WithZone(""), w) }
	}
	return n
}

// ask has the owner of the stream do something, and waits for it; false if the
// stream has ended or giveUp is closed. The asker may be the owner of another stream,
// whose questions are answered meanwhile; own is nil for others.
func (c *conn) ask(giveUp <-chan struct{}, do func(), own *conn) bool {
	q := question{do, make(chan struct{})}
	var others <-chan question
	if own != nil {
		others = own.questions
	}
	for {
		select {
		case c.questions <- q:
			<-q.answered
			return true
		case o := <-others:
			o.answer()
		case <-c.done:
			return false
		case <-giveUp:
			return false
		}
	}
}

// name is NAME.NAMESPACE, as people type it.
func (c *conn) name() string { return c.claim.node.Name + "." + c.claim.node.Namespace }

// reports means that what the peer says of its workload's health counts.
func (c *conn) reports() bool { return c.server.cfg.Health != nil && !c.peer.Anonymous }

func (c *conn) ring() {
	select {
	case c.bell <- struct{}{}:
	default: // it will look at the newest snapshot anyway
	}
}

// evict ends the stream; the first reason counts.
func (c *conn) evict(err error) {
	select {
	case c.evicted <- err:
	default:
	}
}

// lose ends the stream because its workload is another host's.
func (c *conn) lose(reason string) {
	c.evict(c.server.refuse(c.peer, c.nodeID, errors.New(reason)))
}

// run serves the stream until it ends.
func (c *conn) run(g deltaStream, requests <-chan string, first string) error {
	ctx := g.Context()
	if err := c.revoked(); err != nil { // while it waited for its turn
		return err
	}
	if err := c.hearOut(first); err != nil {
		return err
	}
	c.timer = time.NewTimer(freshFor)
	defer c.timer.Stop()
	c.armed = time.Now().Add(freshFor)
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
		case <-c.bell:
		case now := <-c.timer.C:
			c.armed = time.Time{}
			if err := c.due(now); err != nil {
				return err
			}
		case q := <-c.questions:
			q.answer()
		case r, ok := <-requests:
			if !ok {
				return status.Error(codes.Canceled, "the proxy has gone")
			}
			if err := c.hearOut(r); err != nil {
				return err
			}
		}
	}
}

// revoked ends a stream whose peer has lost its identity.
func (c *conn) revoked() error {
	select {
	case <-c.peer.Revoked:
		c.tell(slog.LevelWarn, "stream closed: host removed or replaced", 0, "proxy", c.nodeID, "host", c.peer.Host)
		return status.Error(codes.PermissionDenied, "this identity was revoked")
	default:
		return nil
	}
}

// endTime is before the peer's certificate ends, with jitter, so that a fleet that
// was certified together does not return together.
func (c *conn) endTime(now time.Time) time.Time {
	if c.peer.Until.IsZero() {
		return time.Time{}
	}
	left := c.peer.Until.Sub(now)
	return now.Add(time.Duration(float64(left) * (0.75 + 0.2*rand.Float64()))) //nolint:gosec // jitter needs no secrecy
}

// arm sets the timer for the first of what may be due although nothing came in.
// It is only ever set earlier, lest every turn of the stream set it: what it fires
// for may have been put off meanwhile.
func (c *conn) arm() {
	next := c.ends
	first := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	first(c.turnEnds())
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

// due does what is due; an error ends the stream.
func (c *conn) due(now time.Time) error {
	reached := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	if reached(c.ends) {
		return status.Error(codes.Unavailable, "the certificate of this stream expires soon: reconnect with the new one")
	}
	if reached(c.slowAt()) {
		c.server.metrics.slow.Inc()
		c.tell(slog.LevelWarn, "stream closed: proxy does not read (--slow-proxy-timeout)", 0, "proxy", c.nodeID, "host", c.peer.Host,
			"after", c.server.cfg.SlowTimeout, "unread_bytes", c.unwritten.Load())
		return status.Errorf(codes.Unavailable, "too little was read for %s: reconnect", c.server.cfg.SlowTimeout)
	}
	if reached(c.turnEnds()) {
		c.old()
	}
	return nil
}

// take handles one request.
func (c *conn) take(frame string) error {
	c.asked = time.Now()
	r, err := stream.DecodeRequest(frame, stream.DefaultMaxNames)
	if err == nil && isReport(r.GetTypeUrl()) {
		c.takeReport(r.DeltaDiscoveryRequest)
		return nil
	}
	if err == nil {
		c.keepReported(r)
		c.refresh()
		err = c.core.Take(c.asked, r)
	}
	if err != nil {
		c.tell(slog.LevelWarn, "stream closed", 0, "proxy", c.nodeID, "host", c.peer.Host, "err", err)
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// takeReport handles what an agent reports of its workload or its Envoy.
func (c *conn) takeReport(r *discovery.DeltaDiscoveryRequest) {
	if r.GetTypeUrl() == bootstrap.EnvoyStateType {
		if names := r.GetResourceNamesSubscribe(); len(names) == 1 {
			// With a text of its own: that of the request is not to be kept.
			c.takeEnvoyState(bootstrap.EnvoyState(strings.Clone(clip(names[0], 32))))
		}
		return
	}
	if !c.reports() {
		return
	}
	probe, why := mesh.Healthy, ""
	if e := r.GetErrorDetail(); e != nil {
		probe, why = mesh.Unhealthy, clip(e.GetMessage(), 256)
	}
	c.health, c.healthWhy = c.server.cfg.Health.ReportProbe(c.id, probe, why)
}

func (c *conn) takeEnvoyState(state bootstrap.EnvoyState) {
	if state == c.envoy {
		return
	}
	c.logEnvoyState(state)
	c.envoy = state
	if c.reports() {
		c.health, c.healthWhy = c.server.cfg.Health.ReportEnvoy(c.id, string(state))
	}
}

// logEnvoyState reports another state. The first one that a stream reports is
// expected to be live or, while its agent has not started it yet, absent.
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
	if skipped, ok := c.lines.states.Allow(time.Now()); ok {
		c.tell(slog.LevelInfo, "Envoy state changed", skipped, "proxy", c.nodeID, "host", c.peer.Host, "from", string(c.envoy), "to", string(state))
	}
}

// refresh tells the core what the proxy shall have, if that changed.
func (c *conn) refresh() {
	o := c.current.Load()
	if o == c.seen || o == nil {
		return
	}
	c.seen = o
	if o.Resources == nil {
		return
	}
	c.settling = true // even if it is what it was: somebody may wait to hear so
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

// events logs and counts what has happened on the stream.
func (c *conn) events(ctx context.Context) {
	log := c.server.log
	debug := log.Enabled(ctx, slog.LevelDebug)
	troubled := false
	for _, e := range c.core.Events() {
		c.server.metrics.event(e)
		t := e.Type.Short()
		e.Reason = clip(e.Reason, maxSaid)
		switch e.Kind {
		case stream.EventSent:
			if debug {
				log.DebugContext(ctx, "push", "proxy", c.nodeID, "type_url", t, "generation", e.Generation, "names", e.Names, "removal", e.Removal)
			}
		case stream.EventAccepted:
			troubled = troubled || c.rejecting != nil
			if debug {
				log.DebugContext(ctx, "ack", "proxy", c.nodeID, "type_url", t, "generation", e.Generation, "names", e.Names, "took", e.Took)
			}
		case stream.EventNacked:
			troubled = true
			c.logRefusal(ctx, e)
		case stream.EventRejected:
			troubled = true
			c.logRefusal(ctx, e)
			c.fallBack(e)
		case stream.EventGateTimeout:
			c.tell(slog.LevelWarn, "no ACK from proxy in time, continuing", 0, "proxy", c.nodeID, "type_url", t, "generation", e.Generation)
		case stream.EventStale:
			log.DebugContext(ctx, "ACK for an unknown nonce", "proxy", c.nodeID, "type_url", t)
		case stream.EventSettled:
			troubled = troubled || c.rejecting != nil
		}
	}
	if troubled {
		c.countRejecting()
	}
}

// countRejecting keeps the metrics of types that the proxy refuses something of.
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

// settle notes that the proxy has answered all of its generation.
func (c *conn) settle() {
	if !c.settling || c.core.Target() == nil {
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
			if _, told := c.reported[r]; !told { // an old one is not the fault of this change
				rejected = append(rejected, ProxyRejection{Proxy: c.nodeID, Type: t.Type.Short(), Name: r.Name, Reason: clip(r.Reason, 1024)})
			}
		}
	}
	if c.current.Load() == c.seen { // else something else is on its way
		c.server.metrics.convergence.Observe(seconds(time.Since(c.seen.at)))
	}
	for _, r := range c.paid(c.seen.generation) {
		r.answered(rejected)
	}
	c.settling, c.reported = false, standing
	if len(standing) == 0 {
		c.reported = nil
	}
	c.old()
}

// origins are where the resources of a type come from, by name.
func (c *conn) origins(t stream.TypeURL) map[string][]string {
	if c.resources == nil {
		return nil
	}
	return c.resources.Origins(t, func(string) bool { return true })
}

// sent lists what the proxy has of a type, with where it comes from.
func (c *conn) sent(t stream.TypeURL) []ResourceStatus {
	origins := c.origins(t)
	var out []ResourceStatus
	for _, r := range c.core.Sent(t) {
		out = append(out, ResourceStatus{Type: t, Sent: r, Accepted: r.Version == r.Wanted && !r.Unknown, Origins: origins[r.Name]})
	}
	return out
}
