package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/wire"
)

// Bounds on what an Envoy can make grow.
const (
	maxEnvoys  = 4 // hot restart makes two
	maxMessage = 64 << 20
)

// peer is one connected Envoy. The core owns all of it but out.
type peer struct {
	protocol *stream.Server
	// out has the next response for the goroutine that sends; its capacity is one.
	out     chan *stream.Response
	cancel  context.CancelCauseFunc
	since   time.Time
	version bootstrap.Version
	// live means that it once had the whole configuration.
	live bool
	// names are the names that it subscribes to; namesChanged means that they changed since
	// the last prune.
	names        map[key]bool
	namesChanged bool
	// vhds says for each route configuration that it was given whether its virtual hosts are
	// sent by VHDS. inlineOnly are those that it rejected in that form.
	vhds, inlineOnly map[string]bool
	// waiting are wildcard requests of types that are not known yet. An answer now would mean
	// that there are no resources.
	waiting []*discoveryv3.DeltaDiscoveryRequest
	// kept is what its release accepted last, before another release came; or nil. Constant.
	kept *state
}

// serve runs the server that Envoys connect to.
func (r *Relay) serve(ctx context.Context, l net.Listener) error {
	//nolint:contextcheck // each call has its own context
	g := grpc.NewServer(slices.Concat(wire.ServerOptions(), r.c.Guard.ServerOptions(), []grpc.ServerOption{
		grpc.MaxConcurrentStreams(maxEnvoys), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.WaitForHandlers(true),
	})...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, &ads{r: r, ctx: ctx})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := g.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serving xDS on %q: %w", r.c.Socket, err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		g.Stop()
		return nil
	})
	return group.Wait()
}

// ads is the service that Envoy sees.
type ads struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	r   *Relay
	ctx context.Context //nolint:containedctx // of Run: the core ends with it, and runs no commands after that
}

// DeltaAggregatedResources serves one Envoy.
func (a *ads) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	ctx, cancel := context.WithCancelCause(s.Context())
	defer cancel(nil)
	stop := context.AfterFunc(a.ctx, func() { cancel(a.ctx.Err()) })
	defer stop()
	first, err := s.Recv()
	if err != nil {
		return err
	}
	if id := first.GetNode().GetId(); id != a.r.c.Node.GetId() {
		a.r.log.Warn("stream rejected: its node ID is not this host's", "node", id, "want", a.r.c.Node.GetId())
		return status.Error(codes.PermissionDenied, errOther.Error())
	}
	p := &peer{
		out: make(chan *stream.Response, 1), cancel: cancel,
		version: nodeVersion(first.GetNode()), names: map[key]bool{}, vhds: map[string]bool{}, inlineOnly: map[string]bool{},
	}
	node := first.GetNode()
	p.kept = a.r.kept(p.version, a.r.c.Node)
	if !a.r.submit(ctx, func(c *core, now time.Time) { c.addEnvoy(now, p, node) }) {
		return status.FromContextError(context.Cause(ctx)).Err()
	}
	defer a.r.submit(a.ctx, func(c *core, _ time.Time) { c.removeEnvoy(p) })
	// Ends with the stream, which ends when this function returns.
	go func() {
		for req, err := first, error(nil); ; req, err = s.Recv() {
			if err != nil {
				cancel(err)
				return
			}
			msg := req // the core handles it later
			if !a.r.submit(ctx, func(c *core, now time.Time) { c.request(now, p, msg) }) {
				return
			}
		}
	}()
	for {
		select {
		case resp := <-p.out:
			if err := s.SendMsg(resp); err != nil { // the codec sends its bytes unchanged
				return err
			}
			// Have the core send the next one.
			if !a.r.submit(ctx, func(*core, time.Time) {}) {
				return ended(ctx)
			}
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

func ended(ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(err, stream.ErrLimit) {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	return status.FromContextError(ctx.Err()).Err()
}

// addEnvoy adds an Envoy that has connected.
func (c *core) addEnvoy(now time.Time, p *peer, node *corev3.Node) {
	p.since, c.lastEnvoy = now, now
	// An Envoy that rejected a response whose answer was lost lists the rejected versions
	// when it reconnects, so those are not trusted. It may be back before its
	// disconnection is noticed.
	for _, q := range c.peers {
		c.noteUnacknowledged(q)
	}
	p.protocol = stream.NewServer(stream.ServerConfig{Unacknowledged: c.unacknowledged, Retry: envoyRetry()})
	c.unacknowledged = nil
	c.peers = append(c.peers, p)
	c.graceUntil = time.Time{}
	if c.number > 0 {
		p.protocol.SetGeneration(c.generation(p))
	}
	c.log.Info("Envoy connected", "envoy_version", p.version)
	if p.version == nodeVersion(c.node) || p.version == (bootstrap.Version{}) {
		return
	}
	// Another release may get other resources, and may accept what the last one
	// rejected: the server has to know.
	c.node = proto.CloneOf(c.node)
	c.node.UserAgentName = node.GetUserAgentName()
	c.node.UserAgentVersionType = node.GetUserAgentVersionType()
	clear(c.rejected)
	maps.DeleteFunc(c.retries, func(_ key, x *retry) bool { return x.at.IsZero() })
	if c.upstream != nil {
		c.upstream.cancel(errNewNode)
	}
}

// removeEnvoy removes an Envoy that has disconnected.
func (c *core) removeEnvoy(p *peer) {
	c.peers = slices.DeleteFunc(c.peers, func(q *peer) bool { return q == p })
	c.noteUnacknowledged(p)
	if left := c.newest(); left != nil {
		left.namesChanged = true // prune what only p subscribed to
	}
	c.log.Info("Envoy disconnected", "envoy_version", p.version, "connected", len(c.peers))
}

// noteUnacknowledged remembers the names of which an Envoy may have any version.
func (c *core) noteUnacknowledged(p *peer) {
	for url, names := range p.protocol.UnacknowledgedNames() {
		if c.unacknowledged == nil {
			c.unacknowledged = map[stream.TypeURL][]string{}
		}
		c.unacknowledged[url] = append(c.unacknowledged[url], names...)
	}
}

// request handles a request of an Envoy.
func (c *core) request(now time.Time, p *peer, req *discoveryv3.DeltaDiscoveryRequest) {
	url := stream.TypeURL(req.GetTypeUrl())
	if url == stream.SecretType {
		c.log.Warn("Envoy requested secrets on the xDS socket; they are served on the SDS socket")
		return
	}
	if url == bootstrap.ProxyConfigType {
		c.log.Warn("Envoy requested the agent's ProxyConfig; it is for the agent alone")
		return
	}
	if url == bootstrap.NameType {
		c.log.Warn("Envoy requested the agent's names for DNS; they are for the agent alone")
		return
	}
	if url == stream.VirtualHostType {
		// Its virtual hosts follow from the route configurations that it subscribes to.
		p.handle(c, now, req)
		return
	}
	c.subscribe(p, url, req)
	if url == stream.RouteType {
		c.applyReportedVersions(p, req.GetInitialResourceVersions())
	}
	if c.wildcard[url] && !c.known[url] {
		p.waiting = append(p.waiting, req)
		if len(p.waiting) > maxWaiting {
			p.cancel(stream.ErrLimit)
		}
		return
	}
	p.handle(c, now, req)
}

// maxWaiting bounds the requests that wait for a type to be known. An Envoy sends one request
// a type, and no more before the answer.
const maxWaiting = 64

func (p *peer) handle(c *core, now time.Time, req *discoveryv3.DeltaDiscoveryRequest) {
	if err := p.protocol.Request(now, req); err != nil {
		c.log.Error("closing Envoy's stream: it subscribes to too many resources", "err", err)
		p.cancel(err)
	}
}

// handleWaiting handles the requests that waited for types that are known now.
func (p *peer) handleWaiting(c *core) {
	waiting := p.waiting
	p.waiting = nil
	for _, req := range waiting {
		if !c.known[stream.TypeURL(req.GetTypeUrl())] {
			p.waiting = append(p.waiting, req)
			continue
		}
		p.handle(c, time.Now(), req)
	}
}

// subscribe adds an Envoy's subscriptions to those of the relay.
func (c *core) subscribe(p *peer, url stream.TypeURL, req *discoveryv3.DeltaDiscoveryRequest) {
	var names []string
	for _, name := range req.GetResourceNamesSubscribe() {
		if name == "*" {
			c.wildcard[url] = true
			c.client.SubscribeAll(url)
			continue
		}
		if len(p.names) >= stream.DefaultMaxNames {
			p.cancel(stream.ErrLimit)
			return
		}
		p.names[key{url, name}], p.namesChanged = true, true
		if c.subscribeName(url, name) {
			names = append(names, name)
		}
		c.takeKept(p, url, name)
	}
	if len(names) > 0 {
		c.client.Subscribe(url, names...)
		c.dirty = true
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		delete(p.names, key{url, name})
		p.namesChanged = true
	}
}

// push gives the sending goroutine the next response, if it has room.
func (p *peer) push(now time.Time) {
	if len(p.out) == 0 {
		if resp := p.protocol.Next(now); resp != nil {
			p.out <- resp
		}
	}
}

// ackState is what an Envoy has acknowledged and rejected, over all types.
type ackState struct {
	// idle means that nothing is left to send or to wait for.
	idle bool
	// answered are the types that it has subscribed to, and of which nothing is left.
	answered map[stream.TypeURL]bool
	settled  map[stream.TypeURL]uint64
	rejected map[key][]stream.Rejection
}

func (p *peer) ackState() ackState {
	v := ackState{answered: map[stream.TypeURL]bool{}, settled: map[stream.TypeURL]uint64{}, rejected: map[key][]stream.Rejection{}}
	wildcards := 0
	v.idle = len(p.waiting) == 0 && len(p.out) == 0
	for _, s := range p.protocol.Status() {
		v.idle = v.idle && !s.Pending
		v.answered[s.Type] = !s.Pending
		v.settled[s.Type] = s.ConvergedGeneration
		if s.Type == stream.ClusterType || s.Type == stream.ListenerType {
			wildcards++
		}
		for _, r := range s.Rejected {
			k := key{s.Type, r.Name}
			v.rejected[k] = append(v.rejected[k], r)
		}
	}
	v.idle = v.idle && wildcards == 2
	return v
}

// rejection reports whether Envoy rejects a version, and why.
func (v ackState) rejection(url stream.TypeURL, name, version string) (string, bool) {
	for _, r := range v.rejected[key{url, name}] {
		if r.Version == version {
			return r.Reason, true
		}
	}
	return "", false
}
