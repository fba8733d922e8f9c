package workload

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/svid"
)

const deadline = envoytest.Patience

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs identities for tests.
type authority struct {
	key  crypto.Signer
	cert *x509.Certificate
}

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	t := &x509.Certificate{
		SerialNumber: serial(tb), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	return &authority{key: key, cert: sign(tb, t, t, key.Public(), key)}
}

func serial(tb testing.TB) *big.Int {
	tb.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func sign(tb testing.TB, t, parent *x509.Certificate, pub crypto.PublicKey, by crypto.Signer) *x509.Certificate {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, by)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func (a *authority) identity(tb testing.TB, name string, more ...*authority) *svid.Identity {
	tb.Helper()
	key, err := svid.NewKey()
	if err != nil {
		tb.Fatal(err)
	}
	id := spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/" + name)
	leaf := sign(tb, &x509.Certificate{
		SerialNumber: serial(tb), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs: []*url.URL{id.URL()},
	}, a.cert, key.Public(), a.key)
	bundle := []*x509.Certificate{a.cert}
	for _, m := range more {
		bundle = append(bundle, m.cert)
	}
	return &svid.Identity{SVID: x509svid.SVID{ID: id, PrivateKey: key, Certificates: []*x509.Certificate{leaf}}, Bundle: x509bundle.FromX509Authorities(id.TrustDomain(), bundle)}
}

func start(tb testing.TB, uid uint32) *Server {
	tb.Helper()
	return startWith(tb, uid, func(*Config) {})
}

func startWith(tb testing.TB, uid uint32, change func(*Config)) *Server {
	tb.Helper()
	dir := envoytest.ShortDir(tb)
	log := slog.New(slog.DiscardHandler)
	guard, err := peercred.NewGuard(peercred.GuardConfig{Logger: log, Socket: "sds", Header: tokenHeader, Token: testToken})
	if err != nil {
		tb.Fatal(err)
	}
	config := Config{Logger: log, Socket: filepath.Join(dir, "sds"), UID: uid, Guard: guard}
	change(&config)
	s, err := New(config)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	envoytest.Eventually(tb, deadline, func() error { // the file is there before somebody listens
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.c.Socket)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return s
}

// The token of the socket.
const (
	tokenHeader = "x-test-token"
	testToken   = "THETOKENOFTHISTESTWHICHISLONGENOUGH"
)

// client sends the tokens, one value of the header each.
func client(tb testing.TB, s *Server, tokens ...string) secretv3.SecretDiscoveryServiceClient {
	tb.Helper()
	show := grpc.WithStreamInterceptor(func(
		ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		shown := metadata.MD{}
		shown.Set(tokenHeader, tokens...)
		return next(metadata.NewOutgoingContext(ctx, shown), desc, cc, method, opts...)
	})
	conn, err := grpc.NewClient("unix://"+s.c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()), show)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return secretv3.NewSecretDiscoveryServiceClient(conn)
}

func set(tb testing.TB, s *Server, id *svid.Identity) {
	tb.Helper()
	if err := s.Set(time.Now(), id); err != nil {
		tb.Fatal(err)
	}
}

// TestRootsBeforeLeaf has one stream for each secret, as Envoy does, and a slow
// acknowledgement of the new roots.
func TestRootsBeforeLeaf(t *testing.T) {
	t.Parallel()
	s := start(t, uint32(os.Geteuid()))
	one, two := newAuthority(t), newAuthority(t)
	c := client(t, s, testToken)
	open := func(name string) secretv3.SecretDiscoveryService_DeltaSecretsClient {
		stream, err := c.DeltaSecrets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: secretType, ResourceNamesSubscribe: []string{name}}); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	type streamed = secretv3.SecretDiscoveryService_DeltaSecretsClient
	recv := func(stream streamed) *discoveryv3.DeltaDiscoveryResponse {
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	ack := func(stream streamed, r *discoveryv3.DeltaDiscoveryResponse) {
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: secretType, ResponseNonce: r.GetNonce()}); err != nil {
			t.Fatal(err)
		}
	}
	own, root := open(OwnSecret), open(RootSecret)
	// Nothing was set: both wait.
	set(t, s, one.identity(t, "a"))
	ack(own, recv(own))
	ack(root, recv(root))
	rootVersion := func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		for x := range s.streams {
			if x.rootVersion != "" {
				return x.rootVersion
			}
		}
		return ""
	}
	envoytest.Eventually(t, deadline, func() error {
		if rootVersion() == "" {
			return errors.New("the roots were not acknowledged")
		}
		return nil
	})

	next := make(chan *discoveryv3.DeltaDiscoveryResponse, 1)
	go func() {
		r, err := own.Recv()
		if err == nil {
			next <- r
		}
	}()
	began := time.Now()
	set(t, s, two.identity(t, "a", one))
	r := recv(root)
	select {
	case <-next:
		t.Fatal("the certificate came before the roots were taken")
	default:
	}
	ack(root, r)
	<-next
	if took := time.Since(began); took >= bundleWait {
		t.Errorf("the certificate came after %s: only the time-out let it through", took)
	}
	// An Envoy that never answers holds the certificate for the time-out only.
	go func() {
		r, err := own.Recv()
		if err == nil {
			next <- r
		}
	}()
	set(t, s, one.identity(t, "a"))
	<-next
}

func TestStateOfTheWorld(t *testing.T) {
	t.Parallel()
	s := start(t, uint32(os.Geteuid()))
	set(t, s, newAuthority(t).identity(t, "a"))
	stream, err := client(t, s, testToken).StreamSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{OwnSecret, RootSecret, "other"}}); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil || len(r.GetResources()) != 2 {
		t.Fatalf("got %d secrets, %v", len(r.GetResources()), err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{
		ResourceNames: []string{OwnSecret, RootSecret}, ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo(),
	}); err != nil {
		t.Fatal(err)
	}
	set(t, s, newAuthority(t).identity(t, "a"))
	again, err := stream.Recv()
	if err != nil || len(again.GetResources()) != 2 || again.GetVersionInfo() == r.GetVersionInfo() {
		t.Errorf("got %d secrets of version %q, %v", len(again.GetResources()), again.GetVersionInfo(), err)
	}
}

func TestKeyIsForItsUserOnly(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "only root can give a socket away and still call")
	}
	s := start(t, 12345)
	set(t, s, newAuthority(t).identity(t, "a"))
	stream, err := client(t, s, testToken).DeltaSecrets(t.Context())
	if err == nil {
		err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{OwnSecret}})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil {
		t.Error("another user was given the key")
	}
}

// TestKeyNeedsTheToken connects as the right user, as every request through the Envoy does.
func TestKeyNeedsTheToken(t *testing.T) {
	t.Parallel()
	s := start(t, uint32(os.Geteuid()))
	set(t, s, newAuthority(t).identity(t, "a"))
	for name, c := range map[string]struct {
		tokens []string
		served bool
	}{
		"none": {}, "empty": {tokens: []string{""}}, "wrong": {tokens: []string{"W" + testToken[1:]}}, "prefix": {tokens: []string{testToken[:30]}},
		"longer": {tokens: []string{testToken + "A"}}, "among_others": {tokens: []string{"A", testToken}}, "right": {tokens: []string{testToken}, served: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			stream, err := client(t, s, c.tokens...).StreamSecrets(ctx)
			if err != nil {
				t.Fatal(err)
			}
			// A rejection may come before the request is sent; Recv returns it then.
			_ = stream.Send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{OwnSecret}})
			r, err := stream.Recv()
			if c.served != (err == nil) || !c.served && status.Code(err) != codes.PermissionDenied {
				t.Errorf("got %d secrets, %v", len(r.GetResources()), err)
			}
		})
	}
}

const rotatingEnvoy = `{"admin":%s,"node":{"id":"a","cluster":"b"},"static_resources":{
 "secrets":[{"name":"token","generic_secret":{"secret":{"inline_string":"` + testToken + `"}}}],
 "clusters":[{"name":"sds-grpc","connect_timeout":"1s","load_assignment":{"cluster_name":"sds-grpc","endpoints":[{"lb_endpoints":[
   {"endpoint":{"address":{"pipe":{"path":%q}}}}]}]},
   "typed_extension_protocol_options":{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions":{
    "@type":"type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions","explicit_http_config":{"http2_protocol_options":{}},
    "http_filters":[{"name":"token","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.credential_injector.v3.CredentialInjector",
      "credential":{"name":"generic","typed_config":{"@type":"type.googleapis.com/envoy.extensions.http.injected_credentials.generic.v3.Generic",
       "credential":{"name":"token"},"header":"` + tokenHeader + `"}}}},
     {"name":"codec","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec"}}]}}}],
 "listeners":[{"name":"in","address":{"socket_address":{"address":"127.0.0.1","port_value":%d}},"filter_chains":[{
  "transport_socket":{"name":"envoy.transport_sockets.tls","typed_config":{
   "@type":"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext","require_client_certificate":true,
   "common_tls_context":{"tls_certificate_sds_secret_configs":[{"name":"default","sds_config":%[4]s}],
    "validation_context_sds_secret_config":{"name":"ROOTCA","sds_config":%[4]s}}}},
  "filters":[{"name":"hcm","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
   "stat_prefix":"in","route_config":{"virtual_hosts":[{"name":"all","domains":["*"],"routes":[{"match":{"prefix":"/"},"direct_response":{"status":200}}]}]},
   "http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}]}}`

// TestRotationUnderLoad renews the certificate of a real Envoy, and replaces its
// authority, while clients with old and new certificates call it.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"GRPC", "DELTA_GRPC"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			s := start(t, uint32(os.Geteuid()))
			port := envoytest.FreePorts(t, 1)[0]
			sds := fmt.Sprintf(`{"resource_api_version":"V3","initial_fetch_timeout":"0s","api_config_source":{"api_type":%q,"set_node_on_first_message_only":true,
			 "transport_api_version":"V3","grpc_services":[{"envoy_grpc":{"cluster_name":"sds-grpc"}}]}}`, variant)
			e := envoytest.Start(t, envoytest.Config{Bootstrap: fmt.Appendf(nil, rotatingEnvoy, envoytest.AdminJSON, s.c.Socket, port, sds)})
			one, two := newAuthority(t), newAuthority(t)
			server := []*svid.Identity{
				one.identity(t, "orders"), one.identity(t, "orders"), one.identity(t, "orders", two),
				two.identity(t, "orders", one), two.identity(t, "orders"),
			}
			caller := &svid.Identity{}
			*caller = *one.identity(t, "web", two)
			call := func(id *svid.Identity) func() error {
				pool := x509.NewCertPool()
				pool.AddCert(one.cert)
				pool.AddCert(two.cert)
				c := &http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{
					DisableKeepAlives: true,
					TLSClientConfig: &tls.Config{
						Certificates: []tls.Certificate{id.TLSCertificate()}, InsecureSkipVerify: true,
						VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
							leaf, err := x509.ParseCertificate(raw[0])
							if err == nil {
								_, err = leaf.Verify(x509.VerifyOptions{Roots: pool})
							}
							return err
						},
					},
				}}
				return func() error {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/", port), http.NoBody)
					if err != nil {
						return err
					}
					res, err := c.Do(req)
					if err != nil {
						return err
					}
					defer res.Body.Close()
					_, err = io.Copy(io.Discard, res.Body)
					return err
				}
			}
			set(t, s, server[0])
			asOne, asTwo := call(caller), call(two.identity(t, "web"))
			envoytest.Eventually(t, deadline, asOne)
			if err := asTwo(); err == nil {
				t.Error("a certificate of a foreign authority was accepted")
			}
			stop := make(chan struct{})
			var load sync.WaitGroup
			var failed []error
			var calls atomic.Int64
			load.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					calls.Add(1)
					if err := asOne(); err != nil {
						failed = append(failed, err)
					}
				}
			})
			for i, id := range server[1:4] {
				set(t, s, id)
				serial := id.Leaf().SerialNumber
				envoytest.Eventually(t, deadline, func() error { return shows(t, port, caller, serial) })
				if i >= 1 {
					envoytest.Eventually(t, deadline, asTwo)
				}
			}
			envoytest.Eventually(t, deadline, func() error {
				if n := calls.Load(); n < 10 {
					return fmt.Errorf("only %d requests so far", n)
				}
				return nil
			})
			close(stop)
			load.Wait()
			if len(failed) > 0 {
				t.Errorf("%d of %d requests failed, the first: %v", len(failed), calls.Load(), failed)
			}
			set(t, s, server[4])
			envoytest.Eventually(t, deadline, func() error {
				if asOne() == nil {
					return errors.New("the removed authority is still trusted")
				}
				return nil
			})
			e.NoRejections(t)
		})
	}
}

// shows is nil once Envoy presents the certificate with that serial number.
func shows(tb testing.TB, port int, as *svid.Identity, serial *big.Int) error {
	tb.Helper()
	d := tls.Dialer{Config: &tls.Config{Certificates: []tls.Certificate{as.TLSCertificate()}, InsecureSkipVerify: true}}
	conn, err := d.DialContext(tb.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer conn.Close()
	c, ok := conn.(*tls.Conn)
	if !ok {
		return errors.New("not TLS")
	}
	if got := c.ConnectionState().PeerCertificates[0].SerialNumber; got.Cmp(serial) != 0 {
		return fmt.Errorf("serial is %x, want %x", got, serial)
	}
	return nil
}
