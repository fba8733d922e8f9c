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
	// most is the limit of their number. At the limit the process that has the most loses its
	// oldest.
	most int
	// timeout is how long one may stay open.
	timeout time.Duration
	// bytes is how much of one is read. The first request of an Envoy is nearly as large,
	// because it names all of its extensions.
	bytes int64
}

func defaultLimits() limits {
	return limits{most: 512, timeout: 10 * time.Second, bytes: 64 << 10}
}

const (
	maxHeaders = 16 << 10
	readBuffer = 4 << 10
)

// guardedListener is a listener whose connections have to show the token of a [Guard].
type guardedListener struct {
	net.Listener
	guard *Guard

	mu sync.Mutex // guards all following fields, and the place of each connection
	// unproven are the *conn of each process that have not shown the token, the oldest first;
	// count is their number.
	unproven map[int]*list.List
	count    int
}

func (g *Guard) listen(l net.Listener) net.Listener {
	return &guardedListener{Listener: l, guard: g, unproven: map[int]*list.List{}}
}

// Accept implements [net.Listener]. It never waits: all processes share the queue of the
// kernel, and a process that fills it would block the others.
func (l *guardedListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // gRPC looks at it
	}
	pid, err := Process(raw)
	if err != nil {
		pid = 0 // counted with those in other PID namespaces
	}
	c := &conn{Conn: raw, in: l, pid: pid, began: time.Now(), done: make(chan struct{})}
	c.unread.Store(l.guard.limits.bytes)
	if victim := l.add(c); victim != nil {
		l.drop(victim, "too many without a token")
	}
	return c, nil
}

// add adds a connection, and returns the one to close for it, or nil.
func (l *guardedListener) add(c *conn) (victim *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count >= l.guard.limits.most {
		victim = l.victimLocked()
	}
	own := l.unproven[c.pid]
	if own == nil {
		own = list.New()
		l.unproven[c.pid] = own
	}
	c.place = own.PushBack(c)
	l.count++
	c.expiry = time.AfterFunc(l.guard.limits.timeout, func() { l.drop(c, "no token in time") })
	return victim
}

// victimLocked is the oldest connection of the process that has the most.
func (l *guardedListener) victimLocked() (out *conn) {
	most := 0
	for _, of := range l.unproven {
		c, _ := of.Front().Value.(*conn)
		if n := of.Len(); n > most || n == most && c.began.Before(out.began) {
			out, most = c, n
		}
	}
	return out
}

// leave removes a connection from those that have not shown the token; false if it was not
// among them.
func (l *guardedListener) leave(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place == nil {
		return false
	}
	own := l.unproven[c.pid]
	own.Remove(c.place)
	c.place = nil
	close(c.done)
	if l.count--; own.Len() == 0 {
		delete(l.unproven, c.pid)
	}
	return true
}

// drop closes a connection, unless it has shown the token.
func (l *guardedListener) drop(c *conn, reason string) {
	if !l.leave(c) {
		return
	}
	c.expiry.Stop()
	g := l.guard
	g.mu.Lock()
	g.closed++ // counted before it is closed, so that a test that sees it closed sees it counted
	g.mu.Unlock()
	_ = c.Conn.Close() // closed in any case
	if n, ok := g.lines.Allow(time.Now()); ok {
		g.c.Logger.Warn("connection closed: not from this agent's Envoy. Another process of this user, or an endpoint of the mesh, connects to this socket",
			"path", g.c.Socket, "reason", reason, "left_out", n)
	}
}

// conn is a connection that has to show the token.
type conn struct {
	net.Conn
	in     *guardedListener
	pid    int // of the process that opened it
	began  time.Time
	expiry *time.Timer
	place  *list.Element // guarded by the listener's mu; nil if it is in no list
	// unread is how many more bytes may be read; negative means any number.
	unread atomic.Int64
	// done is closed when the connection has shown the token, or is closed.
	done chan struct{}
}

// Read implements [net.Conn]. One goroutine at a time reads. After the limit of bytes without
// a token, it waits: the call that has the token may have been read already, and not checked
// yet.
func (c *conn) Read(b []byte) (int, error) {
	unread := c.unread.Load()
	if unread == 0 && len(b) > 0 {
		<-c.done // at the latest at the timeout
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

// RemoteAddr implements [net.Conn]. It links a gRPC call to its connection.
func (c *conn) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

type address struct {
	net.Addr
	of *conn
}

// shown marks the connection of a call as having shown the token.
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
