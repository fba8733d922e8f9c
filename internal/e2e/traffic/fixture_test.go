package traffic

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/parallel"
	"github.com/fairlead/fairlead/pki/svid"
)

func TestMain(m *testing.M) {
	parallel.WaitingForEnvoys()
	os.Exit(meshtest.Main(m))
}

const (
	clientID = "spiffe://cluster.local/ns/shop/sa/client"
	echoID   = "spiffe://cluster.local/ns/shop/sa/echo"
	echoHost = "echo.shop.internal"
)

// pair is a mesh of two hosts: client, whose application is the test, and echo.
type pair struct {
	*meshtest.Mesh
	t              *testing.T
	clientH, echoH meshtest.Host
}

// newPair makes the mesh; nothing of it runs.
func newPair(t *testing.T) *pair {
	t.Helper()
	envoytest.Binary(t)
	return &pair{
		Mesh:    meshtest.New(t, "internal/e2e/traffic/testdata/mesh", map[string]int{"http": 18081, "grpc": 18082, "tcp": 18083}),
		t:       t,
		clientH: meshtest.Host{Name: "client", Workload: "shop/client", Address: 11, Agent: []string{"--drain-time", "1s"}},
		echoH:   meshtest.Host{Name: "echo", Workload: "shop/echo", Address: 12, Agent: []string{"--drain-time", "1s"}},
	}
}

// startPair starts it all and waits until both Envoys are ready.
func startPair(t *testing.T, server ...string) *pair {
	t.Helper()
	p := newPair(t)
	p.StartServer(server...)
	p.startHosts()
	return p
}

// startHosts starts the applications and both hosts.
func (p *pair) startHosts() (client, echo *meshtest.Process) {
	p.t.Helper()
	for _, name := range []string{"http", "grpc", "tcp"} {
		p.StartApp(meshtest.Host{Name: name, App: []string{"--protocol", name}})
	}
	_, client = p.StartHost(p.clientH)
	_, echo = p.StartHost(p.echoH)
	p.AwaitLive("client", "echo")
	// An Envoy has accepted listeners a moment before they listen.
	settle(p.t, func() error {
		for _, pr := range protocols() {
			for _, host := range []int{11, 12} {
				if _, err := pr.ask(p.t.Context(), p.at(host, pr.port), nil); err != nil {
					return fmt.Errorf("%s at host %d: %w", pr.name, host, err)
				}
			}
		}
		return nil
	})
	return client, echo
}

// at is an address of the mesh with a port.
func (p *pair) at(host, port int) string {
	return net.JoinHostPort(p.Address(host), strconv.Itoa(port))
}

// protocol is a way to ask echo: in plaintext where conf is nil. It gives the
// caller that echo was told of.
type protocol struct {
	name string
	port int
	ask  func(ctx context.Context, address string, conf *tls.Config) (caller string, err error)
}

func protocols() []protocol {
	return []protocol{{"http", 9080, askHTTP}, {"grpc", 9090, askGRPC}, {"tcp", 9000, askTCP}}
}

// patience bounds one question: one that is refused is refused at once, but for TLS
// where plain TCP is wanted, which waits for a line that never ends.
const patience = 10 * time.Second

func askHTTP(ctx context.Context, address string, conf *tls.Config) (string, error) {
	c, err := dial(ctx, address, conf)
	if err != nil {
		return "", err
	}
	defer c.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+echoHost+"/", http.NoBody)
	if err != nil {
		return "", err
	}
	req.Close = true
	if err := req.Write(c); err != nil {
		return "", err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %q", res.StatusCode, body)
	}
	_, after, ok := strings.Cut(string(body), `"name":"http","caller":"`)
	caller, _, end := strings.Cut(after, `"`)
	if !ok || !end {
		return "", fmt.Errorf("it is not echo that answers: %q", body)
	}
	return caller, nil
}

func askGRPC(ctx context.Context, address string, conf *tls.Config) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	creds := insecure.NewCredentials()
	if conf != nil {
		creds = credentials.NewTLS(conf)
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds), grpc.WithAuthority(echoHost))
	if err != nil {
		return "", err
	}
	caller, err := invoke(ctx, conn)
	return caller, errors.Join(err, conn.Close())
}

func invoke(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	var out structpb.Struct
	if err := conn.Invoke(ctx, "/shop.Inventory/Stock", &structpb.Struct{}, &out); err != nil {
		return "", err
	}
	if name := out.GetFields()["name"].GetStringValue(); name != "grpc" {
		return "", fmt.Errorf("it is not echo that answers: %q", name)
	}
	return out.GetFields()["caller"].GetStringValue(), nil
}

// askTCP tells nobody's name: TCP has no place for it.
func askTCP(ctx context.Context, address string, conf *tls.Config) (string, error) {
	c, err := dial(ctx, address, conf)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return "", say(c, bufio.NewReader(c), "hello")
}

// say sends a line to echo over TCP and reads it back.
func say(c net.Conn, r *bufio.Reader, line string) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return err
	}
	got, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	if got != "tcp: "+line+"\n" {
		return fmt.Errorf("it is not echo that answers: %q", got)
	}
	return nil
}

func dial(ctx context.Context, address string, conf *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if conf == nil {
		return c, nil
	}
	tc := tls.Client(c, conf)
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return tc, nil
}

// direct gives the identity of a workload to the test itself.
func direct(t *testing.T, m *meshtest.Mesh, host, workload string) *svid.Identity {
	t.Helper()
	id, err := join(t, m.Token("--direct", "--host", host, "--workload", workload))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// join redeems a token with a new key.
func join(t *testing.T, printed string) (*svid.Identity, error) {
	t.Helper()
	token, err := svid.ParseJoinToken(printed)
	if err != nil {
		t.Fatal(err)
	}
	key, err := svid.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return asker(t, token.Servers...).Join(t.Context(), token, key)
}

func asker(t *testing.T, servers ...string) *svid.Client {
	t.Helper()
	c, err := svid.NewClient(svid.ClientConfig{Servers: servers})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tlsAs are the settings of a client with an identity, or none, that speaks to
// echo as sidecars do, and only to echo.
func tlsAs(id *svid.Identity) *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"istio"},
		InsecureSkipVerify: true, // the name proves nothing, the URI does: below
		VerifyConnection: func(s tls.ConnectionState) error {
			if uris := s.PeerCertificates[0].URIs; len(uris) != 1 || uris[0].String() != echoID {
				return fmt.Errorf("the peer is %v, not %s", uris, echoID)
			}
			return nil
		},
	}
	if id != nil {
		c.Certificates = []tls.Certificate{id.TLSCertificate()}
	}
	return c
}

// settle waits until ask is content three times in a row: connections of before
// a change serve one more request each before they are drained.
func settle(t *testing.T, ask func() error) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		for range 3 {
			if err := ask(); err != nil {
				return err
			}
		}
		return nil
	})
}

// policy is a PeerAuthentication; spec is JSON.
func policy(namespace, name, spec string) string {
	return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: %s, namespace: %s}\nspec: %s\n", name, namespace, spec)
}
