package issue_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki"
	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/issue"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a control plane's CA on a loopback port, with a second service in
// the place of xDS that answers who is there.
type server struct {
	grpc_health_v1.UnimplementedHealthServer

	authority *pki.Authority
	hosts     *attest.Entitlements
	service   *issue.Service
	addr      string
	log       *envoytest.Log
	metrics   *prometheus.Registry

	mu   sync.Mutex // guards peer
	peer issue.Peer
}

// settings are what a test changes of the defaults.
type settings struct {
	dir   string
	td    string
	born  time.Time
	ttl   time.Duration
	burst int
	hold  func() error
	// workload is Config.Workload.
	workload func(attest.Host, profile.Pair) profile.WorkloadName
	// answering is Config.Answering.
	answering func(peer string) (done func())

	readopt attest.Readopt
}

func start(t testing.TB, set settings) *server {
	t.Helper()
	if set.dir == "" {
		set.dir = t.TempDir()
	}
	if set.td == "" {
		set.td = "mesh.test"
	}
	if set.born.IsZero() {
		set.born = time.Now()
	}
	s := &server{log: &envoytest.Log{}, metrics: prometheus.NewRegistry()}
	logger := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	s.authority, err = pki.New(pki.Config{
		Dir: set.dir, TrustDomain: spiffeid.RequireTrustDomainFromString(set.td), Logger: logger, DefaultTTL: set.ttl,
	}, set.born)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.authority.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	s.hosts, err = attest.New(attest.Config{Dir: set.dir, Logger: logger, Readopt: set.readopt})
	if err != nil {
		t.Fatal(err)
	}
	s.service, err = issue.New(issue.Config{
		Authority: s.authority, Entitlements: s.hosts, Logger: logger, Registerer: s.metrics, Burst: set.burst, Hold: set.hold, Workload: set.workload, Answering: set.answering,
		Rate: 0.001 * float64(min(1, set.burst)),
	})
	if err != nil {
		t.Fatal(err)
	}
	front, err := pki.NewServerTLS(pki.ServerTLSConfig{Authority: s.authority, Logger: logger, Refused: s.service.HandshakeRefused}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.listen(t, front.Config())
	return s
}

// startPoser puts the services behind other TLS settings.
func startPoser(t *testing.T, cfg *tls.Config, s *server) string {
	t.Helper()
	s.listen(t, cfg)
	return s.addr
}

func (s *server) listen(t testing.TB, cfg *tls.Config) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
	s.service.Register(g)
	grpc_health_v1.RegisterHealthServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Check is what xDS does with a new stream.
func (s *server) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	p, err := s.service.Authenticate(ctx)
	if err != nil {
		return nil, status.Error(codes.PermissionDenied, "no")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer = p
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

// stream opens a stream with that identity and says who the server saw.
func (s *server) stream(t *testing.T, id *svid.Identity) (issue.Peer, error) {
	t.Helper()
	conn := dial(t, s.addr, svid.ClientTLS(func() *svid.Identity { return id }))
	_, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer, err
}

func dial(t *testing.T, addr string, cfg *tls.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// token is what fairlead token create prints, read back.
func (s *server) token(t testing.TB, g jointoken.Grant) svid.JoinToken {
	t.Helper()
	secret, r, err := s.hosts.CreateToken(g, 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pin, err := s.authority.Pin()
	if err != nil {
		t.Fatal(err)
	}
	text, err := svid.JoinToken{
		Secret: secret, Host: r.Grant.Host, Pairs: r.Grant.Pairs, Direct: r.Grant.Direct, Type: r.Grant.Type,
		TrustDomain: s.authority.TrustDomain(), Servers: []string{s.addr}, Pin: pin,
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	out, err := svid.ParseJoinToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *server) client(t testing.TB) *svid.Client {
	t.Helper()
	c, err := svid.NewClient(svid.ClientConfig{Servers: []string{s.addr}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// join is a host's whole way in.
func (s *server) join(t testing.TB, g jointoken.Grant) *svid.Identity {
	t.Helper()
	id, err := s.client(t).Join(t.Context(), s.token(t, g), newKey(t))
	if err != nil {
		t.Fatalf("%v\n%s", err, s.log)
	}
	return id
}

// forge signs, with the server's own authority, a certificate for a new key.
func (s *server) forge(t *testing.T, subject profile.Subject, at time.Time) *svid.Identity {
	t.Helper()
	key := newKey(t)
	chain, err := s.authority.Sign(profile.Leaf{Subject: subject, PublicKey: key.Public()}, at)
	if err != nil {
		t.Fatal(err)
	}
	return &svid.Identity{SVID: x509svid.SVID{ID: subject.ID, PrivateKey: key, Certificates: chain}, Bundle: x509bundle.FromX509Authorities(subject.ID.TrustDomain(), s.authority.Bundle())}
}

func pair(t testing.TB, text string) profile.Pair {
	t.Helper()
	p, err := profile.ParsePair(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func host(t testing.TB, name string, pairs ...string) jointoken.Grant {
	t.Helper()
	g := jointoken.Grant{Host: name}
	for _, p := range pairs {
		g.Pairs = append(g.Pairs, pair(t, p))
	}
	return g
}
