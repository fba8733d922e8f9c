package xds

import (
	"context"
	"time"

	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/wire"
)

// maxUnwritten is how many bytes may wait for the connection before the next response is
// sent. It is below gRPC's own limit of 64 KiB, at which sending would block. So the owner
// of a stream never blocks, and can always be told to end it. One response may be larger.
const maxUnwritten = 48 << 10

// outgoing is a response that is being sent. Its bytes are shared with other streams.
type outgoing struct {
	*stream.Response
	conn    *conn
	size    int64
	started time.Time
}

var _ wire.TrackedMessage = (*outgoing)(nil)

// Written implements [wire.TrackedMessage]: the connection has taken all of it.
func (o *outgoing) Written() {
	c, now := o.conn, time.Now()
	c.server.metrics.sendTime.Observe(seconds(now.Sub(o.started)))
	c.progressAt(now)
	if c.unwritten.Add(-o.size) < maxUnwritten && c.blocked.CompareAndSwap(true, false) {
		c.wake()
	}
}

// Progress implements [wire.TrackedMessage]: the connection has taken some more of it.
func (o *outgoing) Progress() { o.conn.progressAt(time.Now()) }

// push sends responses until nothing is left or the connection is busy.
func (c *conn) push(ctx context.Context, g deltaStream) error {
	for {
		if c.unwritten.Load() >= maxUnwritten {
			c.blocked.Store(true)
			if c.unwritten.Load() >= maxUnwritten {
				c.handleEvents(ctx) // a peer that does not read may still send requests
				return nil          // Written wakes the owner
			}
			c.blocked.Store(false)
		}
		now := time.Now()
		r := c.core.Next(now)
		c.handleEvents(ctx)
		if r == nil {
			c.noteConverged()
			return nil
		}
		if err := c.send(g, r, now); err != nil {
			return err
		}
	}
}

func (c *conn) send(g deltaStream, r *stream.Response, now time.Time) error {
	size := r.Size()
	c.quota.reserve(now, float64(size)/bytesWrittenPerRequest)
	m := c.server.metrics
	m.sized(r.TypeURL).Observe(float64(size))
	c.server.sent.Of(r.TypeURL).Add(len(r.Resources), size)
	if c.unwritten.Add(int64(size)) == int64(size) {
		c.progressAt(now)
	}
	if !c.unsent.IsZero() {
		m.pushTime.Observe(seconds(now.Sub(c.unsent)))
		c.unsent = time.Time{}
		c.markSent(now)
	}
	return g.SendMsg(&outgoing{Response: r, conn: c, size: int64(size), started: now}) //nolint:wrapcheck // gRPC's own status
}

// progressAt records that the connection takes data. It uses the monotonic clock, because
// the wall clock may be set.
func (c *conn) progressAt(now time.Time) { c.progress.Store(int64(now.Sub(c.since))) }

func (c *conn) progressed() time.Time { return c.since.Add(time.Duration(c.progress.Load())) }

// slowAt is when the peer will have exceeded SlowTimeout; zero if nothing is unwritten.
func (c *conn) slowAt() time.Time {
	if c.unwritten.Load() == 0 {
		return time.Time{}
	}
	return c.progressed().Add(c.server.cfg.SlowTimeout)
}

// hangUpDelay is how long a peer may take to read the end of its stream.
const hangUpDelay = 5 * time.Second

// hangUp closes the connection of a peer that does not read the end of its stream.
// Otherwise the transport would keep all that was sent on the stream, and the peer could
// open another one.
func (c *conn) hangUp() {
	if c.peer.Hangup == nil || c.unwritten.Load() == 0 {
		return
	}
	time.AfterFunc(hangUpDelay, func() {
		if c.unwritten.Load() > 0 {
			c.peer.Hangup()
		}
	})
}
