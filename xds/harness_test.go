package xds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fairlead/fairlead/internal/parallel"
	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/wire"
)

func TestMain(m *testing.M) {
	parallel.Waiting()
	goleak.VerifyTestMain(m)
}

// fakeMesh is the registry: a snapshot, and channels that are notified of new ones.
type fakeMesh struct {
	current     atomic.Pointer[mesh.Snapshot]
	mu          sync.Mutex // guards bells
	subscribers []chan struct{}
}

func (f *fakeMesh) Snapshot() *mesh.Snapshot { return f.current.Load() }

func (f *fakeMesh) Subscribe() (bell <-chan struct{}, cancel func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := make(chan struct{}, 1)
	f.subscribers = append(f.subscribers, b)
	return b, func() {}
}

func (f *fakeMesh) publish(s *mesh.Snapshot) {
	f.current.Store(s)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.subscribers {
		select {
		case b <- struct{}{}:
		default:
		}
	}
}

// fakeAdmission admits everybody as the peer that was set last.
type fakeAdmission struct{ peer atomic.Pointer[Peer] }

func (f *fakeAdmission) Admit(context.Context) (Peer, error) {
	p := f.peer.Load()
	if p == nil {
		return Peer{}, errors.New("no certificate was offered")
	}
	return *p, nil
}

// rig is a Server with fakes around it.
type rig struct {
	server    *Server
	mesh      *fakeMesh
	admission *fakeAdmission
	health    *fakeHealth
	registry  *prometheus.Registry
	grpc      *grpc.Server
	dial      *grpc.ClientConn
	listener  *breakable
	log       *syncLog
	reference *referenceCache
}

type syncLog struct {
	mu   sync.Mutex // guards text
	text []byte
	drop atomic.Bool // it keeps only lines about rejections at a limit
}

func (l *syncLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.drop.Load() && !bytes.Contains(p, []byte("at a limit")) {
		return len(p), nil
	}
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *syncLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

type fakeHealth struct {
	mu    sync.Mutex // guards said
	calls []string
	// claims are the claims that were made, rejectClaims the error that they get, end the
	// callback of the last one.
	claims       []mesh.Claim
	rejectClaims error
	end          func(string)
	others       map[string]bool // workloads that belong to another host
}

func (f *fakeHealth) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fakeHealth) StreamOpened(_ uint64, c mesh.Claim, end func(string)) error {
	f.note("opened %s %s", c.ServiceAccount, c.Address)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims, f.end = append(f.claims, c), end
	return f.rejectClaims
}

func (f *fakeHealth) HeldByOther(_ string, _ netip.Addr, w *mesh.Workload) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.others[w.Name]
}

func (f *fakeHealth) ReportProbe(_ uint64, health mesh.Health, reason string) (mesh.Health, string) {
	f.note("probe %d %s", health, reason)
	return health, reason
}

func (f *fakeHealth) ReportEnvoy(_ uint64, state string) (mesh.Health, string) {
	f.note("envoy %s", state)
	return mesh.Unhealthy, "decided elsewhere: " + state
}
func (f *fakeHealth) StreamClosed(uint64) { f.note("closed") }

func newRig(t *testing.T, o *smallmesh.Objects, change func(*Config)) *rig {
	t.Helper()
	return newRigWith(t, o, change)
}

func newRigWith(t *testing.T, o *smallmesh.Objects, change func(*Config), options ...grpc.ServerOption) *rig {
	t.Helper()
	r := &rig{mesh: &fakeMesh{}, admission: &fakeAdmission{}, health: &fakeHealth{}, registry: prometheus.NewRegistry(), log: &syncLog{}, reference: &referenceCache{}}
	r.admission.peer.Store(&Peer{Host: "vm1", Pairs: []mesh.ServiceAccount{{Namespace: "shop", Name: "web"}, {Namespace: "shop", Name: "orders"}}})
	if o != nil {
		r.mesh.publish(o.Snapshot(nil))
	}
	cfg := Config{
		Logger:    slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Snapshots: r.mesh, Admission: r.admission, Health: r.health, Registerer: r.registry,
		// Long: on a busy machine every peer is slow.
		SlowTimeout: time.Hour, NodeTimeout: time.Hour,
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if r.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	g := grpc.NewServer(append(wire.ServerOptions(), options...)...)
	r.grpc = g
	r.server.Register(g)
	l := bufconn.Listen(1 << 20)
	var wg sync.WaitGroup
	r.listener = &breakable{Listener: l, open: map[string]net.Conn{}}
	wg.Go(func() { _ = g.Serve(r.listener) })
	wg.Go(func() {
		if err := r.server.Run(ctx); err != nil {
			t.Errorf("running: %v", err)
		}
	})
	r.listener.dial = l.DialContext
	r.dial = r.newConnection(t)
	t.Cleanup(func() {
		cancel()
		g.Stop()
		wg.Wait()
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	return r
}

// newConnection opens another connection.
func (r *rig) newConnection(t *testing.T) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(8<<20), // small, so that a peer that does not read is noticed soon
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.listener.dial(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// breakable is a listener whose connections have distinct addresses and can be closed.
type breakable struct {
	net.Listener
	dial func(context.Context) (net.Conn, error)

	mu   sync.Mutex // guards all following fields
	n    int
	open map[string]net.Conn
}

type addressed struct {
	net.Conn
	at net.Addr
	of *breakable
}

func (a addressed) RemoteAddr() net.Addr { return a.at }

// Close forgets the connection: its pipes take 2 MiB that are not the server's.
func (a addressed) Close() error {
	a.of.mu.Lock()
	delete(a.of.open, a.at.String())
	a.of.mu.Unlock()
	return a.Conn.Close()
}

// Accept implements [net.Listener].
func (b *breakable) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	at := &net.UnixAddr{Name: fmt.Sprint("conn", b.n), Net: "unix"}
	b.open[at.String()] = c
	return addressed{c, at, b}, nil
}

// hangup closes the connection of a context.
func (b *breakable) hangup(ctx context.Context) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.open[p.Addr.String()]; c != nil {
		_ = c.Close()
	}
}

// node is the node that a proxy sends.
func node(account, address string) *bootstrap.Node {
	return &bootstrap.Node{
		Type: bootstrap.TypeSidecar, Address: netip.MustParseAddr(address), Name: account, Namespace: "shop", Domain: "svc.local",
		ServiceAccount: account, Interception: "NONE", Labels: map[string]string{"app": "forged"},
	}
}

// agent is a peer that accepts what it is sent, as agents do.
type agent struct {
	t          *testing.T
	stream     grpc.BidiStreamingClient[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse]
	client     *stream.Client
	cancel     context.CancelFunc
	got        map[string]string // what it has, by type and name
	count      int               // resources received
	reject     func(name string) bool
	slow       chan struct{} // or nil; it continues to read after each receive
	neverReads bool          // it never reads
	mu         sync.Mutex    // guards got, count
	err        chan error
}

func (r *rig) connect(t *testing.T, n *bootstrap.Node, client *stream.Client) *agent {
	t.Helper()
	return r.connectWith(t, n, client, &agent{})
}

func (r *rig) connectWith(t *testing.T, n *bootstrap.Node, client *stream.Client, a *agent) *agent {
	t.Helper()
	if client == nil {
		client = stream.NewClient(stream.ClientConfig{Wants: map[stream.TypeURL]stream.Want{
			stream.ClusterType: {All: true}, stream.ListenerType: {All: true},
		}})
	}
	a.t, a.client, a.got, a.err = t, client, map[string]string{}, make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	a.cancel = cancel
	s, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	a.stream = s
	p, err := n.Proto()
	if err != nil {
		t.Fatal(err)
	}
	client.Open()
	first := client.Next()
	first.Node = p
	if err := s.Send(first); err != nil && !errors.Is(err, io.EOF) { // EOF: rejected already; Recv returns why
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.err <- a.loop()
	}()
	t.Cleanup(func() { cancel(); <-done })
	return a
}

func (a *agent) loop() error {
	for {
		for r := a.client.Next(); r != nil; r = a.client.Next() {
			if err := a.stream.Send(r); err != nil {
				break
			}
		}
		if a.neverReads {
			<-a.stream.Context().Done()
			return a.stream.Context().Err()
		}
		resp, err := a.stream.Recv()
		if err != nil {
			return err
		}
		if a.slow != nil {
			select {
			case <-a.slow:
			case <-a.stream.Context().Done():
				return a.stream.Context().Err()
			}
		}
		u, err := a.client.Response(resp)
		if err != nil {
			return err
		}
		u.Done(a.apply(u))
	}
}

func (a *agent) apply(u *stream.Update) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var bad []stream.RejectedResource
	for _, c := range u.Changed {
		a.count++
		if a.reject != nil && a.reject(c.Name) {
			bad = append(bad, stream.RejectedResource{Name: c.Name, Reason: "does not compute"})
			continue
		}
		a.got[u.Type.Short()+" "+c.Name] = c.Version
		if u.Type == stream.ClusterType {
			a.client.Subscribe(stream.EndpointType, c.Name)
		}
	}
	for _, n := range u.Removed {
		delete(a.got, u.Type.Short()+" "+n)
		if u.Type == stream.ClusterType {
			a.client.Unsubscribe(stream.EndpointType, n)
		}
	}
	if bad != nil {
		return &stream.RejectError{Rejected: bad}
	}
	return nil
}

func (a *agent) has(what string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.got[what]
	return ok
}

// version is that of a resource, or empty.
func (a *agent) version(what string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.got[what]
}

func (a *agent) received() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count
}

// eventually waits until a condition holds, with a deadline that is long enough for a busy
// machine.
func eventually(t *testing.T, claim string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not in time: %s", claim)
		}
	}
}

// synced waits until a proxy has answered everything, and returns its status.
func (r *rig) synced(t *testing.T, name string) ProxyStatus {
	t.Helper()
	var st ProxyStatus
	eventually(t, name+" is synced", func() bool {
		for _, p := range r.server.Proxies() {
			if p.Name == name && p.Connected {
				st = p
				return p.Synced && p.Snapshot == r.mesh.Snapshot().Generation
			}
		}
		return false
	})
	return st
}
