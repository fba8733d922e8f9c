package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
)

// limited is a listener that serves only so many connections at a time. One more
// is closed at once, before it has cost a handshake: its client comes again later,
// by gRPC's own back-off.
type limited struct {
	net.Listener
	most    int64
	log     *slog.Logger
	refused prometheus.Counter

	open atomic.Int64
	told atomic.Int64 // when that was logged last, in seconds of Unix

	mu sync.Mutex // guards all following fields
	by map[string]*counted
	of map[string]int // connections by who proved to be at the other end
}

func (s *Server) limit(l net.Listener) (*limited, error) {
	out := &limited{
		Listener: l, most: int64(s.cfg.MaxConnections), log: s.cfg.Logger, by: map[string]*counted{}, of: map[string]int{},
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_refused_connections_total", Help: "Connections that were closed because there were as many as --max-connections already.",
		}),
	}
	if err := s.metrics.Register(out.refused); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return out, nil
}

// beside is another listener with the same limit. Nobody's connections are handed
// out bare: gRPC would have the kernel end one of which ten seconds nothing is read.
func (l *limited) beside(o net.Listener) *limited {
	return &limited{Listener: o, most: l.most, log: l.log, refused: l.refused, by: map[string]*counted{}, of: map[string]int{}}
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
			l.log.Warn("connection refused: there are as many as --max-connections already", "connections", l.most, "peer", c.RemoteAddr().String())
		}
	}
}

// refuse counts a connection that was refused, and says whether it is time to tell.
func (l *limited) refuse() (tell bool) {
	l.refused.Inc()
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
	if c.who == "" {
		return
	}
	if l.of[c.who]--; l.of[c.who] == 0 {
		delete(l.of, c.who)
	}
}

// prove counts a connection for who is at its other end, if there is room.
func (l *limited) prove(c *counted, who string, most int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by[c.at] != c || c.who != "" {
		return true // it is closed already
	}
	if l.of[who] >= most {
		return false
	}
	c.who = who
	l.of[who]++
	return true
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
	who  string // who proved to be at the other end, or empty; of the listener
	once sync.Once
}

// Close implements [net.Conn].
func (c *counted) Close() error {
	c.once.Do(func() { c.in.remove(c) })
	return c.Conn.Close() //nolint:wrapcheck // it is the connection's
}

// proven is TLS that lets one identity have only so many connections: an
// identity, not an address, for many hosts may come from one.
type proven struct {
	credentials.TransportCredentials
	in   *limited
	most int
}

var errManyConnections = errors.New("it has as many connections as it may")

// ServerHandshake implements [credentials.TransportCredentials].
func (p proven) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // gRPC logs it
	}
	c, counts := raw.(*counted)
	who := identityIn(info)
	if counts && who != "" && !p.in.prove(c, who, p.most) {
		if p.in.refuse() {
			p.in.log.Warn("connection refused: one host has as many as it may, twice --max-streams-per-host", "spiffe_id", who, "connections", p.most, "peer", c.at)
		}
		return nil, nil, errors.Join(errManyConnections, conn.Close())
	}
	return conn, info, nil
}

// Clone implements [credentials.TransportCredentials].
func (p proven) Clone() credentials.TransportCredentials {
	p.TransportCredentials = p.TransportCredentials.Clone()
	return p
}

// identityIn is what the certificate of a handshake names, or empty.
func identityIn(info credentials.AuthInfo) string {
	t, ok := info.(credentials.TLSInfo)
	if !ok || len(t.State.PeerCertificates) == 0 || len(t.State.PeerCertificates[0].URIs) == 0 {
		return ""
	}
	return t.State.PeerCertificates[0].URIs[0].String()
}
