package peercred

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/loglimit"
)

// minToken is the shortest token that a [Guard] takes: 128 bits in base32.
const minToken = 26

// idleTime is how long a connection without a call that was let in is kept.
const idleTime = time.Minute

// logInterval is the least time between two log lines of refused calls. Whoever
// can send requests through the Envoy decides how many calls are refused.
const logInterval = time.Minute

// GuardConfig says what a [Guard] asks for.
type GuardConfig struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Socket is the path of the socket, for the log.
	Socket string
	// Header is the header that carries the token, in lower case, and Token its
	// only value that is let in.
	Header, Token string
	// Passed is called with each call that is let in, before it is served; nil
	// means nothing.
	Passed func()
}

// Guard lets only those calls of gRPC through that carry a token.
//
// The kernel's answer alone is not enough for a socket that serves an Envoy: an
// Envoy connects with its own user wherever its configuration sends a request, so
// whoever can make it connect to the path of the socket, by a symbolic link, would
// be taken for it. The token is known to the agent and to the static clusters of
// the bootstrap.
//
// It also bounds the connections that have not shown the token, see [Config]: they
// are closed after a while, and of too many the process that has the most gives way, with
// its oldest. One that has shown
// it is Envoy's, and is never closed for others.
type Guard struct {
	c      GuardConfig
	limits limits
	lines  loglimit.Limiter // of connections that were closed

	mu      sync.Mutex // guards all following fields
	refused uint64
	told    time.Time // when a refusal was logged last
	silent  uint64    // refusals since then
	closed  uint64    // connections that had not shown the token
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

// ServerOptions make a server of gRPC ask for the token.
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
		// What somebody without the token can make the agent keep, by connection: the
		// buffers of gRPC are 64 KiB, and headers may have 16 MiB.
		grpc.MaxHeaderListSize(maxHeaders), grpc.ReadBufferSize(readBuffer),
	}
}

// Closed is how many connections were closed that had not shown the token.
func (g *Guard) Closed() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Refused is how many calls had no token, or another one.
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
	if !g.told.IsZero() && now.Sub(g.told) < logInterval {
		g.silent++
		g.mu.Unlock()
		return
	}
	count := g.silent + 1
	g.told, g.silent = now, 0
	g.mu.Unlock()
	reason := "no token"
	if wrong {
		reason = "wrong token"
	}
	g.c.Logger.Warn("call rejected: not from this agent's Envoy; an endpoint of the mesh may lead to this socket",
		"path", g.c.Socket, "name", method, "reason", reason, "count", count)
}
