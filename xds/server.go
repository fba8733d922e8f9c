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

	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/internal/plain"
	"github.com/fairlead/fairlead/internal/refusals"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/wire"
)

// Server serves configuration to proxies. See the package's comment.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer

	// Constant after construction.
	cfg      Config
	log      *slog.Logger
	metrics  *metrics
	cache    *cache.Cache
	interner *stream.Interner
	stopped  chan struct{} // closed when Run ends
	rollouts *rollouts
	refused  refusals.List[Refusal, *Refusal]
	lines    *loglimit.Peers // of what is refused
	limits   seldom

	fresh   chan struct{} // has room for the streams that are new at a time
	judging chan struct{} // has room for those whose node is decoded
	heard   chan struct{} // has room for those whose first request is read before it is their turn
	kept    ledger
	sent    cache.ByType
	quiet   pause // holds new streams while a snapshot is announced

	// Atomic.
	streams   atomic.Int64
	announced atomic.Pointer[announcement]
	looked    atomic.Uint64 // the generation that all proxies have seen
	next      atomic.Uint64 // the number of the newest stream

	mu       sync.Mutex // guards all following fields
	conns    map[*conn]struct{}
	byKey    map[string][]*conn // the same, by key of the proxy
	hosts    map[string]*account
	left     []ProxyStatus // of proxies that have gone, newest last
	distrust []doubt       // of proxies that have gone, newest last
	closed   bool
}

// announcement is when a snapshot became known here.
type announcement struct {
	generation uint64
	at         time.Time
}

// New makes a server. Register it, and Run it.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:      cfg,
		log:      cfg.Logger.With("component", "xds"),
		cache:    cache.New(cfg.Settings),
		fresh:    make(chan struct{}, cfg.MaxNew),
		heard:    make(chan struct{}, 4*cfg.MaxNew),
		judging:  make(chan struct{}, runtime.GOMAXPROCS(0)),
		interner: new(stream.Interner),
		stopped:  make(chan struct{}),
		rollouts: newRollouts(),
		lines:    loglimit.NewPeers(),
		conns:    map[*conn]struct{}{},
		byKey:    map[string][]*conn{},
		hosts:    map[string]*account{},
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

// Run announces snapshots to the streams until ctx is done, and then ends the
// streams. Call it once.
func (s *Server) Run(ctx context.Context) error {
	defer s.stop()
	bell, cancel := s.cfg.Snapshots.Subscribe()
	defer cancel()
	report := time.NewTicker(time.Second)
	defer report.Stop()
	s.announce(ctx, time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-bell:
			s.announce(ctx, time.Now())
		case <-s.rollouts.bell:
			s.logRollouts(time.Now())
		case now := <-report.C:
			s.logRollouts(now)
			s.forgetIdle(now)
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

// connections are those that are served, in any order.
func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.conns))
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
		return s.exhausted(0, "--max-streams reached (%d)", s.cfg.MaxStreams)
	}
	defer s.streams.Add(-1)
	ctx, began := g.Context(), time.Now()
	peer, err := s.cfg.Admission.Admit(ctx)
	if err != nil {
		return s.refuse(peer, "", err)
	}
	account, release, err := s.reserve(ctx, peer)
	if err != nil {
		return err
	}
	defer release()
	passOn, err := s.hear(ctx, account)
	if err != nil {
		return err
	}
	defer passOn()
	turn := make(chan struct{})
	requests := s.receive(g, account, turn)
	first, err := s.firstRequest(ctx, requests, passOn)
	if err != nil {
		return err
	}
	c, err := s.judge(peer, first)
	if err != nil {
		return err
	}
	c.account = account
	defer s.hostTime(c, began)()
	if err := s.awaitTurn(ctx, c); err != nil {
		return err
	}
	defer c.old()
	passOn()
	close(turn)
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

// hostTime passes on what the host says that its clock shows, until the function that
// it returns is called. Hosts alone have a say: whoever may have a workload's
// certificate without an agent has none. It is said of the moment when the stream began; the request
// may have waited since. It is no part of what a proxy sees, or of any version.
func (s *Server) hostTime(c *conn, began time.Time) (forget func()) {
	said := c.claim.node.Time
	if s.cfg.Clocks == nil || c.peer.Anonymous || c.peer.Direct || said.IsZero() {
		return func() {}
	}
	return s.cfg.Clocks.HostTime(c.peer.Host, c.peer.Address, said, began)
}

// judge makes the connection of a peer, if that may have it.
func (s *Server) judge(peer Peer, first string) (*conn, error) {
	s.judging <- struct{}{} // a node may be fifty times as large as its encoding
	defer func() { <-s.judging }()
	says, err := stream.DecodeNode(first)
	if err != nil {
		return nil, s.refuse(peer, "", err)
	}
	node, err := bootstrap.ParseNode(says)
	if err != nil {
		return nil, s.refuse(peer, says.GetId(), err)
	}
	claimed, err := checkClaim(peer, node)
	if err != nil {
		return nil, s.refuse(peer, node.ID(), err)
	}
	snap := s.cfg.Snapshots.Snapshot()
	if snap == nil {
		return nil, status.Error(codes.Unavailable, "the control plane has not read its configuration yet")
	}
	_, err = claimed.workload(snap)
	switch {
	case err != nil && snap.Incomplete:
		return nil, status.Error(codes.Unavailable, "the control plane has not read all of its configuration yet")
	case err != nil:
		return nil, s.refuse(peer, node.ID(), err)
	}
	return s.newConn(peer, claimed, s.routesFor(node, says.GetClientFeatures())), nil
}

// firstRequest waits for the request that has the node. A peer that is slow to
// send it keeps nobody else from being heard.
func (s *Server) firstRequest(ctx context.Context, requests <-chan string, passOn func()) (string, error) {
	slow := time.AfterFunc(time.Second, passOn)
	defer slow.Stop()
	timer := time.NewTimer(s.cfg.NodeTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return "", status.FromContextError(ctx.Err()).Err()
	case <-s.stopped:
		return "", errStopping
	case <-timer.C:
		return "", status.Error(codes.DeadlineExceeded, "no request came")
	case r, ok := <-requests:
		if !ok {
			return "", status.Error(codes.Canceled, "no request came")
		}
		return r, nil
	}
}

// frame is a request as it came.
type frame struct{ text string }

var _ wire.Kept = (*frame)(nil)

// Keep implements [wire.Kept].
func (f *frame) Keep(text string) { f.text = text }

// receive hands requests over, as they came, until the stream ends; then it closes
// the channel. The second is not read before it is the stream's turn: a proxy that
// comes back lists thousands of versions, and a fleet comes back at once; nor before
// the host may ask for more. Its goroutine ends with the handler, whose return ends the stream.
func (s *Server) receive(g deltaStream, a *account, turn <-chan struct{}) <-chan string {
	out := make(chan string)
	go func() {
		defer close(out)
		for {
			var f frame
			if err := g.RecvMsg(&f); err != nil {
				s.tellOfSize(a, err)
				return
			}
			debt := a.charge(time.Now(), 1+float64(len(f.text))/readAsOne)
			select {
			case out <- f.text:
			case <-g.Context().Done():
				return
			}
			select {
			case <-turn:
			case <-g.Context().Done():
				return
			}
			if s.pay(g.Context(), debt) != nil {
				return
			}
		}
	}()
	return out
}

// tellOfSize logs that a request was too large, which the transport refuses.
func (s *Server) tellOfSize(a *account, err error) {
	if status.Code(err) != codes.ResourceExhausted {
		return
	}
	s.metrics.limited.Inc()
	s.limits.Do(time.Now(), func(skipped int) {
		s.log.Warn("stream closed: request over 16 MiB; the host sees too many services: narrow egress in its Sidecar", "host", a.host, "err", err, "refused_since", skipped)
	})
}

// maxNode bounds, in bytes, what is kept of the node id of a peer that is not let in.
const maxNode = 256

// refuse notes why a peer is not let in, and gives what it hears.
func (s *Server) refuse(p Peer, node string, reason error) error {
	s.metrics.refused.Inc()
	node, why := clip(node, maxNode), clip(reason.Error(), 1024)
	args := []any{"host", p.Host, "node", node, "peer", p.Address, "err", why}
	now := time.Now()
	earlier, again := s.refused.Add(Refusal{Host: p.Host, Peer: p.Address, Node: node, Reason: why}, now)
	if !again || earlier.Reason != why || now.Sub(earlier.Last) > refusals.QuietFor {
		if omitted, ok := s.lines.Allow(p.Host, now); ok {
			if omitted > 0 {
				args = append(args, "left_out", omitted)
			}
			s.log.Warn("proxy not admitted", args...)
			return errRefused
		}
	}
	s.log.Debug("proxy not admitted again", args...)
	return errRefused
}

// clip makes a peer's words fit to be shown.
func clip(s string, n int) string { return plain.Words(s, n) }

var errStopping = status.Error(codes.Unavailable, "the control plane is stopping")

// ErrUnknownProxy is what a look-up of a proxy that is not connected gives.
var ErrUnknownProxy = errors.New("no such proxy is connected")

// find gives the connection of a proxy, by its node id, by NAME.NAMESPACE, or by
// its host; the newest one if there are several of one id.
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
