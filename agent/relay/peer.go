package relay

import (
	"context"
	"errors"
	"fmt"
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

// peer is one connected Envoy. All of it but out is the core's.
type peer struct {
	half *stream.Server
	// out is what the stream's goroutine sends; it holds one.
	out     chan *stream.Response
	cancel  context.CancelCauseFunc
	since   time.Time
	version bootstrap.Version
	// live means that it has once had all there was.
	live bool
	// names are what it asks for by name; asked means that they have changed
	// since names were last pruned.
	names map[key]bool
	asked bool
	// split says of each route table that it has been given whether its virtual
	// hosts travel by themselves; whole are those that it refused so.
	split, whole map[string]bool
	// waiting are requests for everything of a type that is not known yet: an
	// answer now would say that there is nothing.
	waiting []*discoveryv3.DeltaDiscoveryRequest
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
	ctx context.Context //nolint:containedctx // of Run: the core ends with it, and nobody takes events after that
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
		version: nodeVersion(first.GetNode()), names: map[key]bool{}, split: map[string]bool{}, whole: map[string]bool{},
	}
	node := first.GetNode()
	if !a.r.tell(ctx, func(c *core, now time.Time) { c.join(now, p, node) }) {
		return status.FromContextError(context.Cause(ctx)).Err()
	}
	defer a.r.tell(a.ctx, func(c *core, _ time.Time) { c.part(p) })
	// Ends with the stream, which ends when this function returns.
	go func() {
		for req, err := first, error(nil); ; req, err = s.Recv() {
			if err != nil {
				cancel(err)
				return
			}
			msg := req // the core reads it later
			if !a.r.tell(ctx, func(c *core, now time.Time) { c.request(now, p, msg) }) {
				return
			}
		}
	}()
	for {
		select {
		case resp := <-p.out:
			if err := s.SendMsg(resp); err != nil { // the codec takes it as it is
				return err
			}
			// There is room for the next one.
			if !a.r.tell(ctx, func(*core, time.Time) {}) {
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

// join takes in an Envoy that has connected.
func (c *core) join(now time.Time, p *peer, node *corev3.Node) {
	p.since = now
	// What the last Envoy lists after a refusal in mid-flight is not believed. Its end
	// may be noticed only after it is back.
	for _, q := range c.peers {
		c.doubt(q)
	}
	p.half = stream.NewServer(stream.ServerConfig{Distrust: c.distrust})
	c.distrust = nil
	c.peers = append(c.peers, p)
	c.graceUntil = time.Time{}
	if c.number > 0 {
		p.half.SetGeneration(c.generation(p))
	}
	c.log.Info("Envoy connected", "envoy_version", p.version)
	if p.version == nodeVersion(c.node) || p.version == (bootstrap.Version{}) {
		return
	}
	// Another release may get other resources, and may take what the last one
	// refused: the server has to know.
	c.node = proto.CloneOf(c.node)
	c.node.UserAgentName = node.GetUserAgentName()
	c.node.UserAgentVersionType = node.GetUserAgentVersionType()
	clear(c.rejected)
	if c.upstream != nil {
		c.upstream.cancel(errNewNode)
	}
}

// part takes leave of an Envoy.
func (c *core) part(p *peer) {
	c.peers = slices.DeleteFunc(c.peers, func(q *peer) bool { return q == p })
	c.doubt(p)
	if left := c.newest(); left != nil {
		left.asked = true // what only p asked for can go
	}
	c.log.Info("Envoy disconnected", "envoy_version", p.version, "connected", len(c.peers))
}

// doubt notes what an Envoy may or may not have.
func (c *core) doubt(p *peer) {
	for url, names := range p.half.Unknown() {
		if c.distrust == nil {
			c.distrust = map[stream.TypeURL][]string{}
		}
		c.distrust[url] = append(c.distrust[url], names...)
	}
}

// request takes what an Envoy says.
func (c *core) request(now time.Time, p *peer, req *discoveryv3.DeltaDiscoveryRequest) {
	url := stream.TypeURL(req.GetTypeUrl())
	if url == stream.SecretType {
		c.log.Warn("Envoy requested secrets on the xDS socket; they are served on the SDS socket")
		return
	}
	if url == stream.VirtualHostType {
		// Which there are goes with the route tables that it asks for.
		p.take(c, now, req)
		return
	}
	c.want(p, url, req)
	if url == stream.RouteType {
		c.heed(p, req.GetInitialResourceVersions())
	}
	if c.all[url] && !c.known[url] {
		p.waiting = append(p.waiting, req)
		if len(p.waiting) > maxWaiting {
			p.cancel(stream.ErrLimit)
		}
		return
	}
	p.take(c, now, req)
}

// maxWaiting bounds the requests that wait for a type to be known; an Envoy sends
// one a type, and no more before the answer.
const maxWaiting = 64

func (p *peer) take(c *core, now time.Time, req *discoveryv3.DeltaDiscoveryRequest) {
	if err := p.half.Request(now, req); err != nil {
		c.log.Error("closing Envoy's stream: it subscribes to too many resources", "err", err)
		p.cancel(err)
	}
}

// release takes the requests that waited for types that are known now.
func (p *peer) release(c *core) {
	waiting := p.waiting
	p.waiting = nil
	for _, req := range waiting {
		if !c.known[stream.TypeURL(req.GetTypeUrl())] {
			p.waiting = append(p.waiting, req)
			continue
		}
		p.take(c, time.Now(), req)
	}
}

// want asks the server for what an Envoy asks for.
func (c *core) want(p *peer, url stream.TypeURL, req *discoveryv3.DeltaDiscoveryRequest) {
	var names []string
	for _, name := range req.GetResourceNamesSubscribe() {
		if name == "*" {
			c.all[url] = true
			c.client.SubscribeAll(url)
			continue
		}
		if len(p.names) >= stream.DefaultMaxNames {
			p.cancel(stream.ErrLimit)
			return
		}
		p.names[key{url, name}], p.asked = true, true
		if c.wantName(url, name) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		c.client.Subscribe(url, names...)
		c.dirty = true
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		delete(p.names, key{url, name})
		p.asked = true
	}
}

// push hands the stream's goroutine the next response, if it has room.
func (p *peer) push(now time.Time) {
	if len(p.out) == 0 {
		if resp := p.half.Next(now); resp != nil {
			p.out <- resp
		}
	}
}

// verdict is how an Envoy stands with all types.
type verdict struct {
	// calm means that nothing is left to send or to wait for.
	calm     bool
	settled  map[stream.TypeURL]uint64
	rejected map[key][]stream.Rejection
}

func (p *peer) look() verdict {
	v := verdict{settled: map[stream.TypeURL]uint64{}, rejected: map[key][]stream.Rejection{}}
	whole := 0
	v.calm = len(p.waiting) == 0 && len(p.out) == 0
	for _, s := range p.half.Status() {
		v.calm = v.calm && !s.Pending
		v.settled[s.Type] = s.SettledGeneration
		if s.Type == stream.ClusterType || s.Type == stream.ListenerType {
			whole++
		}
		for _, r := range s.Rejected {
			k := key{s.Type, r.Name}
			v.rejected[k] = append(v.rejected[k], r)
		}
	}
	v.calm = v.calm && whole == 2
	return v
}

// refused says whether Envoy refuses a version, and why.
func (v verdict) refused(url stream.TypeURL, name, version string) (string, bool) {
	for _, r := range v.rejected[key{url, name}] {
		if r.Version == version {
			return r.Reason, true
		}
	}
	return "", false
}
