package peercred

import (
	"container/list"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
)

// limits are those of connections that have not shown the token.
type limits struct {
	// most is how many there may be at a time. The process that has the most gives way,
	// with its oldest.
	most int
	// timeout is how long one may take.
	timeout time.Duration
	// bytes is how much of one is read. The first request of an Envoy has nearly as much
	// as that, for it names all of its extensions.
	bytes int64
}

func defaultLimits() limits {
	return limits{most: 512, timeout: 10 * time.Second, bytes: 64 << 10}
}

const (
	maxHeaders = 16 << 10
	readBuffer = 4 << 10
)

// guarded is a listener whose connections have to show the token of a [Guard].
type guarded struct {
	net.Listener
	guard *Guard

	mu sync.Mutex // guards all following fields, and the place of each connection
	// silent are the *conn of each process that have not shown the token, the oldest
	// first, and count is how many there are.
	silent map[int]*list.List
	count  int
}

func (g *Guard) listen(l net.Listener) net.Listener {
	return &guarded{Listener: l, guard: g, silent: map[int]*list.List{}}
}

// Accept implements [net.Listener]. It is never slowed down: the queue of the kernel
// is one for all, and who fills it keeps everybody out.
func (l *guarded) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // gRPC looks at it
	}
	pid, err := Process(raw)
	if err != nil {
		pid = 0 // with those that cannot be seen from here
	}
	c := &conn{Conn: raw, in: l, pid: pid, began: time.Now(), left: make(chan struct{})}
	c.unread.Store(l.guard.limits.bytes)
	if victim := l.add(c); victim != nil {
		l.drop(victim, "too many without a token")
	}
	return c, nil
}

// add takes a connection in, and gives the one that has to go for it, or nil.
func (l *guarded) add(c *conn) (victim *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count >= l.guard.limits.most {
		victim = l.victimLocked()
	}
	own := l.silent[c.pid]
	if own == nil {
		own = list.New()
		l.silent[c.pid] = own
	}
	c.place = own.PushBack(c)
	l.count++
	c.expiry = time.AfterFunc(l.guard.limits.timeout, func() { l.drop(c, "no token in time") })
	return victim
}

// victimLocked is the oldest connection of the process that has the most.
func (l *guarded) victimLocked() (out *conn) {
	most := 0
	for _, of := range l.silent {
		c, _ := of.Front().Value.(*conn)
		if n := of.Len(); n > most || n == most && c.began.Before(out.began) {
			out, most = c, n
		}
	}
	return out
}

// leave takes a connection out of those that have not shown the token; false if it
// was not among them.
func (l *guarded) leave(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place == nil {
		return false
	}
	own := l.silent[c.pid]
	own.Remove(c.place)
	c.place = nil
	close(c.left)
	if l.count--; own.Len() == 0 {
		delete(l.silent, c.pid)
	}
	return true
}

// drop closes a connection that has not shown the token; one that has stays.
func (l *guarded) drop(c *conn, reason string) {
	if !l.leave(c) {
		return
	}
	c.expiry.Stop()
	g := l.guard
	g.mu.Lock()
	g.closed++ // before, so that who sees it closed sees it counted
	g.mu.Unlock()
	_ = c.Conn.Close() // whatever it says, it is closed
	if n, ok := g.lines.Allow(time.Now()); ok {
		g.c.Logger.Warn("connection closed: not from this agent's Envoy. Another process of this user, or an endpoint of the mesh, connects to this socket",
			"path", g.c.Socket, "reason", reason, "left_out", n)
	}
}

// conn is a connection that has to show the token.
type conn struct {
	net.Conn
	in     *guarded
	pid    int // of the process that opened it
	began  time.Time
	expiry *time.Timer
	place  *list.Element // guarded by the listener's mu; nil if it is in no list
	// unread is how many bytes may be read yet; negative means any number.
	unread atomic.Int64
	// left is closed when the connection has shown the token, or is closed.
	left chan struct{}
}

// Read implements [net.Conn]. One goroutine at a time reads. What is more than a
// connection without the token may send waits in the kernel: the call that has the
// token may have been read already, and not looked at yet.
func (c *conn) Read(b []byte) (int, error) {
	unread := c.unread.Load()
	if unread == 0 && len(b) > 0 {
		<-c.left // at the latest when its time is over
		unread = -1
	}
	if unread < 0 {
		return c.Conn.Read(b) //nolint:wrapcheck // it is the connection's
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), unread)])
	c.unread.CompareAndSwap(unread, unread-int64(n)) // unless the token was shown meanwhile
	return n, err                                    //nolint:wrapcheck // it is the connection's
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.in.leave(c)
	c.expiry.Stop()
	return c.Conn.Close() //nolint:wrapcheck // it is the connection's
}

// RemoteAddr implements [net.Conn]. It leads a call of gRPC to its connection.
func (c *conn) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

type address struct {
	net.Addr
	of *conn
}

// shown notes that the connection of a call has shown the token.
func shown(ctx context.Context) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	if a, ok := p.Addr.(address); ok && a.of.in.leave(a.of) {
		a.of.expiry.Stop()
		a.of.unread.Store(-1)
	}
}
