package relay

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/parallel"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
)

const deadline = envoytest.Patience

func TestMain(m *testing.M) {
	parallel.Waiting()
	goleak.VerifyTestMain(m)
}

// testTLS is a certificate for the fake server. Package agent tests which servers are
// accepted.
func testTLS(tb testing.TB) tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// fakeServer is a control plane that has only the server side of the protocol.
type fakeServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	tb   testing.TB
	cert tls.Certificate
	addr string
	grpc *grpc.Server
	done chan struct{}

	mu       sync.Mutex // guards all following fields
	gen      *stream.Generation
	bells    map[chan struct{}]struct{}
	sent     []string // names of resources, and -name for removals
	reports  []string
	events   []stream.Event
	settled  map[stream.TypeURL]uint64
	streams  int
	versions []bootstrap.Version
	refusal  error       // or nil; the error of every stream
	asked    []time.Time // when streams were rejected

	down, up atomic.Int64 // bytes on the wire, with TLS
}

// counted counts what a server writes and reads.
type counted struct {
	net.Listener
	s *fakeServer
}

func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countedConn{c, l.s}, err
}

type countedConn struct {
	net.Conn
	s *fakeServer
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.s.down.Add(int64(n))
	return n, err
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.s.up.Add(int64(n))
	return n, err
}

func newServer(tb testing.TB) *fakeServer {
	tb.Helper()
	s := &fakeServer{tb: tb, cert: testTLS(tb), addr: "127.0.0.1:0", bells: map[chan struct{}]struct{}{}, settled: map[stream.TypeURL]uint64{}}
	s.start()
	tb.Cleanup(s.kill)
	return s
}

func (s *fakeServer) start() {
	s.tb.Helper()
	var l net.Listener
	envoytest.Eventually(s.tb, deadline, func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(s.tb.Context(), "tcp", s.addr)
		return err
	})
	s.addr = l.Addr().String()
	s.grpc = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{s.cert}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
	})), grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s.grpc, s)
	s.done = make(chan struct{})
	g, done := s.grpc, s.done
	go func() {
		defer close(done)
		_ = g.Serve(counted{l, s})
	}()
}

func (s *fakeServer) kill() {
	s.grpc.Stop()
	<-s.done
}

func (s *fakeServer) set(g *stream.Generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gen = g
	for b := range s.bells {
		select {
		case b <- struct{}{}:
		default:
		}
	}
}

func (s *fakeServer) DeltaAggregatedResources(st discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	half := stream.NewServer(stream.ServerConfig{})
	bell := make(chan struct{}, 1)
	s.mu.Lock()
	if err := s.refusal; err != nil {
		s.asked = append(s.asked, time.Now())
		s.mu.Unlock()
		return err
	}
	s.streams++
	s.bells[bell] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.bells, bell)
	}()
	reqs := make(chan *discoveryv3.DeltaDiscoveryRequest)
	go func() {
		defer close(reqs)
		for {
			r, err := st.Recv()
			if err != nil {
				return
			}
			select {
			case reqs <- r:
			case <-st.Context().Done():
				return
			}
		}
	}()
	for {
		s.mu.Lock()
		if s.gen != nil {
			half.SetGeneration(s.gen)
		}
		s.mu.Unlock()
		for r := half.Next(time.Now()); r != nil; r = half.Next(time.Now()) {
			s.note(r.Message())
			if err := st.Send(r.Message()); err != nil {
				return err
			}
		}
		s.mu.Lock()
		for _, e := range half.Events() {
			s.events = append(s.events, e)
			if e.Kind == stream.EventConverged {
				s.settled[e.Type] = e.Generation
			}
		}
		s.mu.Unlock()
		var due <-chan time.Time
		if d := half.NextDeadline(); !d.IsZero() {
			due = time.After(time.Until(d))
		}
		select {
		case <-due:
		case r, ok := <-reqs:
			if !ok {
				return nil
			}
			if err := s.request(half, r); err != nil {
				return err
			}
		case <-bell:
		}
	}
}

func (s *fakeServer) request(half *stream.Server, r *discoveryv3.DeltaDiscoveryRequest) error {
	s.mu.Lock()
	if r.GetNode() != nil {
		n, err := bootstrap.ParseNode(r.GetNode())
		if err != nil {
			s.mu.Unlock()
			return err
		}
		s.versions = append(s.versions, n.EnvoyVersion)
	}
	switch r.GetTypeUrl() {
	case bootstrap.EnvoyStateType:
		s.reports = append(s.reports, r.GetResourceNamesSubscribe()...)
		s.mu.Unlock()
		return nil
	case bootstrap.HealthType:
		s.reports = append(s.reports, "health:"+r.GetErrorDetail().GetMessage())
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	return half.Request(time.Now(), r)
}

func (s *fakeServer) note(r *discoveryv3.DeltaDiscoveryResponse) {
	if r.GetTypeUrl() == bootstrap.ProxyConfigType && len(r.GetResources()) == 0 {
		return // that this server has none, which it says on each stream
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range r.GetResources() {
		s.sent = append(s.sent, x.GetName())
	}
	for _, name := range r.GetRemovedResources() {
		s.sent = append(s.sent, "-"+name)
	}
}

// takeSent is what was sent since the last call.
func (s *fakeServer) takeSent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.sent
	s.sent = nil
	return out
}

func (s *fakeServer) reported() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reports)
}

// inStep waits until the relay has accepted a generation of the types.
func (s *fakeServer) inStep(tb testing.TB, number uint64, types ...stream.TypeURL) {
	tb.Helper()
	envoytest.Eventually(tb, deadline, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, url := range types {
			if s.settled[url] < number {
				return fmt.Errorf("%s is settled at %d, not %d", url.Short(), s.settled[url], number)
			}
		}
		return nil
	})
}

// streamed waits for the n-th stream.
func (s *fakeServer) streamed(tb testing.TB, n int) {
	tb.Helper()
	envoytest.Eventually(tb, deadline, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.streams < n {
			return fmt.Errorf("%d streams, not %d", s.streams, n)
		}
		return nil
	})
}

// anyone accepts every server; its certificate expires in an hour.
type anyone struct{ until time.Time }

func (anyone) TLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}
}
func (a anyone) NotAfter() time.Time { return a.until }

// host has the relays and Envoys of one test.
type host struct {
	tb  testing.TB
	dir string
	cfg Config
}

// testToken is the token of the relay's socket.
const testToken = "THETOKENOFTHISTESTWHICHISLONGENOUGH"

func newHost(tb testing.TB, servers ...string) *host {
	tb.Helper()
	dir := envoytest.ShortDir(tb)
	n := bootstrap.Node{
		Type: bootstrap.TypeSidecar, Address: netip.MustParseAddr("127.0.0.1"), Name: "web", Namespace: "shop",
		Domain: "cluster.local", ServiceAccount: "web", Interception: "NONE",
	}
	node, err := n.Proto()
	if err != nil {
		tb.Fatal(err)
	}
	guard, err := peercred.NewGuard(peercred.GuardConfig{
		Logger: slog.New(slog.DiscardHandler), Socket: "xds.sock", Header: bootstrap.TokenHeader, Token: testToken,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return &host{tb: tb, dir: dir, cfg: Config{
		Guard:  guard,
		Logger: slog.New(slog.NewTextHandler(testWriter{tb}, &slog.HandlerOptions{Level: slog.LevelDebug})), Node: node, Servers: servers,
		Credentials: anyone{time.Now().Add(time.Hour)}, Socket: filepath.Join(dir, "xds.sock"), UID: uint32(os.Geteuid()),
		StoreFile: filepath.Join(dir, "store"),
	}}
}

type testWriter struct{ tb testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.tb.Logf("%s", p)
	return len(p), nil
}

// relay starts a relay. stop ends it; the test ends it if nobody else did.
func (h *host) relay() (r *Relay, stop func()) {
	h.tb.Helper()
	r, err := New(h.cfg)
	if err != nil {
		h.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				h.tb.Error(err)
			}
		})
	}
	h.tb.Cleanup(stop)
	envoytest.Eventually(h.tb, deadline, func() error { // the file is there before somebody listens
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", h.cfg.Socket)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return r, stop
}

// generation makes a generation of messages by their names.
func generation(tb testing.TB, number uint64, messages map[string]proto.Message) *stream.Generation {
	tb.Helper()
	return &stream.Generation{Number: number, Layers: []*stream.Layer{{Types: resourcesOf(tb, messages)}}}
}

func resourcesOf(tb testing.TB, messages map[string]proto.Message) resources {
	tb.Helper()
	of := map[stream.TypeURL][]*stream.Resource{}
	for name, m := range messages {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			tb.Fatal(err)
		}
		sum := sha256.Sum256(b)
		url := stream.TypeURL("type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()))
		_, name = cutType(name)
		of[url] = append(of[url], stream.NewResource(url, stream.Resource{
			Name: name, Version: hex.EncodeToString(sum[:8]), Body: b, Hosts: url == stream.RouteType && vhds.IsBase(b),
		}))
	}
	out := resources{}
	for url, list := range of {
		out[url] = stream.NewSet(list)
	}
	return out
}

// cutType splits "cds/web": one map can have a cluster and its endpoints.
func cutType(s string) (kind, name string) {
	for i := range s {
		if s[i] == '/' {
			return s[:i], s[i+1:]
		}
	}
	return "", s
}

var errNotYet = errors.New("not yet")
