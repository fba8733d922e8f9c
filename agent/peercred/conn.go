package peercred

import (
	"container/list"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
)

// limits are those of connections that have not shown the token.
type limits struct {
	// most is how many there may be at a time; the oldest goes first.
	most int
	// timeout is how long one may take.
	timeout time.Duration
	// spared is how long one is not closed for others: a connection of Envoy shows the
	// token at once. Until then those that come wait in the kernel's queue.
	spared time.Duration
	// bytes is how much one may send.
	bytes int64
}

func defaultLimits() limits {
	return limits{most: 512, timeout: 10 * time.Second, spared: 200 * time.Millisecond, bytes: 64 << 10}
}

const (
	maxHeaders = 16 << 10
	readBuffer = 4 << 10
)

// guarded is a listener whose connections have to show the token of a [Guard].
type guarded struct {
	net.Listener
	guard *Guard
	done  chan struct{} // closed by Close
	once  sync.Once

	mu     sync.Mutex // guards silent, and the place of each connection in it
	silent *list.List // of *conn that have not shown the token, the oldest first
}

func (g *Guard) listen(l net.Listener) net.Listener {
	return &guarded{Listener: l, guard: g, done: make(chan struct{}), silent: list.New()}
}

// Accept implements [net.Listener].
func (l *guarded) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // gRPC looks at it
	}
	if !l.makeRoom() {
		_ = raw.Close()
		return nil, net.ErrClosed
	}
	c := &conn{Conn: raw, in: l, began: time.Now()}
	c.left.Store(l.guard.limits.bytes)
	l.mu.Lock()
	defer l.mu.Unlock()
	c.expiry = time.AfterFunc(l.guard.limits.timeout, func() { l.drop(c, "no token in time") })
	c.place = l.silent.PushBack(c)
	return c, nil
}

// makeRoom waits until there is room for one more connection without the token;
// false if the listener is closed.
func (l *guarded) makeRoom() bool {
	for {
		wait, victim := l.victim()
		switch {
		case victim != nil:
			l.drop(victim, "too many without a token")
			return true
		case wait <= 0:
			return true
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-l.done:
			t.Stop()
			return false
		}
	}
}

// victim is who goes for another connection, or how long to wait until somebody may.
func (l *guarded) victim() (wait time.Duration, victim *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent.Len() < l.guard.limits.most {
		return 0, nil
	}
	c, _ := l.silent.Front().Value.(*conn)
	if wait = l.guard.limits.spared - time.Since(c.began); wait > 0 {
		return wait, nil
	}
	return 0, c
}

// leave takes a connection out of those that have not shown the token; false if it
// was not among them.
func (l *guarded) leave(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place == nil {
		return false
	}
	l.silent.Remove(c.place)
	c.place = nil
	return true
}

// drop closes a connection that has not shown the token; one that has stays.
func (l *guarded) drop(c *conn, reason string) {
	if !l.leave(c) {
		return
	}
	c.expiry.Stop()
	_ = c.Conn.Close() // whatever it says, it is closed
	g := l.guard
	g.mu.Lock()
	g.closed++
	g.mu.Unlock()
	if n, ok := g.lines.Allow(time.Now()); ok {
		g.c.Logger.Warn("connection closed: it is not of the envoy that this agent started; a process of this user, or an endpoint of the mesh, connects to this socket",
			"path", g.c.Socket, "reason", reason, "left_out", n)
	}
}

// Close implements [net.Listener].
func (l *guarded) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close() //nolint:wrapcheck // it is the listener's
}

// conn is a connection that has to show the token.
type conn struct {
	net.Conn
	in     *guarded
	began  time.Time
	expiry *time.Timer
	place  *list.Element // guarded by the listener's mu; nil if it is in no list
	// left is how many bytes may be read; negative means any number.
	left atomic.Int64
}

var errTooMuch = errors.New("a connection without the token has sent more than it may")

// Read implements [net.Conn]. One goroutine at a time reads.
func (c *conn) Read(b []byte) (int, error) {
	left := c.left.Load()
	if left < 0 {
		return c.Conn.Read(b) //nolint:wrapcheck // it is the connection's
	}
	if left == 0 && len(b) > 0 {
		c.in.drop(c, "too many bytes without a token")
		return 0, errTooMuch
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), left)])
	c.left.CompareAndSwap(left, left-int64(n)) // unless the token was shown meanwhile
	return n, err                              //nolint:wrapcheck // it is the connection's
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
		a.of.left.Store(-1)
	}
}
