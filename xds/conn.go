package xds

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

type deltaStream = grpc.BidiStreamingServer[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse]

// conn is one connected proxy.
type conn struct {
	server *Server

	// Constant after enter.
	id      uint64
	peer    Peer
	claim   *claim
	nodeID  string
	key     string // what the proxy is known by from one stream to the next
	version string // Envoy's
	since   time.Time

	// Owned by the goroutine of the stream.
	core       *stream.Server
	class      *class
	seen       *mesh.Snapshot // the snapshot looked at last
	workload   *mesh.Workload
	gone       bool                          // the mesh no longer has the workload
	fault      string                        // why the view could not be built, or empty
	touched    uint64                        // the generation that last changed something here
	settling   bool                          // it has not been answered in full
	reported   map[stream.Rejection]struct{} // refusals that were told already
	unsent     time.Time                     // when that was announced; zero once something was sent
	touchedAt  time.Time
	envoy      bootstrap.EnvoyState
	down       bool        // Envoy was absent, and has not been live since
	health     mesh.Health // as reported on
	healthWhy  string
	probed     mesh.Health // as the agent's probe says
	probedWhy  string
	rejecting  map[stream.TypeURL]bool
	notes      []Diagnostic
	encryption Encryption

	bell    chan struct{}
	queries chan query
	done    chan struct{} // closed when the stream has ended
	status  atomic.Pointer[ProxyStatus]
}

// query asks the owner of a stream what a proxy has of a type.
type query struct {
	typeURL stream.TypeURL
	answer  chan []ResourceStatus // has room for one
}

func (s *Server) newConn(p Peer, c *claim, w *mesh.Workload) *conn {
	n := &conn{
		server: s, peer: p, claim: c, nodeID: c.node.ID(), key: p.Host + "\x00" + c.node.ID(), version: c.node.EnvoyVersion.String(), since: time.Now(),
		workload: w, rejecting: map[stream.TypeURL]bool{}, encryption: EncryptionNA,
		bell: make(chan struct{}, 1), queries: make(chan query), done: make(chan struct{}),
	}
	n.status.Store(&ProxyStatus{ID: n.nodeID, Host: p.Host, ServiceAccount: c.account, Connected: true, Since: n.since})
	return n
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

// run serves the stream until it ends.
func (c *conn) run(g deltaStream, requests <-chan *discovery.DeltaDiscoveryRequest, first *discovery.DeltaDiscoveryRequest) error {
	ctx := g.Context()
	c.refresh(ctx)
	if err := c.take(first); err != nil {
		return err
	}
	ends := c.endTimer(time.Now())
	defer ends.Stop()
	gate := time.NewTimer(time.Hour)
	defer gate.Stop()
	out := newSender(g)
	defer close(out.responses)
	for {
		if !out.busy {
			c.push(out)
		}
		c.publish()
		c.setGate(gate, out.busy)
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-c.server.stopped:
			return errStopping
		case <-c.peer.Revoked:
			c.server.log.Warn("proxy cut off: its identity was revoked", "proxy", c.nodeID, "host", c.peer.Host)
			return status.Error(codes.PermissionDenied, "this identity was revoked")
		case <-ends.C:
			return status.Error(codes.Unavailable, "the certificate of this stream ends soon: connect again with the new one")
		case <-c.bell:
			c.refresh(ctx)
		case <-gate.C:
		case err := <-out.results:
			if err != nil {
				return err
			}
			c.pushed(out)
		case q := <-c.queries:
			q.answer <- c.sent(q.typeURL)
		case r, ok := <-requests:
			if !ok {
				return status.Error(codes.Canceled, "the proxy has gone")
			}
			if err := c.take(r); err != nil {
				return err
			}
		}
	}
}

// endTimer fires before the peer's certificate ends, with jitter, so that a
// fleet that was certified together does not return together.
func (c *conn) endTimer(now time.Time) *time.Timer {
	if c.peer.Until.IsZero() {
		return time.NewTimer(1<<62 - 1)
	}
	left := c.peer.Until.Sub(now)
	return time.NewTimer(time.Duration(float64(left) * (0.75 + 0.2*rand.Float64()))) //nolint:gosec // jitter needs no secrecy
}

// setGate arms the timer for when there is something to send although nothing
// came in; not while the last response is still being sent.
func (c *conn) setGate(t *time.Timer, busy bool) {
	if d := c.core.NextDeadline(); d.IsZero() || busy {
		t.Reset(time.Hour)
	} else {
		t.Reset(time.Until(d))
	}
}

// take handles one request.
func (c *conn) take(r *discovery.DeltaDiscoveryRequest) error {
	if isReport(r.GetTypeUrl()) {
		c.takeReport(r)
		return nil
	}
	if err := c.core.Request(time.Now(), r); err != nil {
		c.server.log.Warn("proxy cut off", "proxy", c.nodeID, "host", c.peer.Host, "err", err)
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// takeReport handles what an agent reports of its workload or its Envoy.
func (c *conn) takeReport(r *discovery.DeltaDiscoveryRequest) {
	if r.GetTypeUrl() == bootstrap.EnvoyStateType {
		if names := r.GetResourceNamesSubscribe(); len(names) == 1 {
			c.takeEnvoyState(bootstrap.EnvoyState(clip(names[0], 32)))
		}
		return
	}
	c.probed, c.probedWhy = mesh.Healthy, ""
	if e := r.GetErrorDetail(); e != nil {
		c.probed, c.probedWhy = mesh.Unhealthy, clip(e.GetMessage(), 256)
	}
	c.reportHealth()
}

func (c *conn) takeEnvoyState(state bootstrap.EnvoyState) {
	if state == c.envoy {
		return
	}
	c.server.log.Info("envoy changed its state", "proxy", c.nodeID, "host", c.peer.Host, "from", string(c.envoy), "to", string(state))
	c.envoy = state
	was := c.down
	switch state {
	case bootstrap.EnvoyAbsent:
		c.down = true
	case bootstrap.EnvoyLive, bootstrap.EnvoyRejecting:
		c.down = false
	case bootstrap.EnvoyStarting:
		// One that was gone has no listeners yet; one that an agent has just taken
		// over serves as before.
	}
	if c.down != was {
		c.reportHealth()
	}
}

// reportHealth tells how the workload is: nobody reaches one whose Envoy is
// gone, whatever its application says and whether anyone asks it.
func (c *conn) reportHealth() {
	c.health, c.healthWhy = c.probed, c.probedWhy
	if c.down {
		c.health, c.healthWhy = mesh.Unhealthy, "its envoy does not run"
	}
	if c.reports() {
		c.server.cfg.Health.Report(c.id, mesh.HealthReport{
			ServiceAccount: c.claim.account, Address: c.claim.node.Address.String(), Health: c.health, Reason: c.healthWhy, Own: true,
		})
	}
}

// refresh looks at the newest snapshot.
func (c *conn) refresh(ctx context.Context) {
	s := c.server
	snap := s.cfg.Snapshots.Snapshot()
	if snap == nil {
		return
	}
	if snap == c.seen { // looked at before it was announced
		s.rollouts.seen(c, rolloutStep{from: snap.Generation - 1, to: snap.Generation, touched: c.touched == snap.Generation})
		if !c.settling {
			s.rollouts.settled(c, snap.Generation, nil)
		}
		return
	}
	from := uint64(0)
	if c.seen != nil {
		from = c.seen.Generation
	}
	w, err := c.claim.workload(snap)
	if err != nil {
		// Absence is not emptiness: what it has stands, and is shown as stale.
		if !c.gone {
			s.log.WarnContext(ctx, "the workload of a proxy left the mesh; its last configuration stands", "proxy", c.nodeID, "host", c.peer.Host, "err", err)
		}
		c.gone, c.seen = true, snap
		s.rollouts.seen(c, rolloutStep{from: from, to: snap.Generation})
		return
	}
	proxy := c.claim.proxy(snap, w)
	proxy.AcceptUnenforced = s.cfg.AcceptUnenforced
	cl, warnings, err := s.classes.get(ctx, snap, proxy)
	if ctx.Err() != nil {
		return
	}
	c.gone, c.seen, c.workload = false, snap, w
	if err != nil {
		s.metrics.faults.Inc()
		s.log.ErrorContext(ctx, "view not built; the last configuration of the proxy stands", "proxy", c.nodeID, "err", err)
		c.fault = clip(err.Error(), 256)
		s.rollouts.seen(c, rolloutStep{from: from, to: snap.Generation})
		return
	}
	c.fault = ""
	c.notes = notesOf(warnings, cl)
	changed := c.class != cl
	c.class, c.encryption = cl, cl.encryption
	if changed {
		c.core.SetGeneration(cl.generation)
		c.touched, c.touchedAt = snap.Generation, c.announcedAt(snap)
		c.unsent, c.settling = c.touchedAt, true
	}
	s.rollouts.seen(c, rolloutStep{from: from, to: snap.Generation, touched: changed})
}

// announcedAt is when a snapshot became known, or now.
func (c *conn) announcedAt(snap *mesh.Snapshot) time.Time {
	if a := c.server.announced.Load(); a != nil && a.generation == snap.Generation && a.at.After(c.since) {
		return a.at
	}
	return time.Now()
}

// sender sends one response at a time, so that the owner of a stream is never
// stuck with a peer that does not read: it can still be cut off. Its goroutine
// ends with the handler, whose return ends the stream.
type sender struct {
	responses chan *discovery.DeltaDiscoveryResponse
	results   chan error // has room for one, and there is never more than one
	// busy means that a result is outstanding; started is since when.
	busy    bool
	started time.Time
}

func newSender(g deltaStream) *sender {
	s := &sender{responses: make(chan *discovery.DeltaDiscoveryResponse), results: make(chan error, 1)}
	go func() {
		for r := range s.responses {
			s.results <- g.Send(r)
		}
	}()
	return s
}

// push begins to send the next response, if there is one.
func (c *conn) push(out *sender) {
	now := time.Now()
	r := c.core.Next(now)
	c.events()
	if r == nil {
		c.settle()
		return
	}
	c.server.metrics.size.WithLabelValues(label(r.TypeURL)).Observe(float64(r.Size()))
	out.busy, out.started = true, now
	out.responses <- r.Message() // the sender is idle: it takes it at once
}

// pushed notes that a response was sent.
func (c *conn) pushed(out *sender) {
	out.busy = false
	m := c.server.metrics
	m.sendTime.Observe(seconds(time.Since(out.started)))
	if !c.unsent.IsZero() {
		m.pushTime.Observe(seconds(time.Since(c.unsent)))
		c.unsent = time.Time{}
	}
}

// events logs and counts what has happened on the stream.
func (c *conn) events() {
	log := c.server.log
	for _, e := range c.core.Events() {
		c.server.metrics.event(e)
		t := e.Type.Short()
		switch e.Kind {
		case stream.EventSent:
			log.Debug("push", "proxy", c.nodeID, "type_url", t, "generation", e.Generation, "names", e.Names, "removal", e.Removal)
		case stream.EventAccepted:
			log.Debug("ack", "proxy", c.nodeID, "type_url", t, "generation", e.Generation, "names", e.Names, "took", e.Took)
		case stream.EventNacked:
			log.Warn("nack", "proxy", c.nodeID, "type_url", t, "generation", e.Generation, "names", e.Names, "err", e.Reason)
		case stream.EventRejected:
			log.Warn("resource rejected by a proxy; it keeps the last one that it took", "proxy", c.nodeID, "type_url", t,
				"name", e.Name, "version", e.Version, "generation", e.Generation, "origins", c.origins(e.Type)[e.Name], "err", e.Reason)
		case stream.EventGateTimeout:
			log.Warn("proxy did not answer in time; going on without", "proxy", c.nodeID, "type_url", t, "generation", e.Generation)
		case stream.EventStale:
			log.Debug("answer to a response that nobody waits for", "proxy", c.nodeID, "type_url", t)
		case stream.EventSettled:
		}
	}
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
				rejected = append(rejected, ProxyRejection{Proxy: c.nodeID, Type: t.Type.Short(), Name: r.Name, Reason: r.Reason})
			}
		}
	}
	c.server.metrics.convergence.Observe(seconds(time.Since(c.touchedAt)))
	c.server.rollouts.settled(c, c.touched, rejected)
	c.settling, c.reported = false, standing
}

// origins are where the resources of a type come from, by name.
func (c *conn) origins(t stream.TypeURL) map[string][]string {
	if c.class == nil {
		return nil
	}
	out := map[string][]string{}
	for _, p := range c.class.parts {
		for _, r := range p.resources {
			if r.TypeURL != string(t) {
				continue
			}
			for _, o := range r.Origins {
				out[r.Name] = append(out[r.Name], o.String())
			}
		}
	}
	return out
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
