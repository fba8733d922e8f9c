package client

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
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
	// settleFor is for how long a connection that has answered nothing takes one
	// request only: how many it takes, the server says first of all, but it is not
	// told to who uses the connection, and a request too many waits within it for
	// one of those that wait for a change.
	settleFor = 250 * time.Millisecond
	// refusedMost is how often a request is sent again that was not looked at.
	refusedMost = 10
	// maxHeader bounds the headers of an answer; streamBuffer and connBuffer, in
	// bytes, what of answers waits in memory to be read, by HTTP/2. A connection
	// has room for all that its requests may have, so that none waits for another.
	maxHeader    = 256 << 10
	streamBuffer = 128 << 10
	connBuffer   = 250 * streamBuffer
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
	carries int          // what streams said last, or 0
}

// conn is a connection of the pool.
type conn struct {
	*http.ClientConn
	born    time.Time
	used    bool // it carried a request to its end
	retired bool // it takes no more requests
	idle    time.Time
}

// settled reports whether it is known how many requests a connection takes.
func (c *conn) settled() bool { return c.used || time.Since(c.born) >= settleFor }

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
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingFor, WriteByteTimeout: pingFor,
			MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: connBuffer,
		},
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
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
// connection that was in use before turns out to be closed, and a few times if the
// server did not look at it: over a new connection, it is known too late how many
// the server takes.
func (p *pool) RoundTrip(req *http.Request) (*http.Response, error) {
	for refused := 0; ; {
		c, used, err := p.take(req.Context())
		if err != nil {
			return nil, err
		}
		resp, err := c.RoundTrip(req)
		if err == nil {
			p.mu.Lock()
			if !c.used {
				c.used = true
				p.wake(max(1, c.Available()))
			}
			p.mu.Unlock()
			return resp, nil
		}
		if req.Body == nil && req.Context().Err() == nil && isRefused(err) && refused < refusedMost {
			refused++
			continue
		}
		if !used || req.Body != nil || req.Context().Err() != nil || c.Err() == nil {
			return nil, err
		}
	}
}

// isRefused reports whether a server says that it did not look at a request.
// Package net/http has no name for the error.
func isRefused(err error) bool { return strings.Contains(err.Error(), "REFUSED_STREAM") }

// take finds a connection with room for a request, makes one, or waits. It tells
// whether the connection carried a request before.
func (p *pool) take(ctx context.Context) (c *conn, used bool, err error) {
	p.takers.Add(1)
	defer p.takers.Add(-1)
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		p.sweep()
		unsettled := false
		for _, c := range p.conns {
			if c.InFlight() > 0 && c.Available() > 0 && !c.settled() {
				unsettled = unsettled || !c.retired
				continue
			}
			if !c.retired && c.Available() > 0 && c.Reserve() == nil {
				return c, c.used, nil
			}
		}
		if !unsettled && len(p.conns)+p.dialing < p.max && (!p.one || p.dialing == 0) {
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
	c := &conn{ClientConn: cc, born: time.Now()}
	p.conns = append(p.conns, c)
	cc.SetStateHook(func(cc *http.ClientConn) {
		if p.takers.Load() > 0 {
			go p.stirred(cc) // the hook may run within a call of ours, under the lock
		}
	})
	if cc.Available() <= 1 { // it is HTTP/1.1: whoever waits makes another one
		p.wake(1)
		return nil
	}
	time.AfterFunc(settleFor, func() { p.stirred(cc) })
	return nil
}

// stirred lets go on who waits for what the connection can do now.
func (p *pool) stirred(cc *http.ClientConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wake(max(1, cc.Available())) // another one may be made
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

// streams is how many requests one connection carries at a time, as the server
// had it last; 0 where no connection was used.
func (p *pool) streams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep()
	least, full := 0, 0
	for _, c := range p.conns {
		room, busy := c.Available(), c.InFlight()
		switch {
		case !c.used || c.retired:
		case room == 0: // it is full, or takes no more for another reason
			full = max(full, busy)
		case least == 0 || room+busy < least:
			least = room + busy
		}
	}
	if least > 0 {
		p.carries = least
	}
	return cmp.Or(p.carries, full)
}

// size is the number of connections.
func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep()
	return len(p.conns)
}
