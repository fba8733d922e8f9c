package server

import (
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
}

func (s *Server) limit(l net.Listener) (*limited, error) {
	out := &limited{
		Listener: l, most: int64(s.cfg.MaxConnections), log: s.cfg.Logger,
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_refused_connections_total", Help: "Connections that were closed because there were as many as --max-connections already.",
		}),
	}
	if err := s.metrics.Register(out.refused); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return out, nil
}

// Accept implements [net.Listener].
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // who serves looks at it
		}
		if l.open.Add(1) <= l.most {
			return &counted{Conn: c, of: l}, nil
		}
		l.open.Add(-1)
		_ = c.Close()
		l.refused.Inc()
		now := time.Now().Unix()
		if last := l.told.Load(); now-last >= 10 && l.told.CompareAndSwap(last, now) {
			l.log.Warn("connection refused: there are as many as --max-connections already", "connections", l.most, "peer", c.RemoteAddr().String())
		}
	}
}

// counted is a connection that makes room when it is closed.
type counted struct {
	net.Conn
	of   *limited
	once sync.Once
}

// Close implements [net.Conn].
func (c *counted) Close() error {
	c.once.Do(func() { c.of.open.Add(-1) })
	return c.Conn.Close() //nolint:wrapcheck // it is the connection's
}
