package agent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki"
	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/issue"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// plane is a control plane: the real authority, and the server side of xDS.
type plane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	tb        testing.TB
	dir, addr string
	ttl       time.Duration
	ahead     atomic.Int64 // how far the clock is ahead that certificates are signed by, in nanoseconds
	late      atomic.Int64 // how long a request waits before it is looked at, in nanoseconds
	// name is who the workload is in certificates, from the second on; nil is nobody. named counts
	// them.
	name      atomic.Pointer[profile.WorkloadName]
	named     atomic.Int64
	authority *pki.Authority
	hosts     *attest.Entitlements
	service   *issue.Service
	grpc      *grpc.Server
	done      chan struct{}

	mu      sync.Mutex // guards all following fields
	gen     *stream.Generation
	sent    int
	reports []string
	streams int
	// own is the ProxyConfig, or nil: a control plane of an earlier release. ownRejected are the
	// reasons for which it was rejected.
	own         *stream.Set
	ownRejected []string
	wake        map[chan struct{}]struct{}
}

func newPlane(tb testing.TB, ttl time.Duration) *plane {
	tb.Helper()
	p := &plane{tb: tb, dir: tb.TempDir(), addr: "127.0.0.1:0", ttl: ttl}
	p.configure(`{"statusPort": 15020}`)
	p.start()
	tb.Cleanup(p.kill)
	return p
}

func must[T any](tb testing.TB) func(T, error) T {
	tb.Helper()
	return func(v T, err error) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}

func (p *plane) start() {
	p.tb.Helper()
	log := slog.New(slog.DiscardHandler)
	p.authority = must[*pki.Authority](p.tb)(pki.New(pki.Config{
		Dir: p.dir, TrustDomain: spiffeid.RequireTrustDomainFromString("mesh.test"), Logger: log, DefaultTTL: p.ttl,
	}, time.Now()))
	p.hosts = must[*attest.Entitlements](p.tb)(attest.New(attest.Config{Dir: p.dir, Logger: log}))
	p.service = must[*issue.Service](p.tb)(issue.New(issue.Config{Authority: planeAuthority{p.authority, &p.ahead, &p.late}, Entitlements: p.hosts, Logger: log, Workload: p.workloadName}))
	front := must[*pki.ServerTLS](p.tb)(pki.NewServerTLS(pki.ServerTLSConfig{Authority: p.authority, Logger: log}, time.Now()))
	var l net.Listener
	envoytest.Eventually(p.tb, deadline, func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", p.addr)
		return err
	})
	p.addr = l.Addr().String()
	p.grpc = grpc.NewServer(grpc.Creds(credentials.NewTLS(front.Config())), grpc.WaitForHandlers(true))
	p.service.Register(p.grpc)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(p.grpc, p)
	p.done = make(chan struct{})
	g, done := p.grpc, p.done
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
}

func (p *plane) workloadName(attest.Host, profile.Pair) profile.WorkloadName {
	if n := p.name.Load(); p.named.Add(1) > 1 && n != nil {
		return *n
	}
	return profile.WorkloadName{}
}

// planeAuthority can sign late, and by a clock that is ahead.
type planeAuthority struct {
	*pki.Authority
	ahead, late *atomic.Int64
}

func (a planeAuthority) Sign(leaf profile.Leaf, now time.Time) ([]*x509.Certificate, error) {
	late := time.Duration(a.late.Load())
	<-time.After(late)
	return a.Authority.Sign(leaf, now.Add(late+time.Duration(a.ahead.Load())))
}

func (p *plane) kill() {
	p.grpc.Stop()
	<-p.done
	_ = p.authority.Close()
}

func (p *plane) token(host string, pairs ...string) string {
	p.tb.Helper()
	return p.grant(jointoken.Grant{Host: host}, 0, pairs...)
}

// grant makes a token of any kind and age; it is good for an hour.
func (p *plane) grant(g jointoken.Grant, age time.Duration, pairs ...string) string {
	p.tb.Helper()
	for _, s := range pairs {
		g.Pairs = append(g.Pairs, must[profile.Pair](p.tb)(profile.ParsePair(s)))
	}
	secret, r, err := p.hosts.CreateToken(g, time.Hour, time.Now().Add(-age))
	if err != nil {
		p.tb.Fatal(err)
	}
	return must[string](p.tb)(svid.JoinToken{
		Secret: secret, Host: r.Grant.Host, Pairs: r.Grant.Pairs, Type: r.Grant.Type, Direct: r.Grant.Direct, TrustDomain: p.authority.TrustDomain(),
		Servers: []string{p.addr}, Pin: must[profile.KeyHash](p.tb)(p.authority.Pin()),
	}.Encode())
}

// DeltaAggregatedResources serves hosts that the authority knows.
func (p *plane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	who, err := p.service.Authenticate(s.Context())
	if err != nil {
		return status.Error(codes.PermissionDenied, "no")
	}
	requests := make(chan *discoveryv3.DeltaDiscoveryRequest)
	ended := make(chan error, 1)
	go func() {
		for {
			req, err := s.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- req:
			case <-s.Context().Done():
				return
			}
		}
	}()
	half := stream.NewServer(stream.ServerConfig{})
	wake := make(chan struct{}, 1)
	p.mu.Lock()
	p.streams++
	half.SetGeneration(p.gen)
	if p.wake == nil {
		p.wake = map[chan struct{}]struct{}{}
	}
	p.wake[wake] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.wake, wake)
	}()
	var own *stream.Set
	for {
		var req *discoveryv3.DeltaDiscoveryRequest
		select {
		case req = <-requests:
		case <-wake:
		case err := <-ended:
			return err
		case <-s.Context().Done(): // the reader may hold a request, and say nothing
			return s.Context().Err()
		case <-who.Revoked:
			return status.Error(codes.PermissionDenied, "removed")
		}
		switch req.GetTypeUrl() { // of none, after a wake
		case bootstrap.EnvoyStateType:
			p.report(req.GetResourceNamesSubscribe()...)
			continue
		case bootstrap.HealthType:
			p.report("health:" + req.GetErrorDetail().GetMessage())
			continue
		}
		p.mu.Lock()
		if p.own != own {
			own = p.own
			half.SetOwn(bootstrap.ProxyConfigType, own)
		}
		if req.GetTypeUrl() == bootstrap.ProxyConfigType && req.GetErrorDetail() != nil {
			p.ownRejected = append(p.ownRejected, req.GetErrorDetail().GetMessage())
		}
		p.mu.Unlock()
		if req != nil {
			if err := half.Request(time.Now(), req); err != nil {
				return err
			}
		}
		for r := half.Next(time.Now()); r != nil; r = half.Next(time.Now()) {
			p.mu.Lock()
			if r.TypeURL != bootstrap.ProxyConfigType { // which it does not have, and says so on each stream
				p.sent += len(r.Resources) + len(r.Removed)
			}
			p.mu.Unlock()
			if err := s.Send(r.Message()); err != nil {
				return err
			}
		}
	}
}

// configure gives all agents a ProxyConfig, in the form of its JSON.
func (p *plane) configure(text string) {
	p.tb.Helper()
	pc := &meshconfig.ProxyConfig{}
	if err := protojson.Unmarshal([]byte(text), pc); err != nil {
		p.tb.Fatal(err)
	}
	b := must[[]byte](p.tb)(proto.MarshalOptions{Deterministic: true}.Marshal(pc))
	sum := sha256.Sum256(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own = stream.NewSet([]*stream.Resource{stream.NewResource(bootstrap.ProxyConfigType, stream.Resource{
		Name: bootstrap.ProxyConfigName, Version: hex.EncodeToString(sum[:8]), Body: b,
	})})
	for wake := range p.wake {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// ownBody is the encoded ProxyConfig.
func (p *plane) ownBody() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.own.Get(bootstrap.ProxyConfigName).Body
}

// health is the last report of health, or empty.
func (p *plane) health() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range slices.Backward(p.reports) {
		if strings.HasPrefix(r, "health:") {
			return r
		}
	}
	return ""
}

// refusals are the reasons for which ProxyConfigs were rejected.
func (p *plane) refusals() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ownRejected)
}

func (p *plane) report(what ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports = append(p.reports, what...)
}

// last is the last report, and the number of streams.
func (p *plane) last() (report string, streams, sent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.reports) > 0 {
		report = p.reports[len(p.reports)-1]
	}
	return report, p.streams, p.sent
}

// set serves a listener with the mesh's certificates on a port.
func (p *plane) set(port int) {
	p.tb.Helper()
	const sds = `{"resource_api_version":"V3","initial_fetch_timeout":"0s","api_config_source":{"api_type":"GRPC","transport_api_version":"V3",
	 "set_node_on_first_message_only":true,"grpc_services":[{"envoy_grpc":{"cluster_name":"sds-grpc"}}]}}`
	l := &listenerv3.Listener{}
	err := protojson.Unmarshal(fmt.Appendf(nil, `{"name":"in","address":{"socket_address":{"address":"127.0.0.1","port_value":%d}},"filter_chains":[{
	 "transport_socket":{"name":"envoy.transport_sockets.tls","typed_config":{
	  "@type":"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext","require_client_certificate":true,
	  "common_tls_context":{"tls_certificate_sds_secret_configs":[{"name":"default","sds_config":%[2]s}],
	   "validation_context_sds_secret_config":{"name":"ROOTCA","sds_config":%[2]s}}}},
	 "filters":[{"name":"hcm","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
	  "stat_prefix":"in.own_tag=.=blue;.;","route_config":{"virtual_hosts":[{"name":"all","domains":["*"],"routes":[{"match":{"prefix":"/"},"direct_response":{"status":200}}]}]},
	  "http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`, port, sds), l)
	if err != nil {
		p.tb.Fatal(err)
	}
	p.serve(map[stream.TypeURL]map[string]proto.Message{stream.ListenerType: {"in": l}})
}

// serve adds resources for streams that begin from now on.
func (p *plane) serve(types map[stream.TypeURL]map[string]proto.Message) {
	p.tb.Helper()
	layer := &stream.Layer{Types: map[stream.TypeURL]*stream.Set{}}
	for t, named := range types {
		var list []*stream.Resource
		for name, m := range named {
			b := must[[]byte](p.tb)(proto.MarshalOptions{Deterministic: true}.Marshal(m))
			sum := sha256.Sum256(b)
			list = append(list, stream.NewResource(t, stream.Resource{Name: name, Version: hex.EncodeToString(sum[:8]), Body: b}))
		}
		layer.Types[t] = stream.NewSet(list)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	next := &stream.Generation{Number: 1, Layers: []*stream.Layer{layer}}
	if p.gen != nil {
		next = &stream.Generation{Number: p.gen.Number + 1, Layers: append([]*stream.Layer{layer}, p.gen.Layers...)}
	}
	p.gen = next
}

// caller is another workload of the mesh, with a certificate that lasts.
func (p *plane) caller(port int) *caller {
	p.tb.Helper()
	key := must2(svid.NewKey())
	pair := must[profile.Pair](p.tb)(profile.ParsePair("shop/web"))
	id := must[spiffeid.ID](p.tb)(profile.WorkloadID(p.authority.TrustDomain(), pair))
	subject := profile.Subject{Kind: profile.Impersonated, ID: id, Pair: pair, Binding: profile.Binding{1}}
	chain, err := p.authority.Sign(profile.Leaf{Subject: subject, PublicKey: key.Public(), TTL: time.Hour}, time.Now())
	if err != nil {
		p.tb.Fatal(err)
	}
	who := &svid.Identity{SVID: x509svid.SVID{ID: id, PrivateKey: key, Certificates: chain}, Bundle: x509bundle.FromX509Authorities(id.TrustDomain(), p.authority.Bundle())}
	roots := x509.NewCertPool()
	for _, c := range p.authority.Bundle() {
		roots.AddCert(c)
	}
	return &caller{tb: p.tb, port: port, tls: &tls.Config{
		Certificates: []tls.Certificate{who.TLSCertificate()}, InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			leaf := s.PeerCertificates[0]
			if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "spiffe://mesh.test/ns/shop/sa/orders" {
				return fmt.Errorf("the server is %v", leaf.URIs)
			}
			_, err := leaf.Verify(x509.VerifyOptions{Roots: roots})
			return err
		},
	}}
}

func must2[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type caller struct {
	tb   testing.TB
	port int
	tls  *tls.Config
}

// call is nil if a request on a new connection reaches the right identity.
func (c *caller) call() error {
	_, err := c.serial()
	return err
}

func (c *caller) serial() (string, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://127.0.0.1:"+strconv.Itoa(c.port)+"/", http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := (&http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: c.tls}}).Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", errors.New(res.Status)
	}
	return res.TLS.PeerCertificates[0].SerialNumber.Text(16), nil
}

// load sends requests until it is stopped, and returns the failures.
func (c *caller) load() (stop func() (calls int, failed []error)) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	var calls int
	var failed []error
	wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			calls++
			if err := c.call(); err != nil {
				failed = append(failed, err)
			}
		}
	})
	return func() (int, []error) {
		close(end)
		wg.Wait()
		return calls, failed
	}
}
