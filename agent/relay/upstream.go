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
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// Times of the connection to a server.
const (
	firstBackOff = 100 * time.Millisecond
	lastBackOff  = 5 * time.Second
	// connectTime bounds the way to a stream, and answerTime from there to the
	// first response: a server to which its fleet comes back takes so many at a time,
	// and who leaves has lost its place. One that is dead is noticed by its pings.
	connectTime = 10 * time.Second
	answerTime  = 10 * time.Minute
)

// window is what a server may send ahead of what was read, in bytes. gRPC would
// find out for itself, by pings with every push.
const window = 1 << 20

var (
	errNewNode = errors.New("Envoy was replaced; the server has to know its version")
	errRenew   = errors.New("the certificate of this connection expires soon")
)

// upstream is the open stream to a server. All of it but out is the core's.
type upstream struct {
	// out is what the stream's goroutine sends; it holds one.
	out       chan *discoveryv3.DeltaDiscoveryRequest
	cancel    context.CancelCauseFunc
	named     bool                 // the node has been sent
	reported  bootstrap.EnvoyState // as it was reported on this stream
	healthDue bool
	// refused is what Envoy refused of what servers sent before this stream. It is
	// not reported until this server wants the same: the one before may have been
	// told otherwise since.
	refused map[key]Rejection
}

// dial keeps one stream to the first server that can be reached, until ctx ends.
// A server that refused and said when to come again is left alone until then.
func (r *Relay) dial(ctx context.Context) {
	again, asked := backoff.ExponentialBackOff{InitialInterval: firstBackOff, Multiplier: 2, RandomizationFactor: 0.5, MaxInterval: lastBackOff}, pauses{}
	for {
		for _, server := range r.c.Servers {
			if asked.left(server, time.Now()) > 0 {
				continue
			}
			began, answered := time.Now(), false
			err := r.connect(ctx, server, &answered)
			if ctx.Err() != nil {
				return
			}
			planned := errors.Is(err, errNewNode) || errors.Is(err, errRenew)
			if answered {
				again.Reset()
			}
			asked.note(server, err, time.Now(), rand.Float64()) //nolint:gosec // spreads load
			r.lost(ctx, server, err, answered, time.Since(began))
			if planned || answered {
				break // the same order again
			}
		}
		wait := time.NewTimer(max(again.NextBackOff(), asked.soonest(r.c.Servers, time.Now())))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return
		}
	}
}

// connect holds one stream to a server until it ends.
func (r *Relay) connect(ctx context.Context, server string, answered *bool) error {
	until := r.c.Credentials.NotAfter()
	life := until.Sub(wallclock.Now())
	if life <= 0 {
		return fmt.Errorf("the host's certificate expired at %s: waiting for its renewal", until.Format(time.RFC3339))
	}
	conn, err := grpc.NewClient("passthrough:///"+server,
		grpc.WithTransportCredentials(credentials.NewTLS(r.c.Credentials.TLS())),
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
	// A stream ends before the certificate does that it was opened with: with
	// jitter, lest all hosts come at once, and after the renewal at half-life.
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
	if !r.tell(ctx, func(c *core, _ time.Time) {
		c.client.Open()
		u.refused, c.rejected = c.rejected, map[key]Rejection{}
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
			r.tell(ctx, func(c *core, now time.Time) {
				c.up = UpstreamStatus{Server: server, Since: now}
				clear(c.told)
			})
		}
		r.tell(ctx, func(c *core, _ time.Time) { c.response(u, resp) })
	}
}

// cause is why a stream ended, where we ended it ourselves.
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
				return err // Recv says why
			}
			if !r.tell(ctx, func(*core, time.Time) {}) {
				return ctx.Err()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// response takes what a server sent.
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
	c.take(update)
}

// push hands the stream's goroutine the next request, if it has room.
func (u *upstream) push(c *core) {
	if len(u.out) > 0 {
		return
	}
	if req := u.next(c); req != nil {
		u.out <- req
	}
}

func (u *upstream) next(c *core) *discoveryv3.DeltaDiscoveryRequest {
	if !u.named {
		req := c.client.Next()
		if req == nil {
			return nil
		}
		u.named = true
		req = withNode(req, c.node)
		if c.r.c.Stamp != nil {
			c.r.c.Stamp(req.GetNode())
		}
		return req
	}
	// What takes an endpoint out, or in, goes before what only answers.
	if now := c.envoyState(time.Now()); now != "" && now != u.reported {
		u.reported = now
		return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: bootstrap.EnvoyStateType, ResourceNamesSubscribe: []string{string(now)}}
	}
	if h := c.r.health.Load(); u.healthDue && h != nil {
		u.healthDue = false
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: bootstrap.HealthType}
		if !h.Healthy {
			req.ErrorDetail = &rpcstatus.Status{Code: int32(codes.Unavailable), Message: h.Message}
		}
		return req
	}
	return c.client.Next()
}
