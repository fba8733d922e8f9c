package server

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/accept"
)

// limited is a listener that serves a limited number of connections at a time, for
// unauthenticated clients on this machine. Further ones are closed at once; gRPC clients retry
// with back-off. Connections are always wrapped: on a bare TCP connection gRPC would set the
// option of the kernel that ends it after ten seconds without reading.
type limited struct {
	net.Listener
	most int64
	log  *slog.Logger

	open       atomic.Int64
	lastLogged atomic.Int64 // when a rejection was logged last, in Unix seconds

	mu sync.Mutex // guards all following fields
	by map[string]*counted
}

func limit(l net.Listener, most int, log *slog.Logger) *limited {
	return &limited{Listener: l, most: int64(most), log: log, by: map[string]*counted{}}
}

// Accept implements [net.Listener].
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // who serves looks at it
		}
		if l.open.Add(1) <= l.most {
			return l.add(c), nil
		}
		l.open.Add(-1)
		_ = c.Close()
		if l.mayLog() {
			l.log.Warn("plaintext connection rejected: connection limit reached", "connections", l.most, "peer", c.RemoteAddr().String())
		}
	}
}

// mayLog reports whether a rejected connection may be logged now.
func (l *limited) mayLog() bool {
	now := time.Now().Unix()
	last := l.lastLogged.Load()
	return now-last >= 10 && l.lastLogged.CompareAndSwap(last, now)
}

func (l *limited) add(c net.Conn) *counted {
	out := &counted{Gate: accept.NewGate(c), in: l, at: c.RemoteAddr().String()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by[out.at] = out
	return out
}

// remove is called once a connection.
func (l *limited) remove(c *counted) {
	l.open.Add(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by[c.at] == c {
		delete(l.by, c.at)
	}
}

// hangup closes the connection from an address, if there is one.
func (l *limited) hangup(address string) {
	l.mu.Lock()
	c := l.by[address]
	l.mu.Unlock()
	if c != nil {
		_ = c.Close() // closed in any case
	}
}

// resume opens the gate of the connection from an address, if there is one.
func (l *limited) resume(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.by[address]; c != nil {
		c.Open()
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	*accept.Gate
	in   *limited
	at   string
	once sync.Once
}

// Close implements [net.Conn].
func (c *counted) Close() error {
	c.once.Do(func() { c.in.remove(c) })
	return c.Gate.Close() //nolint:wrapcheck // it is the connection's
}
