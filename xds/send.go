package xds

import (
	"context"
	"time"

	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/wire"
)

// maxUnwritten is how many bytes of responses may wait for the connection before
// the next one has to: below gRPC's own bound of 64 KiB, beyond which sending
// would block. So the goroutine that owns a stream never does, and can always be
// told to end it. One response may be larger.
const maxUnwritten = 48 << 10

// outgoing is a response on its way. It refers to bytes that others have too.
type outgoing struct {
	*stream.Response
	conn    *conn
	size    int64
	started time.Time
}

var _ wire.Followed = (*outgoing)(nil)

// Written implements [wire.Followed]: the connection has taken all of it.
func (o *outgoing) Written() {
	c, now := o.conn, time.Now()
	c.server.metrics.sendTime.Observe(seconds(now.Sub(o.started)))
	c.progressAt(now)
	if c.unwritten.Add(-o.size) < maxUnwritten && c.blocked.CompareAndSwap(true, false) {
		c.ring()
	}
}

// Progress implements [wire.Followed]: the connection has taken some more of it.
func (o *outgoing) Progress() { o.conn.progressAt(time.Now()) }

// push sends what is to be sent, as far as the connection takes it.
func (c *conn) push(ctx context.Context, g deltaStream) error {
	for {
		if c.unwritten.Load() >= maxUnwritten {
			c.blocked.Store(true)
			if c.unwritten.Load() >= maxUnwritten {
				c.events(ctx) // who reads nothing may talk on
				return nil    // Written rings
			}
			c.blocked.Store(false)
		}
		now := time.Now()
		r := c.core.Next(now)
		c.events(ctx)
		if r == nil {
			c.settle()
			return nil
		}
		if err := c.send(g, r, now); err != nil {
			return err
		}
	}
}

func (c *conn) send(g deltaStream, r *stream.Response, now time.Time) error {
	size := r.Size()
	c.account.charge(now, float64(size)/writtenAs1)
	m := c.server.metrics
	m.sized(r.TypeURL).Observe(float64(size))
	c.server.sent.Of(r.TypeURL).Add(len(r.Resources), size)
	if c.unwritten.Add(int64(size)) == int64(size) {
		c.progressAt(now)
	}
	if !c.unsent.IsZero() {
		m.pushTime.Observe(seconds(now.Sub(c.unsent)))
		c.unsent = time.Time{}
	}
	return g.SendMsg(&outgoing{Response: r, conn: c, size: int64(size), started: now}) //nolint:wrapcheck // gRPC's own status
}

// progressAt notes that the connection takes what is sent. By the monotonic clock:
// the machine's may be set.
func (c *conn) progressAt(now time.Time) { c.progress.Store(int64(now.Sub(c.since))) }

func (c *conn) progressed() time.Time { return c.since.Add(time.Duration(c.progress.Load())) }

// slowAt is when the peer will have left unread for too long what it was sent;
// zero where nothing waits.
func (c *conn) slowAt() time.Time {
	if c.unwritten.Load() == 0 {
		return time.Time{}
	}
	return c.progressed().Add(c.server.cfg.SlowTimeout)
}

// lingering is how long a peer may take to read the end of its stream.
const lingering = 5 * time.Second

// hangUp sees to it that a stream which ended here is over: as long as its peer
// does not read, the transport keeps all that it was sent, the end behind it, and
// the peer may open another one.
func (c *conn) hangUp() {
	if c.peer.Hangup == nil || c.unwritten.Load() == 0 {
		return
	}
	time.AfterFunc(lingering, func() {
		if c.unwritten.Load() > 0 {
			c.peer.Hangup()
		}
	})
}
