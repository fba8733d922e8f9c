package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fairlead/fairlead/xds/stream"
)

// A host that has a very large mesh on its disk comes back with all of it: two
// clusters of 40,000 services.
func TestLargeListComesBack(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": plaintextMesh}))
	cfg.PlaintextAddress = "127.0.0.1:0"
	r := start(t, cfg)
	conn, err := grpc.NewClient(r.plaintext.listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20))) // as a relay does
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s := open(t, conn, "10.1.2.3", "cart")
	versions := map[string]string{}
	for i := range 80_000 {
		versions[fmt.Sprintf("outbound|8080|v%d|service-with-a-long-name-%06d.some-team.mesh.example.com", i%2, i)] = "0123456789abcdef"
	}
	req := &discovery.DeltaDiscoveryRequest{TypeUrl: string(stream.EndpointType), ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: versions}
	if err := s.Send(req); err != nil {
		t.Fatal(err)
	}
	for removed := 0; removed < len(versions); {
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if resp.GetTypeUrl() == string(stream.EndpointType) {
			removed += len(resp.GetRemovedResources())
		}
		if err := s.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}); err != nil {
			t.Fatal(err)
		}
	}
}

// gRPC's connections are counted by the identity of their handshake.
func TestIdentityHasSoManyConnections(t *testing.T) {
	t.Parallel()
	cert := identityCertificate(t, "spiffe://mesh/fairlead/host/a")
	var lc net.ListenConfig
	inner, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{cfg: Config{MaxConnections: 100, Logger: slog.New(slog.DiscardHandler)}, metrics: prometheus.NewRegistry()}
	l, err := s.limit(inner)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(proven{credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13,
	}), l, 2}))
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(l) })
	defer wg.Wait()
	defer g.Stop()
	dial := func() *grpc.ClientConn {
		c, err := grpc.NewClient(inner.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, // it is the server that is tested
		})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		c.Connect()
		return c
	}
	is := func(c *grpc.ClientConn, want connectivity.State) {
		t.Helper()
		for c.GetState() != want {
			if !c.WaitForStateChange(t.Context(), c.GetState()) {
				t.Fatalf("never %s", want)
			}
		}
	}
	first, second := dial(), dial()
	is(first, connectivity.Ready)
	is(second, connectivity.Ready)
	third := dial()
	is(third, connectivity.TransientFailure)
	_ = first.Close()
	is(third, connectivity.Ready) // it tries again by itself
}

// identityCertificate is one that names an identity, signed by nobody in particular.
func identityCertificate(t *testing.T, id string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{uri}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
