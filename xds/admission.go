package xds

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// How long a stream may hold an admission slot. The slots bound what is decoded, built and
// in flight at one time. A peer that is silent costs nothing of that: after slotIdle
// without a request or progress the slot goes to the next stream. So a fleet of silent
// peers is admitted 64 every quarter of a second, at 5 to 6 ms of CPU each.
const (
	maxSlotTime     = 5 * time.Second
	defaultSlotIdle = 250 * time.Millisecond
)

// rejectAtLimit rejects a stream that exceeds a limit. The error says which limit, and
// when to retry: not before notBefore.
func (s *Server) rejectAtLimit(notBefore time.Duration, format string, args ...any) error {
	s.metrics.limited.Inc()
	why := fmt.Sprintf(format, args...)
	if skipped, ok := s.limitLines.Allow(format, time.Now()); ok {
		s.log.Warn("stream rejected at a limit", "err", why, "refused_since", skipped)
	}
	st := status.New(codes.ResourceExhausted, why)
	after := notBefore + 5*time.Second + rand.N(10*time.Second) //nolint:gosec // jitter needs no secrecy
	if with, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}); err == nil {
		st = with
	}
	return st.Err()
}

// awaitReceiveSlot waits until the first request of a stream may be received: when a fleet
// reconnects, most streams wait before their requests take memory. release frees the slot.
func (s *Server) awaitReceiveSlot(ctx context.Context, q *hostQuota) (release func(), err error) {
	if err := s.acquire(ctx, q.receiveSlots); err != nil {
		return nil, err
	}
	if err := s.acquire(ctx, s.receiveSlots); err != nil {
		giveBack(q.receiveSlots)
		return nil, err
	}
	return sync.OnceFunc(func() { <-s.receiveSlots; giveBack(q.receiveSlots) }), nil
}

// acquire waits for a slot; a nil channel has no limit.
func (s *Server) acquire(ctx context.Context, room chan struct{}) error {
	if room == nil {
		return nil
	}
	select {
	case room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-s.stopped:
		return errStopping
	}
}

// giveBack frees a slot of acquire.
func giveBack(room chan struct{}) {
	if room != nil {
		<-room
	}
}

// awaitAdmissionSlot waits until a new stream may be served. While a snapshot is
// announced, streams that are served already come first. The number of new streams is
// limited, in all and by host. [conn.releaseSlot] frees the slot.
func (s *Server) awaitAdmissionSlot(ctx context.Context, c *conn) error {
	if err := s.acquire(ctx, c.quota.admissionSlots); err != nil {
		return err
	}
	err := s.await(ctx, s.announcing.over())
	if err == nil {
		err = s.acquire(ctx, s.admissionSlots)
	}
	if err != nil {
		giveBack(c.quota.admissionSlots)
		return err
	}
	c.hasSlot, c.lastRequest = true, time.Now()
	c.slotUntil = c.lastRequest.Add(maxSlotTime)
	return nil
}

func (s *Server) await(ctx context.Context, over <-chan struct{}) error {
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-s.stopped:
		return errStopping
	}
}

// slotEnds is when the stream loses its admission slot, unless something happens before;
// zero if it has none.
func (c *conn) slotEnds() time.Time {
	if !c.hasSlot {
		return time.Time{}
	}
	last := c.progressed()
	if c.lastRequest.After(last) {
		last = c.lastRequest
	}
	if idle := last.Add(c.server.cfg.slotIdle); idle.Before(c.slotUntil) {
		return idle
	}
	return c.slotUntil
}

// releaseSlot frees the admission slot, if the stream has one.
func (c *conn) releaseSlot() {
	if c.hasSlot {
		c.hasSlot, c.slotUntil = false, time.Time{}
		<-c.server.admissionSlots
		giveBack(c.quota.admissionSlots)
	}
}

// pause makes others wait while it is held.
type pause struct {
	mu sync.Mutex    // guards on
	on chan struct{} // closed when the pause is over; nil if there is none
}

func (p *pause) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = make(chan struct{})
}

func (p *pause) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.on)
	p.on = nil
}

// over returns a channel that is closed when there is no pause.
func (p *pause) over() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.on != nil {
		return p.on
	}
	done := make(chan struct{})
	close(done)
	return done
}

// routesFor decides how route configurations are delivered to a new proxy: by VHDS, with
// inline virtual hosts, or by size.
func (s *Server) routesFor(n *bootstrap.Node, features []string) cache.Routes {
	v := n.EnvoyVersion
	switch {
	case s.cfg.InlineRoutes:
		return cache.Routes{Delivery: cache.Inline}
	case slices.Contains(features, bootstrap.FeatureVirtualHosts):
		return cache.Routes{Delivery: cache.VHDS}
	case vhds.Supported(v.Major, v.Minor):
		return cache.Routes{Delivery: cache.Auto}
	default:
		return cache.Routes{Delivery: cache.Inline}
	}
}

// fallBackToInline delivers a route configuration with inline virtual hosts if the proxy
// rejected it without them. It does not help with rejected virtual hosts: inline, they
// would make the proxy reject the whole route configuration.
func (c *conn) fallBackToInline(e stream.Event) {
	if e.Type != stream.RouteType || c.resources == nil {
		return
	}
	if r := c.resources.Generation.Get(e.Type, e.Name); r == nil || !r.Hosts || r.Version != e.Version {
		return
	}
	c.log(slog.LevelWarn, "proxy rejected virtual hosts (VHDS); sending the whole route configuration", 0, "proxy", c.nodeID, "name", e.Name, "err", e.Reason)
	c.deliverInline(view.RoutesLayer + e.Name)
	c.wake()
}
