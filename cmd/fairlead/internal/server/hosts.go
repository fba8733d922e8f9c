package server

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/accept"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/wire"
)

// Limits of the gRPC servers. The pings are Istio's (pkg/keepalive/options.go).
const (
	maxMessage      = 16 << 20
	maxHeader       = 64 << 10 // gRPC's own is 16 MiB, kept for as long as a stream lives
	pingEvery       = 30 * time.Second
	pingTimeout     = 10 * time.Second
	minPingInterval = 5 * time.Second
	prefaceTime     = 10 * time.Second
	// A connection without a call is closed after maxIdle: agents keep a stream
	// open, and whoever keeps none has no reason to stay.
	maxIdle    = 2 * time.Minute
	maxStreams = 256 // of one connection
	// maxPlaintext bounds the connections without TLS, all of this machine.
	maxPlaintext = 1024
)

// What a peer may do that is not authenticated. A certificate request has 16 KiB
// at most, a join token less than 1 KiB. Headers of a few bytes may take a
// hundred times as many, which is why they have the least.
const (
	maxUnauthenticatedMessage = 32 << 10
	maxUnauthenticatedHeader  = 8 << 10
	maxUnauthenticatedStreams = 1 // of one connection
	maxUnauthenticatedIdle    = 2 * time.Second
	unauthenticatedBuffer     = 4 << 10 // for writing, while something is written; gRPC's own is 32 KiB. TLS has one for reading
)

// hosts is what port 15012 is served by: peers that have proved to be a host of
// the mesh have a gRPC server of their own, because the limits of one are the
// same for all of its connections.
type hosts struct {
	acceptor        *accept.Acceptor
	authenticated   *grpc.Server
	unauthenticated *grpc.Server
}

// bind takes the ports for hosts.
func (s *Server) bind(ctx context.Context) error {
	l, err := admin.Listen(ctx, s.cfg.XDSAddress)
	if err != nil {
		return fmt.Errorf("listening for hosts (--xds-address): %w", err)
	}
	s.listener = l
	if s.advertise, err = s.cfg.advertise(ctx, l.Addr()); err != nil || s.cfg.PlaintextAddress == "" {
		return err
	}
	if l, err = admin.Listen(ctx, s.cfg.PlaintextAddress); err != nil {
		return fmt.Errorf("listening in plaintext (--xds-plaintext-address): %w", err)
	}
	s.plaintext = &plaintext{listener: limit(l, maxPlaintext, s.cfg.Logger)}
	return nil
}

// newHosts makes what hosts are served by.
func (s *Server) newHosts(context.Context) error {
	names := make([]string, 0, len(s.advertise))
	for _, a := range s.advertise {
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			return fmt.Errorf("reading %q: %w", a, err)
		}
		names = append(names, host)
	}
	own, err := pki.NewServerTLS(pki.ServerTLSConfig{
		Authority: s.authority, Logger: s.cfg.Logger, Names: names, TTL: s.cfg.CertificateTTL, Clock: s.clock, Refused: s.issuer.HandshakeRefused,
	}, wallclock.Now())
	if err != nil {
		return err
	}
	acceptor, err := accept.New(accept.Config{
		Logger: s.cfg.Logger, TLS: own.Config(), Identify: s.issuer.Identify, Opened: s.issuer.Connected, Registerer: s.metrics,
		MaxConnections:     s.cfg.MaxConnections,
		MaxPerIdentity:     2 * cmp.Or(s.cfg.MaxStreamsPerHost, xds.DefaultMaxPerHost), // each stream by one of its own, and certificates
		MaxUnauthenticated: s.cfg.MaxUnauthenticated, MaxUnauthenticatedPerAddress: s.cfg.MaxUnauthenticatedPerAddress,
		Timeout: s.cfg.UnauthenticatedTimeout,
	}, s.listener.Addr())
	if err != nil {
		return err
	}
	s.hosts = &hosts{
		acceptor:      acceptor,
		authenticated: grpc.NewServer(append(transport(), grpc.Creds(accept.Credentials()), grpc.StreamInterceptor(resumeOthers(s.resume)))...), //nolint:contextcheck // each call has its own context
		unauthenticated: grpc.NewServer(append(transport(), grpc.Creds(accept.Credentials()),
			grpc.MaxRecvMsgSize(maxUnauthenticatedMessage),
			grpc.MaxHeaderListSize(maxUnauthenticatedHeader),
			grpc.MaxConcurrentStreams(maxUnauthenticatedStreams),
			grpc.StaticConnWindowSize(64<<10),
			grpc.ReadBufferSize(0), grpc.WriteBufferSize(unauthenticatedBuffer),
			grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxUnauthenticatedIdle, Time: pingEvery, Timeout: pingTimeout}),
			grpc.StreamInterceptor(s.onceKnown),
		)...),
	}
	s.issuer.Register(s.hosts.authenticated)                  //nolint:contextcheck // each call has its own context
	s.issuer.RegisterUnauthenticated(s.hosts.unauthenticated) //nolint:contextcheck // each call has its own context
	s.xds.Register(s.hosts.authenticated)
	s.xds.Register(s.hosts.unauthenticated)
	return nil
}

var errOldConnection = status.Error(codes.Unavailable, "connection predates the host's record: reconnect")

// onceKnown keeps streams off the server for unauthenticated peers: package xds
// refuses them with the reason, except where the host was entitled after its
// handshake.
func (s *Server) onceKnown(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if _, err := s.issuer.Authenticate(stream.Context()); err == nil && info.IsServerStream {
		return errOldConnection
	}
	return handler(srv, stream)
}

// run serves until the context ends.
func (h *hosts) run(ctx context.Context, g *errgroup.Group, l net.Listener) {
	g.Go(func() error { return h.acceptor.Run(ctx, l) })
	g.Go(func() error { return serve(ctx, h.authenticated, h.acceptor.Authenticated()) })
	g.Go(func() error { return serve(ctx, h.unauthenticated, h.acceptor.Unauthenticated()) })
}

// hangup breaks the connection from an address.
func (s *Server) hangup(address string) {
	s.hosts.acceptor.Hangup(address)
	if s.plaintext != nil {
		s.plaintext.listener.hangup(address)
	}
}

// resume lets all of the connection from an address be read.
func (s *Server) resume(address string) {
	s.hosts.acceptor.Resume(address)
	if s.plaintext != nil {
		s.plaintext.listener.resume(address)
	}
}

// resumeOthers lets a connection be read as soon as it has a call that is not a proxy's
// stream, for which package xds does so: requests for certificates are received a few at a
// time, and not for long.
func resumeOthers(resume func(address string)) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if p, ok := peer.FromContext(stream.Context()); ok && info.FullMethod != discovery.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName {
			resume(p.Addr.String())
		}
		return handler(srv, stream)
	}
}

// transport is how gRPC is spoken, with TLS and without.
func transport() []grpc.ServerOption {
	return append(wire.ServerOptions(),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.ConnectionTimeout(prefaceTime),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle, Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
	)
}

// plaintext is xDS without TLS, for every user of this machine.
type plaintext struct {
	grpc     *grpc.Server
	listener *limited
}

// newPlaintext makes what asks for no proof, if there is to be one. It serves no
// certificates.
func (s *Server) newPlaintext(ctx context.Context) error {
	if s.plaintext == nil {
		return nil
	}
	s.plaintext.grpc = grpc.NewServer(append(transport(), grpc.Creds(insecure.NewCredentials()))...)
	s.xds.Register(s.plaintext.grpc)
	s.cfg.Logger.WarnContext(ctx, "serving xDS in plaintext: every user of this machine can read the configuration of every workload",
		"address", s.plaintext.listener.Addr().String())
	return nil
}
