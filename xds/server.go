package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/fairlist"
	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/internal/refusals"
	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/wire"
)

// Server serves configuration to proxies. See the package comment.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer

	// Constant after construction.
	cfg            Config
	log            *slog.Logger
	metrics        *metrics
	cache          *cache.Cache
	interner       *stream.Interner
	stopped        chan struct{} // closed when Run ends
	rollouts       *rollouts
	refused        refusals.List[Refusal, *Refusal]
	rejectionLines *loglimit.Peers // limit the log lines about rejected peers
	limitLines     loglimit.ByKey  // limits the log lines about each limit

	admissionSlots chan struct{} // capacity: streams that get their first configuration
	decodeSlots    chan struct{} // capacity: nodes that are decoded
	receiveSlots   chan struct{} // capacity: first requests that are received before admission
	kept           memoryTotal
	sent           cache.ByType
	announcing     pause // delays new streams while a snapshot is announced
	unserved       unservedCache
	findings       findingTimes
	tables         tableSums

	// Atomic.
	streams   atomic.Int64
	announced atomic.Pointer[announcement]
	updatedTo atomic.Uint64 // the generation to which all proxies are updated
	next      atomic.Uint64 // the number of the newest stream

	mu             sync.Mutex // guards all following fields
	conns          map[*conn]struct{}
	byKey          map[string][]*conn // the same, by proxyKey
	quotas         map[string]*hostQuota
	departed       *fairlist.List[departedStatus] // of proxies that have disconnected, newest last
	unacknowledged *fairlist.List[departedProxy]  // of proxies that have disconnected, newest last
	closed         bool
}

// announcement is when a snapshot was announced.
type announcement struct {
	generation uint64
	at         time.Time
}

// New makes a server. Call Register and Run.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:            cfg,
		log:            cfg.Logger.With("component", "xds"),
		cache:          cache.New(cfg.Settings),
		admissionSlots: make(chan struct{}, cfg.MaxNew),
		receiveSlots:   make(chan struct{}, cfg.MaxNew),
		decodeSlots:    make(chan struct{}, runtime.GOMAXPROCS(0)),
		interner:       new(stream.Interner),
		stopped:        make(chan struct{}),
		rollouts:       newRollouts(),
		rejectionLines: loglimit.NewPeers(),
		limitLines: loglimit.ByKey{
			Each: loglimit.Allowance{Burst: 1, Every: 10 * time.Second}, All: loglimit.Allowance{Burst: 10, Every: time.Second},
		},
		conns:  map[*conn]struct{}{},
		byKey:  map[string][]*conn{},
		quotas: map[string]*hostQuota{},

		departed:       fairlist.New(maxDeparted, cfg.eachHost(maxDeparted), func(d departedStatus) string { return d.host }),
		unacknowledged: fairlist.New(maxUnacknowledged, cfg.eachHost(maxUnacknowledged), func(d departedProxy) string { return d.host }),
	}
	if s.metrics, err = newMetrics(cfg.Registerer, &s.cache.Work, &s.sent); err != nil {
		return nil, err
	}
	return s, nil
}

// Register adds the discovery service to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s)
}

// Run announces snapshots to the streams until ctx is done, and then ends the streams.
// Call it once.
func (s *Server) Run(ctx context.Context) error {
	defer s.stop()
	changed, cancel := s.cfg.Snapshots.Subscribe()
	defer cancel()
	report := time.NewTicker(time.Second)
	defer report.Stop()
	s.announce(ctx, time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			s.announce(ctx, time.Now())
		case <-s.rollouts.finished:
			s.logRollouts(time.Now())
		case now := <-report.C:
			s.logRollouts(now)
			s.forgetIdle(now)
			s.observeFindings(now)
		}
	}
}

func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.stopped)
	}
}

// connections returns the connections that are served, in any order.
func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.conns))
}

// errRefused is what a peer receives that is not admitted, unless it may know why.
var errRefused = status.Error(codes.PermissionDenied, "not admitted: the control plane's log and proxy-status say why")

// toldError is a reason that a host itself is told, in words that say nothing of others.
type toldError struct {
	error
	told string
}

func (e *toldError) Unwrap() error { return e.error }

// answerTo is what a peer receives that is not admitted. Only a host that has proven its identity is told why.
func answerTo(p *Peer, reason error) error {
	if e, ok := errors.AsType[*toldError](reason); ok && p.Host != "" && !p.Anonymous {
		return status.Error(codes.PermissionDenied, "not admitted: "+sanitize(e.told, 1024))
	}
	return errRefused
}

// StreamAggregatedResources rejects state-of-the-world xDS.
func (*Server) StreamAggregatedResources(grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
	return status.Error(codes.Unimplemented, "only incremental xDS is served: set api_type DELTA_GRPC in ads_config")
}

// DeltaAggregatedResources serves one proxy.
func (s *Server) DeltaAggregatedResources(g deltaStream) error {
	if s.streams.Add(1) > int64(s.cfg.MaxStreams) {
		s.streams.Add(-1)
		return s.rejectAtLimit(0, "--max-streams reached (%d)", s.cfg.MaxStreams)
	}
	defer s.streams.Add(-1)
	ctx, began := g.Context(), time.Now()
	peer, err := s.cfg.Admission.Admit(ctx)
	if err != nil {
		return s.reject(peer, "", err)
	}
	defer peer.resume()
	quota, release, err := s.reserveStream(ctx, peer)
	if err != nil {
		return err
	}
	defer release()
	releaseReceive, err := s.awaitReceiveSlot(ctx, quota)
	if err != nil {
		return err
	}
	defer releaseReceive()
	peer.resume()
	admitted := make(chan struct{})
	requests := s.receive(g, quota, admitted)
	first, err := s.firstRequest(ctx, requests, releaseReceive)
	if err != nil {
		return err
	}
	c, err := s.admitNode(peer, first)
	if err != nil {
		return err
	}
	c.quota = quota
	defer s.hostTime(c, began)()
	if err := s.awaitAdmissionSlot(ctx, c); err != nil {
		return err
	}
	defer c.releaseSlot()
	releaseReceive()
	close(admitted)
	if err := s.enter(ctx, c); err != nil {
		return err
	}
	defer s.leave(c)
	err = c.run(g, requests, first)
	if ctx.Err() == nil {
		c.hangUp()
	}
	return err
}

// hostTime reports the time that the host's clock showed when the stream began, until the
// function that it returns is called. Only hosts count: a peer with a workload's
// certificate may run without an agent. The time is not a part of any configuration or
// version.
func (s *Server) hostTime(c *conn, began time.Time) (forget func()) {
	clock := c.node.reported.Time
	if s.cfg.Clocks == nil || c.peer.Anonymous || c.peer.Direct || clock.IsZero() {
		return func() {}
	}
	return s.cfg.Clocks.HostTime(c.peer.Host, c.peer.Address, clock, began)
}

// admitNode makes the connection of a peer if its node is admitted.
func (s *Server) admitNode(peer Peer, first wire.Frame) (*conn, error) {
	s.decodeSlots <- struct{}{} // a decoded node may be fifty times as large as its encoding
	defer func() { <-s.decodeSlots }()
	reported, err := stream.DecodeNode(first.Buffers())
	if err != nil {
		return nil, s.reject(peer, "", err)
	}
	node, err := bootstrap.ParseNode(reported)
	if err != nil {
		return nil, s.reject(peer, reported.GetId(), err)
	}
	verified, err := verifyNode(peer, node)
	if err != nil {
		return nil, s.reject(peer, node.ID(), err)
	}
	snap := s.cfg.Snapshots.Snapshot()
	if snap == nil {
		return nil, status.Error(codes.Unavailable, "the control plane has not read its configuration yet")
	}
	_, err = verified.workload(snap)
	switch {
	case err != nil && snap.Incomplete:
		return nil, status.Error(codes.Unavailable, "the control plane has not read all of its configuration yet")
	case err != nil:
		return nil, s.reject(peer, node.ID(), err)
	}
	c := s.newConn(peer, verified, s.routesFor(node, reported.GetClientFeatures()))
	c.retry.None = slices.Contains(reported.GetClientFeatures(), bootstrap.FeatureRetries)
	return c, nil
}

// firstRequest waits for the request that has the node. A peer that is slow to send it
// loses its receive slot.
func (s *Server) firstRequest(ctx context.Context, requests <-chan wire.Frame, releaseReceive func()) (first wire.Frame, err error) {
	slow := time.AfterFunc(time.Second, releaseReceive)
	defer slow.Stop()
	timer := time.NewTimer(s.cfg.NodeTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return first, status.FromContextError(ctx.Err()).Err()
	case <-s.stopped:
		return first, errStopping
	case <-timer.C:
		return first, status.Error(codes.DeadlineExceeded, "no request was received in time")
	case r, ok := <-requests:
		if !ok {
			return first, status.Error(codes.Canceled, "the stream ended before the first request")
		}
		return r, nil
	}
}

// rawRequest is an encoded request.
type rawRequest struct{ frame wire.Frame }

var _ wire.RawMessage = (*rawRequest)(nil)

// SetRaw implements [wire.RawMessage].
func (r *rawRequest) SetRaw(frame wire.Frame) { r.frame = frame }

// receive passes on encoded requests until the stream ends; then it closes the channel. It
// reads the second request only when the stream has an admission slot, because a proxy
// that reconnects lists thousands of versions, and a fleet reconnects at once. It also
// waits while the host is throttled. Its goroutine ends with the handler, whose return
// ends the stream.
func (s *Server) receive(g deltaStream, q *hostQuota, admitted <-chan struct{}) <-chan wire.Frame {
	out := make(chan wire.Frame)
	go func() {
		defer close(out)
		for {
			var r rawRequest
			if err := g.RecvMsg(&r); err != nil {
				s.logOversizedRequest(q, err)
				return
			}
			delay := q.reserve(time.Now(), 1+float64(r.frame.Len())/bytesReadPerRequest)
			select {
			case out <- r.frame:
			case <-g.Context().Done():
				return
			}
			select {
			case <-admitted:
			case <-g.Context().Done():
				return
			}
			if s.throttle(g.Context(), delay) != nil {
				return
			}
		}
	}()
	return out
}

// logOversizedRequest logs that a request was too large for the transport.
func (s *Server) logOversizedRequest(q *hostQuota, err error) {
	if status.Code(err) != codes.ResourceExhausted {
		return
	}
	s.metrics.limited.Inc()
	const msg = "stream closed: request over 16 MiB; the host sees too many services: narrow egress in its Sidecar"
	if skipped, ok := s.limitLines.Allow(msg, time.Now()); ok {
		s.log.Warn(msg, "host", q.host, "err", err, "refused_since", skipped)
	}
}

// maxNodeID bounds, in bytes, what is kept of the node id of a peer that is not admitted.
const maxNodeID = 256

// reject records why a peer is not admitted, and returns what the peer receives.
func (s *Server) reject(p Peer, node string, reason error) error {
	s.metrics.refused.Inc()
	node, why := sanitize(node, maxNodeID), sanitize(reason.Error(), 1024)
	args := []any{"host", p.Host, "node", node, "peer", p.Address, "err", why}
	now := time.Now()
	earlier, again := s.refused.Add(Refusal{Host: p.Host, Peer: p.Address, Node: node, Reason: why}, now)
	if !again || earlier.Reason != why || now.Sub(earlier.Last) > refusals.QuietFor {
		if omitted, ok := s.rejectionLines.Allow(p.Host, now); ok {
			if omitted > 0 {
				args = append(args, "left_out", omitted)
			}
			s.log.Warn("proxy not admitted", args...)
			return answerTo(&p, reason)
		}
	}
	s.log.Debug("proxy not admitted again", args...)
	return answerTo(&p, reason)
}

// sanitize bounds a peer's text and makes it safe to show.
func sanitize(s string, n int) string { return safetext.Sanitize(s, n) }

var errStopping = status.Error(codes.Unavailable, "the control plane is stopping")

// ErrUnknownProxy is the error of a look-up of a proxy that is not connected.
var ErrUnknownProxy = errors.New("no such proxy is connected")

// find returns the connection of a proxy, by its node id, by NAME.NAMESPACE, or by its
// host; the newest one if a node id has several.
func (s *Server) find(proxy string) (*conn, error) {
	var found *conn
	for _, c := range s.connections() {
		switch {
		case c.nodeID != proxy && c.name() != proxy && c.peer.Host != proxy:
		case found == nil || found.nodeID == c.nodeID && found.id < c.id:
			found = c
		case found.nodeID != c.nodeID:
			return nil, fmt.Errorf("looking for proxy %q: it may be %q or %q: %w", proxy, found.nodeID, c.nodeID, ErrUnknownProxy)
		}
	}
	if found == nil {
		return nil, fmt.Errorf("looking for proxy %q: %w", proxy, ErrUnknownProxy)
	}
	return found, nil
}
