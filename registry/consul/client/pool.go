package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// dialFor and shakeFor bound the making of a connection: long enough for the
	// other side of the world, short enough to try again soon where a packet was
	// lost.
	dialFor  = 3 * time.Second
	shakeFor = 5 * time.Second
	// pingAfter and pingFor find out by HTTP/2 that a connection is dead.
	pingAfter = 5 * time.Second
	pingFor   = 5 * time.Second
	// idleFor is how long a connection that nobody uses is kept.
	idleFor = time.Minute
)

// errClosed is what a request gets whose connection was closed by us.
var errClosed = errors.New("the connection was given up")

// pool carries requests over as few connections as it can, and never over more
// than it may have. http.Transport does not do: by HTTP/2 it opens a connection
// for each request that finds the others full, all at the same time.
//
// A connection is used in the order in which they were made, so that those at the
// end fall idle, and are closed.
type pool struct {
	dial func(context.Context) (*http.ClientConn, error)
	max  int
	// takers are in take.
	takers atomic.Int64
	// one says that connections are made one after the other, because each
	// carries many requests.
	one bool

	mu      sync.Mutex // guards all following fields
	conns   []*conn
	dialing int
	waiting []chan error // first in, first out
}

// conn is a connection of the pool.
type conn struct {
	*http.ClientConn
	used    bool // it carried a request to its end
	retired bool // it takes no more requests
	idle    time.Time
}

// newPool makes a pool that starts nothing.
func newPool(at target, maxConns int, tls *tlsFiles) *pool {
	d := &net.Dialer{Timeout: dialFor, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 4}}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if at.socket != "" {
			network, address = "unix", at.socket
		}
		return d.DialContext(ctx, network, address)
	}
	t := &http.Transport{
		DialContext: dial, DisableCompression: true, TLSHandshakeTimeout: shakeFor,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			nc, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return tls.handshake(ctx, nc)
		},
		HTTP2:     &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingFor, WriteByteTimeout: pingFor},
		Protocols: new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(true)
	return &pool{max: maxConns, one: at.scheme == "https", dial: func(ctx context.Context) (*http.ClientConn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialFor+shakeFor)
		defer cancel()
		return t.NewClientConn(ctx, at.scheme, at.address)
	}}
}

// RoundTrip carries one request. One that has no body is sent once more if a
// connection that was in use before turns out to be closed.
func (p *pool) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		c, used, err := p.take(req.Context())
		if err != nil {
			return nil, err
		}
		resp, err := c.RoundTrip(req)
		if err == nil {
			p.mu.Lock()
			c.used = true
			p.mu.Unlock()
			return resp, nil
		}
		if !used || req.Body != nil || req.Context().Err() != nil || c.Err() == nil {
			return nil, err
		}
	}
}

// take finds a connection with room for a request, makes one, or waits. It tells
// whether the connection carried a request before.
func (p *pool) take(ctx context.Context) (c *conn, used bool, err error) {
	p.takers.Add(1)
	defer p.takers.Add(-1)
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		p.sweep()
		for _, c := range p.conns {
			if !c.retired && c.Available() > 0 && c.Reserve() == nil {
				return c, c.used, nil
			}
		}
		if len(p.conns)+p.dialing < p.max && (!p.one || p.dialing == 0) {
			if err := p.grow(ctx); err != nil {
				return nil, false, err
			}
			continue
		}
		bell := make(chan error, 1)
		p.waiting = append(p.waiting, bell)
		p.mu.Unlock()
		select {
		case err = <-bell:
		case <-ctx.Done():
			err = ctx.Err()
		}
		p.mu.Lock()
		if err != nil {
			if i := slices.Index(p.waiting, bell); i >= 0 {
				p.waiting = slices.Delete(p.waiting, i, i+1)
			} else if ctx.Err() != nil {
				p.wake(1) // whoever rang meant somebody
			}
			return nil, false, err
		}
	}
}

// grow makes a connection, with the lock given up meanwhile. If it cannot, all
// who wait for one are told.
func (p *pool) grow(ctx context.Context) error {
	p.dialing++
	p.mu.Unlock()
	cc, err := p.dial(ctx)
	p.mu.Lock()
	p.dialing--
	if err != nil {
		if ctx.Err() != nil { // ours alone; another may try
			p.wake(1)
			return err
		}
		for _, bell := range p.waiting {
			bell <- err
		}
		p.waiting = nil
		return err
	}
	c := &conn{ClientConn: cc}
	p.conns = append(p.conns, c)
	cc.SetStateHook(func(cc *http.ClientConn) {
		if p.takers.Load() > 0 {
			go p.stirred(cc) // the hook may run within a call of ours, under the lock
		}
	})
	p.wake(max(0, cc.Available()-1))
	return nil
}

// stirred lets go on who waits for what the connection can do now.
func (p *pool) stirred(cc *http.ClientConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := cc.Available()
	if cc.Err() != nil {
		n = 1 // another one may be made
	}
	p.wake(n)
}

// wake lets that many of those who wait look again. The lock is held.
func (p *pool) wake(n int) {
	n = min(n, len(p.waiting))
	for _, bell := range p.waiting[:n] {
		bell <- nil
	}
	p.waiting = p.waiting[n:]
	if len(p.waiting) == 0 {
		p.waiting = nil
	}
}

// sweep forgets dead connections. The lock is held.
func (p *pool) sweep() {
	p.conns = slices.DeleteFunc(p.conns, func(c *conn) bool { return c.Err() != nil })
}

// tidy closes connections that nobody has used for a while, and those retired
// that nobody uses any more.
func (p *pool) tidy(now time.Time) {
	p.mu.Lock()
	p.sweep()
	var idle []*conn
	for i, c := range p.conns {
		switch {
		case c.InFlight() > 0:
			c.idle = time.Time{}
		case c.idle.IsZero():
			c.idle = now
		}
		if !c.idle.IsZero() && (c.retired || i > 0 && now.Sub(c.idle) > idleFor) {
			c.retired = true
			idle = append(idle, c)
		}
	}
	p.mu.Unlock()
	for _, c := range idle {
		_ = c.Close() // nobody uses it
	}
}

// retire lets no more requests go over the connections there are.
func (p *pool) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.retired = true
	}
}

// reset closes all connections, whatever they carry.
func (p *pool) reset() {
	p.mu.Lock()
	conns := p.conns
	p.conns = nil
	for _, bell := range p.waiting {
		bell <- errClosed
	}
	p.waiting = nil
	p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // whatever is on its way fails, as it should
	}
}

// size is the number of connections.
func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep()
	return len(p.conns)
}
