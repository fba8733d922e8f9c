package peercred

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/internal/unixsocket"
)

// minToken is the shortest token that a [Guard] takes: 128 bits in base32.
const minToken = 26

// idleTime is how long a connection without an accepted call is kept.
const idleTime = time.Minute

// logInterval is the least time between two log lines of rejected calls. A client that sends
// requests through the Envoy decides how many calls are rejected.
const logInterval = time.Minute

// GuardConfig configures a [Guard].
type GuardConfig struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Socket is the path of the socket, for the log.
	Socket string
	// Header is the header that carries the token, in lower case, and Token the only accepted
	// value.
	Header, Token string
	// Passed is called for each accepted call, before it is served; may be nil.
	Passed func()
}

// Guard accepts only gRPC calls that carry a token.
//
// The peer credentials alone are not enough for a socket that serves an Envoy. An Envoy
// connects with its own user to every endpoint of its configuration. If an endpoint is the
// path of the socket, or a symbolic link to it, a request that is routed there would count as
// Envoy's own call. Only the agent and the static clusters of the bootstrap know the token.
//
// It also limits the connections that have not shown the token, see [Config]: they are closed
// after a timeout, and at the limit the process that has the most loses its oldest. A
// connection that has shown the token is never closed for others.
type Guard struct {
	c      GuardConfig
	limits limits
	lines  loglimit.Limiter // of connections that were closed
	socket atomic.Pointer[unixsocket.Listener]

	mu         sync.Mutex // guards all following fields
	refused    uint64
	lastLogged time.Time // when a rejected call was logged last
	unlogged   uint64    // rejected calls since then
	closed     uint64    // connections that had not shown the token
}

// NewGuard checks the configuration.
func NewGuard(c GuardConfig) (*Guard, error) {
	if c.Logger == nil || c.Header == "" {
		return nil, errors.New("guarding a socket: Logger and Header are needed")
	}
	if len(c.Token) < minToken {
		return nil, fmt.Errorf("guarding the socket %q: its token has %d characters, and needs %d", c.Socket, len(c.Token), minToken)
	}
	return &Guard{c: c, limits: defaultLimits(), lines: loglimit.Limiter{Burst: 1, Every: logInterval}}, nil
}

// ServerOptions make a gRPC server require the token.
func (g *Guard) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := g.check(ctx, time.Now(), info.FullMethod); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := g.check(s.Context(), time.Now(), info.FullMethod); err != nil {
				return err
			}
			return next(srv, s)
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime}),
		// The memory that a connection without the token can use: by default the buffers of
		// gRPC are 64 KiB, and headers may have 16 MiB.
		grpc.MaxHeaderListSize(maxHeaders), grpc.ReadBufferSize(readBuffer),
	}
}

// Problem says why nobody can open a connection to the socket, or is empty.
func (g *Guard) Problem() string {
	if l := g.socket.Load(); l != nil {
		return l.Problem()
	}
	return ""
}

// Remade is the base name of the socket, and how often it was made again because somebody had
// removed it.
func (g *Guard) Remade() (socket string, n uint64) {
	if l := g.socket.Load(); l != nil {
		n = l.Remade()
	}
	return filepath.Base(g.c.Socket), n
}

// Closed counts connections that were closed because they did not show the token.
func (g *Guard) Closed() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Refused counts calls with no token or a wrong one.
func (g *Guard) Refused() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}

func (g *Guard) check(ctx context.Context, now time.Time, method string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get(g.c.Header)
	// One value, and that one: with several, a caller could send many guesses.
	if len(values) == 1 && subtle.ConstantTimeCompare([]byte(values[0]), []byte(g.c.Token)) == 1 {
		shown(ctx)
		if g.c.Passed != nil {
			g.c.Passed()
		}
		return nil
	}
	g.refuse(now, method, len(values) > 0)
	return status.Error(codes.PermissionDenied, "this socket serves only the Envoy that its agent started")
}

func (g *Guard) refuse(now time.Time, method string, wrong bool) {
	g.mu.Lock()
	g.refused++
	if !g.lastLogged.IsZero() && now.Sub(g.lastLogged) < logInterval {
		g.unlogged++
		g.mu.Unlock()
		return
	}
	count := g.unlogged + 1
	g.lastLogged, g.unlogged = now, 0
	g.mu.Unlock()
	reason := "no token"
	if wrong {
		reason = "wrong token"
	}
	g.c.Logger.Warn("call rejected: not from this agent's Envoy; an endpoint of the mesh may lead to this socket",
		"path", g.c.Socket, "name", method, "reason", reason, "count", count)
}
