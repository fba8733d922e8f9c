package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// Server serves configuration to proxies. See the package's comment.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer

	// Constant after construction.
	cfg      Config
	log      *slog.Logger
	metrics  *metrics
	classes  *classes
	interner *stream.Interner
	stopped  chan struct{} // closed when Run ends
	rollouts *rollouts
	refused  *refusals

	// Atomic.
	streams   atomic.Int64
	announced atomic.Pointer[announcement]

	mu       sync.Mutex // guards all following fields
	next     uint64
	conns    map[uint64]*conn
	byKey    map[string][]*conn // the same, by key of the proxy
	hosts    map[string]int     // the streams of each host, those without a node yet too
	left     []ProxyStatus      // of proxies that have gone, newest last
	distrust []doubt            // of proxies that have gone, newest last
	closed   bool
}

// doubt is what a proxy that has gone may or may not have.
type doubt struct {
	key   string // of the proxy
	names map[stream.TypeURL][]string
}

// announcement is when a snapshot became known here.
type announcement struct {
	generation uint64
	at         time.Time
}

// Bounds on what is remembered of proxies that are not connected.
const (
	maxLeft     = 256
	maxDistrust = 4096
)

// New makes a server. Register it, and Run it.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return &Server{
		cfg:      cfg,
		log:      cfg.Logger.With("component", "xds"),
		metrics:  m,
		classes:  newClasses(),
		interner: new(stream.Interner),
		stopped:  make(chan struct{}),
		rollouts: newRollouts(),
		refused:  newRefusals(),
		conns:    map[uint64]*conn{},
		byKey:    map[string][]*conn{},
		hosts:    map[string]int{},
	}, nil
}

// Register adds the discovery service to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s)
}

// Run announces snapshots to the streams until ctx is done, and then ends the
// streams. Call it once.
func (s *Server) Run(ctx context.Context) error {
	defer s.stop()
	bell, cancel := s.cfg.Snapshots.Subscribe()
	defer cancel()
	report := time.NewTicker(time.Second)
	defer report.Stop()
	s.announce(time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-bell:
			s.announce(time.Now())
		case <-s.rollouts.bell:
			s.logRollouts(time.Now())
		case now := <-report.C:
			s.logRollouts(now)
		}
	}
}

// announce rings the doorbell of every stream.
func (s *Server) announce(now time.Time) {
	snap := s.cfg.Snapshots.Snapshot()
	if snap == nil {
		return
	}
	if a := s.announced.Load(); a != nil && a.generation == snap.Generation {
		return
	}
	s.announced.Store(&announcement{snap.Generation, now})
	conns := s.connections()
	s.rollouts.begin(snap, now, conns)
	for _, c := range conns {
		c.ring()
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

func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Collect(maps.Values(s.conns))
	slices.SortFunc(list, func(a, b *conn) int { return cmp.Compare(a.id, b.id) })
	return list
}

// errRefused is all that a peer hears that is not let in.
var errRefused = status.Error(codes.PermissionDenied, "not admitted: the control plane's log and proxy-status say why")

// StreamAggregatedResources is refused: only the incremental variant is spoken.
func (*Server) StreamAggregatedResources(grpc.BidiStreamingServer[discovery.DiscoveryRequest, discovery.DiscoveryResponse]) error {
	return status.Error(codes.Unimplemented, "only incremental xDS is served: set api_type DELTA_GRPC in ads_config")
}

// DeltaAggregatedResources serves one proxy.
func (s *Server) DeltaAggregatedResources(g deltaStream) error {
	if s.streams.Add(1) > int64(s.cfg.MaxStreams) {
		s.streams.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "this server serves %d streams already", s.cfg.MaxStreams)
	}
	defer s.streams.Add(-1)
	ctx := g.Context()
	peer, err := s.cfg.Admission.Admit(ctx)
	if err != nil {
		return s.refuse(peer, "", err)
	}
	release, err := s.reserve(peer)
	if err != nil {
		return err
	}
	defer release()
	requests := receive(g)
	first, err := s.firstRequest(ctx, requests)
	if err != nil {
		return err
	}
	node, err := bootstrap.ParseNode(first.GetNode())
	if err != nil {
		return s.refuse(peer, first.GetNode().GetId(), err)
	}
	claimed, err := checkClaim(peer, node)
	if err != nil {
		return s.refuse(peer, node.ID(), err)
	}
	snap := s.cfg.Snapshots.Snapshot()
	if snap == nil {
		return status.Error(codes.Unavailable, "the control plane has not read its configuration yet")
	}
	w, err := claimed.workload(snap)
	switch {
	case err != nil && snap.Incomplete:
		return status.Error(codes.Unavailable, "the control plane has not read all of its configuration yet")
	case err != nil:
		return s.refuse(peer, node.ID(), err)
	}
	c := s.newConn(peer, claimed, w)
	if err := s.enter(c); err != nil {
		return err
	}
	defer s.leave(c)
	return c.run(g, requests, first)
}

// reserve counts a stream for its host, before anything is awaited from it: one
// host must not take the room of all.
func (s *Server) reserve(p Peer) (release func(), err error) {
	if p.Anonymous {
		return func() {}, nil
	}
	host := p.Host
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.hosts[host]; n >= s.cfg.MaxPerHost {
		return nil, status.Errorf(codes.ResourceExhausted, "this host has %d streams already", n)
	}
	s.hosts[host]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.hosts[host]--; s.hosts[host] == 0 {
			delete(s.hosts, host)
		}
	}, nil
}

// firstRequest waits for the request that has the node.
func (s *Server) firstRequest(ctx context.Context, requests <-chan *discovery.DeltaDiscoveryRequest) (*discovery.DeltaDiscoveryRequest, error) {
	timer := time.NewTimer(s.cfg.NodeTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-s.stopped:
		return nil, errStopping
	case <-timer.C:
		return nil, status.Error(codes.DeadlineExceeded, "no request came")
	case r, ok := <-requests:
		if !ok {
			return nil, status.Error(codes.Canceled, "no request came")
		}
		return r, nil
	}
}

// receive hands requests over until the stream ends; then it closes the
// channel. Its goroutine ends with the handler, whose return ends the stream.
func receive(g deltaStream) <-chan *discovery.DeltaDiscoveryRequest {
	out := make(chan *discovery.DeltaDiscoveryRequest)
	go func() {
		defer close(out)
		for {
			r, err := g.Recv()
			if err != nil {
				return
			}
			select {
			case out <- r:
			case <-g.Context().Done():
				return
			}
		}
	}()
	return out
}

// refuse notes why a peer is not let in, and gives what it hears.
func (s *Server) refuse(p Peer, node string, reason error) error {
	s.metrics.refused.Inc()
	if s.refused.add(Refusal{Host: p.Host, Node: clip(node, 256), Reason: clip(reason.Error(), 1024), Last: time.Now()}) {
		s.log.Warn("proxy refused", "host", p.Host, "node", clip(node, 256), "err", reason)
	} else {
		s.log.Debug("proxy refused again", "host", p.Host, "node", clip(node, 256), "err", reason)
	}
	return errRefused
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

// enter adds a connection to those that are served.
func (s *Server) enter(c *conn) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errStopping
	}
	s.next++
	c.id = s.next
	distrust := s.doubtsOf(c.key)
	s.conns[c.id] = c
	s.byKey[c.key] = append(s.byKey[c.key], c)
	s.left = slices.DeleteFunc(s.left, func(p ProxyStatus) bool { return p.ID == c.nodeID && p.Host == c.peer.Host })
	s.mu.Unlock()

	c.core = stream.NewServer(stream.ServerConfig{
		Interner: s.interner, GateTimeout: s.cfg.GateTimeout, Distrust: distrust,
	})
	s.refused.forget(c.peer.Host, c.nodeID)
	s.metrics.streams.WithLabelValues(versionLabel(c.claim.node.EnvoyVersion)).Inc()
	if c.reports() {
		s.cfg.Health.StreamOpened(c.id, c.claim.account, c.claim.node.Address.String())
	}
	s.log.Info("proxy connected", "proxy", c.nodeID, "host", c.peer.Host, "spiffe_id", c.peer.ID.String(), "envoy", c.version)
	return nil
}

// doubtsOf is what a proxy that comes back may or may not have: of its last
// stream, and of streams that nobody has noticed the end of. Called with mu held.
func (s *Server) doubtsOf(key string) map[stream.TypeURL][]string {
	found := map[stream.TypeURL][]string{}
	add := func(names map[stream.TypeURL][]string) {
		for t, list := range names {
			found[t] = append(found[t], list...)
		}
	}
	s.distrust = slices.DeleteFunc(s.distrust, func(d doubt) bool {
		if d.key == key {
			add(d.names)
		}
		return d.key == key
	})
	for _, o := range s.byKey[key] {
		add(o.status.Load().doubts)
	}
	return found
}

func (s *Server) leave(c *conn) {
	if c.reports() {
		s.cfg.Health.StreamClosed(c.id)
	}
	s.metrics.streams.WithLabelValues(versionLabel(c.claim.node.EnvoyVersion)).Dec()
	for t := range c.rejecting {
		s.metrics.rejecting[t].Dec()
	}
	st := *c.publish()
	st.Connected, st.Left = false, time.Now()
	unknown := c.core.Unknown()
	close(c.done)
	s.mu.Lock()
	delete(s.conns, c.id)
	s.byKey[c.key] = slices.DeleteFunc(s.byKey[c.key], func(o *conn) bool { return o == c })
	if len(s.byKey[c.key]) == 0 { // else it is back already, and the stream that it has knows better
		delete(s.byKey, c.key)
		s.left = append(s.left, st)
		if n := len(s.left); n > maxLeft {
			s.left = slices.Delete(s.left, 0, n-maxLeft)
		}
		if unknown != nil {
			s.distrust = append(s.distrust, doubt{c.key, unknown})
		}
		if n := len(s.distrust); n > maxDistrust {
			s.distrust = slices.Delete(s.distrust, 0, n-maxDistrust)
		}
	}
	s.mu.Unlock()
	s.rollouts.leave(c.id)
	s.log.Info("proxy disconnected", "proxy", c.nodeID, "host", c.peer.Host, "after", time.Since(c.since).Round(time.Millisecond))
}

var errStopping = status.Error(codes.Unavailable, "the control plane is stopping")

// ErrUnknownProxy is what a look-up of a proxy that is not connected gives.
var ErrUnknownProxy = errors.New("no such proxy is connected")

// find gives the connection of a proxy, by its node id, by NAME.NAMESPACE, or by
// its host; the newest one if there are several of one id.
func (s *Server) find(proxy string) (*conn, error) {
	var found *conn
	for _, c := range s.connections() {
		if c.nodeID != proxy && c.name() != proxy && c.peer.Host != proxy {
			continue
		}
		if found != nil && found.nodeID != c.nodeID {
			return nil, fmt.Errorf("looking for proxy %q: it may be %q or %q: %w", proxy, found.nodeID, c.nodeID, ErrUnknownProxy)
		}
		found = c
	}
	if found == nil {
		return nil, fmt.Errorf("looking for proxy %q: %w", proxy, ErrUnknownProxy)
	}
	return found, nil
}
