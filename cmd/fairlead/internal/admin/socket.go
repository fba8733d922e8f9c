package admin

import (
	"log/slog"
	"net"
	"time"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/internal/loglimit"
)

// guarded is admin.sock without clients that can open it but must not use it: an Envoy that
// runs as the same user opens any path that an endpoint of the mesh names, for anybody who
// sends requests through it.
type guarded struct {
	net.Listener
	log     *slog.Logger
	limit   *loglimit.Limiter
	refuses func(pid int) bool
}

func guard(l net.Listener, log *slog.Logger) *guarded {
	return &guarded{Listener: l, log: log, limit: &loglimit.Limiter{Burst: 3, Every: time.Minute}, refuses: proxy.IsEnvoy}
}

// Accept returns the next connection that is no Envoy's.
func (g *guarded) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		pid, err := peercred.Process(conn)
		if err == nil && !g.refuses(pid) {
			return conn, nil
		}
		if omitted, ok := g.limit.Allow(time.Now()); ok {
			g.log.Warn("connection to admin.sock rejected: it comes from an Envoy; an endpoint of the mesh leads to this socket",
				"path", g.Addr().String(), "pid", pid, "left_out", omitted, "err", err)
		}
		_ = conn.Close()
	}
}
