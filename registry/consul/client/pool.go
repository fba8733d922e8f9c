package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// dialTimeout and handshakeTimeout bound the making of a connection: long enough
	// for the other side of the world, short enough to try again soon where a packet
	// was lost.
	dialTimeout      = 3 * time.Second
	handshakeTimeout = 5 * time.Second
	// pingInterval and pingTimeout find out by HTTP/2 that a connection is dead.
	pingInterval = 5 * time.Second
	pingTimeout  = 5 * time.Second
	// idleTimeout is how long a connection that nobody uses is kept.
	idleTimeout = time.Minute
	// maxHeader bounds the headers of an answer; streamBuffer, in bytes, what of an
	// answer waits in memory to be read, by HTTP/2.
	maxHeader    = 256 << 10
	streamBuffer = 128 << 10
)

// errNotHTTP is what a request gets if something answers on a new connection that
// is not HTTP.
var errNotHTTP = errors.New("the answer is not HTTP")

// pool carries requests over as few connections as it can, and never over more
// than its maximum. It uses the single connections of http.Transport: the pool of
// http.Transport has no limit of connections by HTTP/2 (docs/adr/0043).
//
// The connections are used in the order in which they were made, so that the last
// ones fall idle and are closed.
type pool struct {
	dial func(context.Context) (*http.ClientConn, error)
	max  int
	// streams is how many requests a connection carries at a time, as the server said
	// last; 0 before it did.
	streams atomic.Int64

	mu      sync.Mutex // guards all following fields
	conns   []*conn    // a slice is never changed, only replaced
	dialing bool       // connections are made one after the other
	change  *change    // for those who wait; nil while nobody does
}

// conn is a connection of the pool.
type conn struct {
	*http.ClientConn
	used atomic.Bool // it carried a request to its end
	idle time.Time   // since when, as the pool saw it; guarded by the pool's mutex
}

// change wakes those who wait: there may be room for a request.
type change struct {
	happened chan struct{}
	err      error // why no connection can be made, or nil; set before happened is closed
}

// newPool makes a pool that starts nothing.
func newPool(at target, maxConns int, tls *tlsFiles) *pool {
	d := &net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 4}}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if at.socket != "" {
			network, address = "unix", at.socket
		}
		return d.DialContext(ctx, network, address)
	}
	t := &http.Transport{
		DialContext: dial, DisableCompression: true, TLSHandshakeTimeout: handshakeTimeout,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			nc, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return tls.handshake(ctx, nc)
		},
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingInterval, PingTimeout: pingTimeout, WriteByteTimeout: pingTimeout, MaxReceiveBufferPerStream: streamBuffer,
		},
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(true)
	p := &pool{max: maxConns}
	p.dial = func(ctx context.Context) (*http.ClientConn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout+handshakeTimeout)
		defer cancel()
		cc, err := t.NewClientConn(ctx, at.scheme, at.address)
		if err != nil || at.scheme == "http" {
			return cc, err
		}
		if err := p.probe(ctx, cc, at); err != nil {
			return nil, errors.Join(err, cc.Close())
		}
		return cc, nil
	}
	return p
}

// probe sends a cheap query over a new connection. By HTTP/2 the server says
// first of all how many requests the connection carries, and so this is known
// before others use it: a request too many would wait within the connection for
// one of the blocking queries.
func (p *pool) probe(ctx context.Context, cc *http.ClientConn, at target) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.scheme+"://"+at.address+at.prefix+"/v1/status/leader", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := cc.RoundTrip(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxHeader))
	if resp.ProtoMajor == 2 {
		p.streams.Store(int64(cc.Available() + cc.InFlight()))
	}
	return errors.Join(err, resp.Body.Close())
}

// RoundTrip implements http.RoundTripper. A request without a body is sent again
// if a connection that was in use before turns out to be closed.
func (p *pool) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		c, err := p.take(req.Context())
		if err != nil {
			return nil, err
		}
		if !c.used.Load() {
			return c.roundTripFirst(req)
		}
		resp, err := c.RoundTrip(req)
		if err == nil || c.Err() == nil || req.Body != nil || req.Context().Err() != nil {
			return resp, err
		}
	}
}

// roundTripFirst carries a request over a new connection.
func (c *conn) roundTripFirst(req *http.Request) (*http.Response, error) {
	var answered atomic.Bool
	trace := &httptrace.ClientTrace{GotFirstResponseByte: func() { answered.Store(true) }}
	resp, err := c.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	switch {
	case err == nil:
		c.used.Store(true)
	case answered.Load() && c.Err() != nil && req.Context().Err() == nil:
		err = fmt.Errorf("%w: %w", errNotHTTP, err)
	}
	return resp, err
}

// take reserves a place for a request on a connection. It makes a connection if
// all are full, or waits.
func (p *pool) take(ctx context.Context) (*conn, error) {
	for {
		change, conns := p.nextChange() // first, so that no change is missed
		for _, c := range conns {
			if c.Reserve() == nil {
				return c, nil
			}
		}
		if p.mayDial() {
			if err := p.connect(ctx); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-change.happened:
			if change.err != nil {
				return nil, change.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// nextChange is the next change of the connections, and the connections now.
func (p *pool) nextChange() (*change, []*conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.change == nil {
		p.change = &change{happened: make(chan struct{})}
	}
	return p.change, p.conns
}

// notify wakes those who wait, with the reason why no connection can be made, if
// any. The lock is held.
func (p *pool) notify(err error) {
	if p.change != nil {
		p.change.err = err
		close(p.change.happened)
		p.change = nil
	}
}

// mayDial reports whether the caller is to make a connection.
func (p *pool) mayDial() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = open(p.conns)
	if p.dialing || len(p.conns) >= p.max {
		return false
	}
	p.dialing = true
	return true
}

// connect makes a connection. If it cannot, all who wait for one get the error,
// unless the caller gave up.
func (p *pool) connect(ctx context.Context) error {
	cc, err := p.dial(ctx)
	if err == nil {
		cc.SetStateHook(func(*http.ClientConn) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.notify(nil)
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing = false
	switch {
	case err == nil:
		p.conns = append(slices.Clip(p.conns), &conn{ClientConn: cc})
		p.notify(nil)
	case ctx.Err() != nil:
		p.notify(nil)
	default:
		p.notify(err)
	}
	return err
}

// open are the connections that are not closed.
func open(conns []*conn) []*conn {
	closed := func(c *conn) bool { return c.Err() != nil }
	if !slices.ContainsFunc(conns, closed) {
		return conns
	}
	return slices.DeleteFunc(slices.Clone(conns), closed)
}

// closeIdle closes the connections that nobody has used for a while, but one.
func (p *pool) closeIdle(now time.Time) {
	p.mu.Lock()
	var idle []*conn
	p.conns = open(p.conns)
	for i, c := range p.conns {
		switch {
		case c.InFlight() > 0:
			c.idle = time.Time{}
		case c.idle.IsZero():
			c.idle = now
		case i > 0 && now.Sub(c.idle) > idleTimeout:
			idle = append(idle, c)
		}
	}
	p.mu.Unlock()
	for _, c := range idle {
		_ = c.Close() // a request that came meanwhile is sent again
	}
}

// drop takes all connections out of the pool. The func closes them, whatever they
// carry.
func (p *pool) drop() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	conns := p.conns
	p.conns = nil
	p.notify(nil)
	return func() {
		for _, c := range conns {
			_ = c.Close() // what it carries fails, as it should
		}
	}
}

// size is the number of connections.
func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = open(p.conns)
	return len(p.conns)
}
