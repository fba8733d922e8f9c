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
	"github.com/fairlead/fairlead/xds/fold"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// How long a stream counts as new at most. A turn bounds what is decoded, built and
// on the wire at a time; a peer that only thinks, or whose Envoy does, costs none of
// that: once it has said and taken nothing for turnIdle the next one has the turn.
// A fleet of such peers is let in 64 every quarter of a second, at 5 to 6 ms of CPU
// each.
const (
	freshFor        = 5 * time.Second
	defaultTurnIdle = 250 * time.Millisecond
)

// exhausted refuses a stream for a limit, says which one, and when to come again:
// not before a while is over.
func (s *Server) exhausted(notBefore time.Duration, format string, args ...any) error {
	s.metrics.limited.Inc()
	why := fmt.Sprintf(format, args...)
	s.limits.Do(time.Now(), func(skipped int) {
		s.log.Warn("stream rejected at a limit", "err", why, "refused_since", skipped)
	})
	st := status.New(codes.ResourceExhausted, why)
	after := notBefore + 5*time.Second + rand.N(10*time.Second) //nolint:gosec // jitter needs no secrecy
	if with, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)}); err == nil {
		st = with
	}
	return st.Err()
}

// seldom lets something happen at most once a while.
type seldom struct {
	mu      sync.Mutex // guards all following fields
	last    time.Time
	skipped int
}

// Do calls f with the number of times that it was not called.
func (s *seldom) Do(now time.Time, f func(skipped int)) {
	s.mu.Lock()
	if now.Sub(s.last) < 10*time.Second {
		s.skipped++
		s.mu.Unlock()
		return
	}
	n := s.skipped
	s.last, s.skipped = now, 0
	s.mu.Unlock()
	f(n)
}

// hear waits until the first request of a stream may be read: of a fleet that
// comes back at once most wait with what they have to say. passOn lets another one
// be heard.
func (s *Server) hear(ctx context.Context, a *account) (passOn func(), err error) {
	if err := s.take(ctx, a.heard); err != nil {
		return nil, err
	}
	if err := s.take(ctx, s.heard); err != nil {
		give(a.heard)
		return nil, err
	}
	return sync.OnceFunc(func() { <-s.heard; give(a.heard) }), nil
}

// take waits for room; a nil channel has room for all.
func (s *Server) take(ctx context.Context, room chan struct{}) error {
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

// give gives back what take took.
func give(room chan struct{}) {
	if room != nil {
		<-room
	}
}

// awaitTurn waits until a new stream may be served: while a snapshot is announced
// those have precedence that are served already, and only so many are new at a
// time, and of one host some of them. The turn is over when [conn.old] is called.
func (s *Server) awaitTurn(ctx context.Context, c *conn) error {
	if err := s.take(ctx, c.account.turns); err != nil {
		return err
	}
	err := s.await(ctx, s.quiet.over())
	if err == nil {
		err = s.take(ctx, s.fresh)
	}
	if err != nil {
		give(c.account.turns)
		return err
	}
	c.fresh, c.asked = true, time.Now()
	c.freshUntil = c.asked.Add(freshFor)
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

// turnEnds is when the stream will have been new for long enough, unless something
// happens before; zero if it is not new.
func (c *conn) turnEnds() time.Time {
	if !c.fresh {
		return time.Time{}
	}
	last := c.progressed()
	if c.asked.After(last) {
		last = c.asked
	}
	if idle := last.Add(c.server.cfg.turnIdle); idle.Before(c.freshUntil) {
		return idle
	}
	return c.freshUntil
}

// old makes room for another new stream.
func (c *conn) old() {
	if c.fresh {
		c.fresh, c.freshUntil = false, time.Time{}
		<-c.server.fresh
		give(c.account.turns)
	}
}

// pause is something that others wait out.
type pause struct {
	mu sync.Mutex    // guards on
	on chan struct{} // closed when it is over; nil where there is none
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

// over is closed once there is no pause.
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

// routesFor is how the route tables of a new proxy travel.
func (s *Server) routesFor(n *bootstrap.Node, features []string) cache.Routes {
	v := n.EnvoyVersion
	switch {
	case s.cfg.WholeTables:
		return cache.Routes{Delivery: cache.Inline}
	case slices.Contains(features, bootstrap.FeatureVirtualHosts):
		return cache.Routes{Delivery: cache.VHDS}
	case fold.Takes(v.Major, v.Minor):
		return cache.Routes{Delivery: cache.Auto}
	default:
		return cache.Routes{Delivery: cache.Inline}
	}
}

// fallBack has a table travel inline that the proxy refuses to take by VHDS. Of
// virtual hosts that it refuses nothing is gained by it: they would spoil the
// whole table.
func (c *conn) fallBack(e stream.Event) {
	if e.Type != stream.RouteType || c.resources == nil {
		return
	}
	if r := c.resources.Generation.Get(e.Type, e.Name); r == nil || !r.Hosts || r.Version != e.Version {
		return
	}
	c.tell(slog.LevelWarn, "proxy rejected virtual hosts (VHDS); sending the whole route configuration", 0, "proxy", c.nodeID, "name", e.Name, "err", e.Reason)
	c.inline(view.RoutesLayer + e.Name)
	c.ring()
}
