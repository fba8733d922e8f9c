package traffic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/pki/svid"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// stream asks the control plane for clusters, as a node of the mesh, and gives
// how many came.
func stream(t *testing.T, p *pair, conf *tls.Config, node bootstrap.Node) (int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+p.XDS(), grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return 0, err
	}
	who, err := node.Proto()
	if err != nil {
		t.Fatal(err)
	}
	err = s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: who, TypeUrl: clusterType, ResourceNamesSubscribe: []string{"*"}})
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: the reason is in Recv
		return 0, err
	}
	res, err := s.Recv()
	return len(res.GetResources()), err
}

// node is what the agent of a host says of itself.
func (p *pair) node(account string, address int) bootstrap.Node {
	return bootstrap.Node{
		Type: bootstrap.TypeSidecar, Address: netip.MustParseAddr(p.Address(address)), Name: account, Namespace: "shop",
		Domain: "shop.svc.cluster.local", ServiceAccount: account, WorkloadName: account, Interception: "NONE",
	}
}

// refusals are the lines of proxy-status that tell who was not let in.
func (p *pair) refusals(t *testing.T) string {
	t.Helper()
	out, err := p.CLI("proxy-status", "--run-dir", p.RunDir("server"))
	if err == nil {
		t.Errorf("proxy-status should not say that all is well:\n%s", out)
	}
	_, after, _ := strings.Cut(out, "REFUSED")
	return after
}

// TestStreams shows who gets configuration: whose node is within its
// entitlement, and nobody else, and that the rest are listed with the reason.
func TestStreams(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.StartServer()
	other := meshtest.New(t, "", nil)
	other.StartServer()
	mallory, err := join(t, p.Token("--host", "mallory", "--workload", "shop/client"))
	if err != nil {
		t.Fatal(err)
	}
	svidOf, err := asker(t, p.XDS()).Workload(t.Context(), mallory, svid.Pair{Namespace: "shop", ServiceAccount: "client"})
	if err != nil {
		t.Fatal(err)
	}
	foreign := direct(t, other, "client", "shop/client")
	as := func(id *svid.Identity) *tls.Config {
		// It believes anybody: what is tested is the server's half.
		c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
		if id != nil {
			c.Certificates = []tls.Certificate{id.TLSCertificate()}
		}
		return c
	}
	if n, err := stream(t, p, as(mallory), p.node("client", 11)); err != nil || n == 0 {
		t.Fatalf("a host's own node is served: %d clusters, %v", n, err)
	}
	if n, err := stream(t, p, as(direct(t, p.Mesh, "echo", "shop/echo")), p.node("echo", 12)); err != nil || n == 0 {
		t.Fatalf("a direct client's own node is served: %d clusters, %v", n, err)
	}
	for _, c := range []struct {
		name        string
		id          *svid.Identity
		node        bootstrap.Node
		who, listed string
		told        bool // a host with a proven identity is told that no workload has its address and account
	}{
		{"no_certificate", nil, p.node("client", 11), "unknown peer", "no certificate", false},
		{"another_authority", foreign, p.node("client", 11), "unknown peer", "its certificate is not one of this mesh", false},
		{"impersonated", svidOf, p.node("client", 11), "unknown peer", "is of kind impersonated", false},
		{"another_account", mallory, p.node("echo", 12), "mallory", `claims service account "shop/echo"`, false},
		{"another_address", mallory, p.node("client", 12), "mallory", "is in the mesh, but not with service account", false},
		{"no_such_address", mallory, p.node("client", 77), "mallory", "no WorkloadEntry, and no instance of a catalog, has address", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, err := stream(t, p, as(c.id), c.node)
			if err == nil || n != 0 {
				t.Fatalf("%d clusters, %v", n, err)
			}
			if code := status.Code(err); code == codes.DeadlineExceeded {
				t.Errorf("it is left hanging: %v", err)
			}
			if got := p.refusals(t); !regexp.MustCompile(`(?m)^` + c.who + ` .*` + regexp.QuoteMeta(c.listed)).MatchString(got) {
				t.Errorf("proxy-status should list %s with %q:\n%s", c.who, c.listed, got)
			}
			if got := strings.Contains(err.Error(), c.listed); got != c.told {
				t.Errorf("the peer is told why it is refused: %t, want %t: %v", got, c.told, err)
			}
		})
	}
}

// TestCertificates shows who gets which certificate.
func TestCertificates(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.StartServer()
	printed := p.Token("--host", "mallory", "--workload", "shop/client")
	token, err := svid.ParseJoinToken(printed)
	if err != nil {
		t.Fatal(err)
	}
	ask := asker(t, p.XDS())
	key, err := svid.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	mallory, err := ask.Join(t.Context(), token, key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask.Join(t.Context(), token, key); err != nil {
		t.Errorf("the same key may redeem the token again, for the answer may have been lost: %v", err)
	}
	if _, err := join(t, printed); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("another key redeems the token: %v", err)
	}
	for _, account := range []string{"echo", "fairlead"} {
		id, err := ask.Workload(t.Context(), mallory, svid.Pair{Namespace: "shop", ServiceAccount: account})
		if !errors.Is(err, svid.ErrRefused) {
			t.Errorf("mallory gets %v, which is not its own: %v", id, err)
		}
	}
	own, err := ask.Workload(t.Context(), mallory, svid.Pair{Namespace: "shop", ServiceAccount: "client"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask.Renew(t.Context(), own); err == nil {
		t.Error("a certificate issued by impersonation renews itself")
	}
	got, _ := p.CLI("proxy-status", "-o", "json", "--run-dir", p.RunDir("server")) // for people, a host is one row
	for _, want := range []string{"mallory", "ns/shop/sa/echo", "ns/shop/sa/fairlead", "join token was used before by another key"} {
		if !strings.Contains(got, want) {
			t.Errorf("proxy-status does not tell of %q:\n%s", want, got)
		}
	}
	if _, err := p.CLI("token", "create", "--run-dir", p.RunDir("server"), "--host", "x", "--workload", "istio-system/fairlead"); err == nil {
		t.Error("a token for the control plane's own identity is made")
	}
}

// rogue listens as a control plane with a workload's certificate. Whoever speaks
// beyond the handshake is counted.
func rogue(t *testing.T, id *svid.Identity) (address string, spoken func() []string) {
	t.Helper()
	cert := id.TLSCertificate()
	for _, root := range id.Bundle.X509Authorities() { // the server sends its root along, as ours does
		cert.Certificate = append(cert.Certificate, root.Raw)
	}
	heard := make(chan string, 1000)
	srv := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert})),
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			name, _ := grpc.MethodFromServerStream(s)
			heard <- name
			return status.Error(codes.Unavailable, "nothing")
		}),
	)
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return l.Addr().String(), func() []string {
		var all []string
		for {
			select {
			case s := <-heard:
				all = append(all, s)
			default:
				return all
			}
		}
	}
}

// TestRogue shows that a workload of the mesh cannot pose as the control plane:
// not to a host that joins, nor to one that has joined.
func TestRogue(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.StartServer()
	address, spoken := rogue(t, direct(t, p.Mesh, "rogue", "shop/rogue"))
	refused := func(agent *meshtest.Process) {
		t.Helper()
		const why = "the server is not the control plane"
		envoytest.Eventually(t, envoytest.Patience, func() error {
			if log := agent.Log(); !strings.Contains(log, why) || !strings.Contains(log, "spiffe://cluster.local/ns/shop/sa/rogue") {
				return fmt.Errorf("the agent does not say that it is refused:\n%s", log)
			}
			return nil
		})
		if s := spoken(); len(s) != 0 {
			t.Errorf("the agent has spoken to it: %v", s)
		}
	}
	token := p.Token("--host", "client", "--workload", "shop/client")
	led := p.clientH
	led.Agent = append([]string{"--server", address}, led.Agent...)
	joining := p.StartAgent(led, token)
	refused(joining)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if !joining.Ended() { // a token is for one control plane: waiting would not help
			return errors.New("the agent does not give up")
		}
		return nil
	})

	p.StartApp(meshtest.Host{Name: "http", App: []string{"--protocol", "http"}})
	p.StartHost(p.echoH)
	honest := p.StartAgent(p.clientH, token)
	p.AwaitLive("client", "echo")
	honest.Stop()
	joined := p.StartAgent(led, "")
	refused(joined)
	// It serves what it had accepted, all the same.
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if p.Server.Ended() {
			return errors.New("the control plane has ended")
		}
		_, err := askHTTP(t.Context(), p.at(11, 9080), nil)
		return err
	})
}

// TestPlaintextPort shows that nothing of the control plane but health and
// metrics is served without TLS.
func TestPlaintextPort(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.StartServer()
	for _, c := range []struct {
		path string
		want int
	}{
		{"/healthz", http.StatusOK},
		{"/metrics", http.StatusOK},
		{"/v1/proxies", http.StatusNotFound},
		{"/debug/pprof/", http.StatusNotFound},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.at(1, 15014)+c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Timeout: patience}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", c.path, res.StatusCode, c.want)
		}
	}
	if c, err := dial(t.Context(), p.at(1, 15010), nil); err == nil {
		_ = c.Close()
		t.Error("15010, xDS in plaintext, is open")
	}
}
