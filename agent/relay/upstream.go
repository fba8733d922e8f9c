package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// Times of the connection to a server.
const (
	firstBackOff = 100 * time.Millisecond
	lastBackOff  = 5 * time.Second
	// connectTime bounds the time until the stream is open, and answerTime from there to the
	// first response. A server whose whole fleet reconnects admits a limited number of streams
	// at a time, and a client that disconnects loses its place. A dead server is noticed by
	// keepalive pings.
	connectTime = 10 * time.Second
	answerTime  = 10 * time.Minute
)

// window is the flow-control window of a stream, in bytes. Without a fixed window gRPC
// measures one, by pings with every push.
const window = 1 << 20

var (
	errNewNode = errors.New("Envoy was replaced; the server has to know its version")
	errRenew   = errors.New("the certificate of this connection expires soon")
)

// isPlanned reports whether this side ended a stream to open another at once.
func isPlanned(err error) bool {
	for _, reason := range []error{errNewNode, errRenew, errRefusedStore, errRefused, errTaken} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// upstream is the open stream to a server. The core owns all of it but out.
type upstream struct {
	// out has the next request for the goroutine that sends; its capacity is one.
	out       chan *discoveryv3.DeltaDiscoveryRequest
	cancel    context.CancelCauseFunc
	nodeSent  bool                 // the first request, which has the node, was sent
	reported  bootstrap.EnvoyState // the state that was reported on this stream last
	healthDue bool
	// credentials is the report that was sent on this stream last, or nil.
	credentials *bootstrap.Credentials
	// rejectedBefore is what Envoy rejected on earlier streams. It is reported to this server
	// only when it sends the same version: the server before may have received another answer
	// since.
	rejectedBefore map[key]Rejection
}

// dial keeps one stream to the first server that is reachable, until ctx ends. It skips a
// server that rejected a stream with a retry delay until that delay has passed.
func (r *Relay) dial(ctx context.Context) {
	var way network
	again, asked := backoff.ExponentialBackOff{InitialInterval: firstBackOff, Multiplier: 2, RandomizationFactor: 0.5, MaxInterval: lastBackOff}, retryTimes{}
	for {
		for _, server := range r.c.Servers {
			if asked.remaining(server, time.Now()) > 0 {
				continue
			}
			began, answered := time.Now(), false
			err := r.connect(ctx, server, &answered)
			if ctx.Err() != nil {
				return
			}
			planned := isPlanned(err)
			if answered {
				again.Reset()
			}
			asked.note(server, err, time.Now(), rand.Float64()) //nolint:gosec // spreads load
			r.reportDisconnect(ctx, server, err, answered, time.Since(began))
			if planned || answered {
				break // try the servers in order again
			}
		}
		wait := max(again.NextBackOff(), asked.soonest(r.c.Servers, time.Now()))
		if way.rest(ctx, wait, r.c.Servers) {
			r.log.InfoContext(ctx, "the control plane can be reached again")
			again.Reset()
			if r.c.Returned != nil {
				r.c.Returned()
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// sleep returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// connect keeps one stream to a server until it ends.
func (r *Relay) connect(ctx context.Context, server string, answered *bool) error {
	until := r.c.Credentials.NotAfter()
	life := until.Sub(wallclock.Now())
	if life <= 0 {
		return fmt.Errorf("the host's certificate expired at %s: waiting for its renewal", until.Format(time.RFC3339))
	}
	conn, err := grpc.NewClient("passthrough:///"+server,
		grpc.WithTransportCredentials(watchedTLS(r.c.Credentials.TLS())),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry())
	if err != nil {
		return fmt.Errorf("dialling %q: %w", server, err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A stream ends before the certificate that it was opened with expires: after the
	// renewal at half of its life, and with jitter, so that not all hosts reconnect at once.
	renew := time.AfterFunc(time.Duration((0.75+0.15*rand.Float64())*float64(life)), func() { cancel(errRenew) }) //nolint:gosec // spreads load
	defer renew.Stop()
	slow := time.AfterFunc(connectTime, func() { cancel(errors.New("no response in time")) })
	defer slow.Stop()
	opening := ctx
	if r.c.Metadata != nil {
		opening = metadata.AppendToOutgoingContext(ctx, r.c.Metadata()...)
	}
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(opening)
	if err != nil {
		return cause(ctx, err)
	}
	slow.Reset(answerTime)
	u := &upstream{out: make(chan *discoveryv3.DeltaDiscoveryRequest, 1), cancel: cancel, healthDue: true}
	if !r.submit(ctx, func(c *core, _ time.Time) {
		c.client.Open()
		u.rejectedBefore, c.rejected = c.rejected, map[key]Rejection{}
		c.upstream = u
	}) {
		return cause(ctx, ctx.Err())
	}
	sent := make(chan error, 1)
	go func() { sent <- r.send(ctx, s, u) }()
	for {
		resp, err := s.Recv()
		if err != nil {
			err = cause(ctx, err)
			cancel(err)
			if sendErr := <-sent; sendErr != nil {
				r.log.DebugContext(ctx, "sending ended", "err", sendErr)
			}
			return err
		}
		if !*answered {
			*answered = true
			slow.Stop()
			r.log.InfoContext(ctx, "connected to the control plane", "server", server)
			if r.c.Answered != nil {
				r.c.Answered(server)
			}
			r.submit(ctx, func(c *core, now time.Time) {
				c.upstreamStatus = UpstreamStatus{Server: server, Since: now}
				clear(c.logged)
			})
		}
		r.submit(ctx, func(c *core, _ time.Time) { c.response(u, resp) })
	}
}

// cause is the reason of a stream that this side ended, or err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && !errors.Is(c, context.Canceled) {
		return c
	}
	return err
}

func (r *Relay) send(ctx context.Context, s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, u *upstream) error {
	for {
		select {
		case req := <-u.out:
			if err := s.Send(req); err != nil {
				return err // Recv returns the reason
			}
			if !r.submit(ctx, func(*core, time.Time) {}) {
				return ctx.Err()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// response handles a response of a server.
func (c *core) response(u *upstream, resp *discoveryv3.DeltaDiscoveryResponse) {
	if c.upstream != u {
		return
	}
	update, err := c.client.Response(resp)
	if err != nil {
		c.log.Error("xDS protocol error by the control plane; closing the stream", "err", err)
		u.cancel(err)
		return
	}
	c.receive(update)
}

// push gives the sending goroutine the next request, if it has room.
func (u *upstream) push(c *core) {
	if len(u.out) > 0 {
		return
	}
	if req := u.next(c); req != nil {
		u.out <- req
	}
}

func (u *upstream) next(c *core) *discoveryv3.DeltaDiscoveryRequest {
	if !u.nodeSent {
		req := c.client.Next()
		if req == nil {
			return nil
		}
		u.nodeSent = true
		req = withNode(req, c.node)
		if c.r.c.Stamp != nil {
			c.r.c.Stamp(req.GetNode())
		}
		return req
	}
	// Changes of health go before acknowledgements: they remove or add an endpoint. One that is
	// unhealthy is removed before its Envoy is said to be live.
	if h := c.health(); u.healthDue && h != nil && !h.Healthy {
		u.healthDue = false
		return healthReport(h)
	}
	if now := c.envoyState(time.Now()); now != "" && now != u.reported {
		u.reported = now
		return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: bootstrap.EnvoyStateType, ResourceNamesSubscribe: []string{string(now)}}
	}
	if h := c.health(); u.healthDue && h != nil {
		u.healthDue = false
		return healthReport(h)
	}
	if have := c.r.credentials.Load(); have != nil && have != u.credentials && u.reported != "" {
		u.credentials = have
		if text, err := have.Encode(); err == nil { // it has texts, numbers and times only
			return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: bootstrap.EnvoyStateType, ResourceNamesSubscribe: []string{string(u.reported), text}}
		}
	}
	return c.client.Next()
}

func healthReport(h *Health) *discoveryv3.DeltaDiscoveryRequest {
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: bootstrap.HealthType}
	if !h.Healthy {
		req.ErrorDetail = &rpcstatus.Status{Code: int32(codes.Unavailable), Message: h.Message}
	}
	return req
}
