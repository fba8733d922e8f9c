package server

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// limited is a listener that serves only so many connections at a time, for peers
// on this machine that prove nothing. One more is closed at once: its client comes
// again later, by gRPC's own back-off. Nobody's connections are handed out bare:
// gRPC would have the kernel end one of which ten seconds nothing is read.
type limited struct {
	net.Listener
	most int64
	log  *slog.Logger

	open atomic.Int64
	told atomic.Int64 // when that was logged last, in seconds of Unix

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
		if l.refuse() {
			l.log.Warn("plaintext connection rejected: connection limit reached", "connections", l.most, "peer", c.RemoteAddr().String())
		}
	}
}

// refuse says whether it is time to tell that a connection was refused.
func (l *limited) refuse() (tell bool) {
	now := time.Now().Unix()
	last := l.told.Load()
	return now-last >= 10 && l.told.CompareAndSwap(last, now)
}

func (l *limited) add(c net.Conn) *counted {
	out := &counted{Conn: c, in: l, at: c.RemoteAddr().String()}
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

// hangup breaks the connection from an address, if there is one.
func (l *limited) hangup(address string) {
	l.mu.Lock()
	c := l.by[address]
	l.mu.Unlock()
	if c != nil {
		_ = c.Close() // whatever it says, it is closed
	}
}

// counted is a connection that makes room when it is closed.
type counted struct {
	net.Conn
	in   *limited
	at   string
	once sync.Once
}

// Close implements [net.Conn].
func (c *counted) Close() error {
	c.once.Do(func() { c.in.remove(c) })
	return c.Conn.Close() //nolint:wrapcheck // it is the connection's
}
