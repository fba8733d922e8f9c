package envoy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// anyPeer is a service of which the mesh does not know the identities, so that
// every identity for traffic is accepted.
const anyPeer = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: lines, namespace: shop}
spec:
  hosts: [lines.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: tcp, protocol: TCP}]
  workloadSelector: {labels: {app: lines}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: lines, namespace: shop}
spec: {address: 127.0.0.1, ports: {tcp: LINES}, labels: {app: lines, security.istio.io/tlsMode: istio}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  egress: [{port: {number: PORT, name: tcp, protocol: TCP}, bind: 127.0.0.1, hosts: ["./*"]}]
`

// tlsServer echoes lines to whoever has a certificate, and counts the sessions
// that were resumed.
type tlsServer struct {
	port    int
	resumed atomic.Int32
}

func newTLSServer(t *testing.T, f *fixture, id string) *tlsServer {
	t.Helper()
	cfg := &tls.Config{Certificates: []tls.Certificate{f.ca.pair(t, id)}, NextProtos: []string{"istio"}, ClientAuth: tls.RequireAnyClientCert}
	s := &tlsServer{}
	s.port = accept(t, func(c net.Conn) { s.serve(tls.Server(c, cfg)) })
	return s
}

func (s *tlsServer) serve(c *tls.Conn) {
	defer func() { _ = c.Close() }() // with TLS's own end
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return
	}
	if c.ConnectionState().DidResume {
		s.resumed.Add(1)
	}
	_, _ = io.WriteString(c, "echo "+line)
}

// toLines starts a client of a server that has an identity; it gives the address
// of its listener.
func (f *fixture) toLines(t *testing.T, server *tlsServer) (address string, client *envoytest.Envoy) {
	t.Helper()
	port := envoytest.FreePorts(t, 1)[0]
	m := strings.NewReplacer("LINES", strconv.Itoa(server.port), "9000", strconv.Itoa(port), "PORT", strconv.Itoa(port)).Replace(anyPeer)
	client = f.start(t, snapshotOf(t, m, ""), proxyFile{Namespace: "shop", ServiceAccount: "web", IP: "127.0.0.1", Interception: "NONE"})
	return at("127.0.0.1", port), client
}

// TestHostIdentityIsRejectedAsServer: clients that do not know the identities of a service
// accept every identity for traffic, but not that of a host.
func TestHostIdentityIsRejectedAsServer(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{hostID: false, "spiffe://cluster.local/fairlead/x": false, spireID: true, ordersID: true} {
		t.Run(id[len("spiffe://"):], func(t *testing.T) {
			t.Parallel()
			f := &fixture{ca: newAuthority(t)}
			server := newTLSServer(t, f, id)
			address, client := f.toLines(t, server)
			var line string
			envoytest.Eventually(t, envoytest.Patience, func() (err error) {
				line, err = sayLine(t.Context(), address)
				if refused := client.Stat(t, "cluster.outbound|"+address[strings.LastIndex(address, ":")+1:]+"||lines.shop.mesh;.ssl.fail_verify_san") > 0; refused || err == nil {
					return nil
				}
				return err
			})
			if got := line == "echo hello\n"; got != want {
				t.Errorf("%s served %v, want %v", id, got, want)
			}
		})
	}
}

// TestTrafficIdentities compares what an Envoy is told to accept with what the
// mesh calls reserved, for every beginning of the reserved path and its neighbours.
func TestTrafficIdentities(t *testing.T) {
	t.Parallel()
	var accepted *regexp.Regexp
	for _, m := range messages(t, buildAll(view.Build(snapshotOf(t, "# nothing\n", ""), ordinaryProxy())), envoy.ListenerType) {
		l, _ := m.(*listenerv3.Listener)
		for _, c := range l.GetFilterChains() {
			ctx := &tlsv3.DownstreamTlsContext{}
			if c.GetTransportSocket() == nil {
				continue
			}
			fatalIf(t, c.GetTransportSocket().GetTypedConfig().UnmarshalTo(ctx), "reading TLS")
			sans := ctx.GetCommonTlsContext().GetCombinedValidationContext().GetDefaultValidationContext().GetMatchTypedSubjectAltNames()
			if len(sans) == 0 {
				t.Fatalf("chain %q accepts every certificate", c.GetName())
			}
			accepted = regexp.MustCompile("^(?:" + sans[0].GetMatcher().GetSafeRegex().GetRegex() + ")$")
		}
	}
	if accepted == nil {
		t.Fatal("no chain has TLS")
	}
	for i := range len(mesh.ReservedPath) + 1 {
		for _, tail := range []string{"", "a", "f", "/", "/x", "-", "~", "z9/host/web", "airlead/", "FAIRLEAD/"} {
			id := "spiffe://cluster.local/" + mesh.ReservedPath[:i] + tail
			if got, want := accepted.MatchString(id), !mesh.IsReservedIdentity(id); got != want {
				t.Errorf("%q is accepted: %v, want %v", id, got, want)
			}
		}
	}
	for _, id := range []string{"spiffe://clusterxlocal/ns/a/sa/b", "spiffe://other/ns/a/sa/b", "xspiffe://cluster.local/ns/a/sa/b"} {
		if accepted.MatchString(id) {
			t.Errorf("%q is accepted", id)
		}
	}
}

// TestNoSessionIsResumed connects twice, as a client of an Envoy and through one:
// a resumed session shows no certificate, which may have ended.
func TestNoSessionIsResumed(t *testing.T) {
	t.Parallel()
	t.Run("inbound", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n")
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			cfg := &tls.Config{
				Certificates: []tls.Certificate{f.ca.pair(t, webID)}, InsecureSkipVerify: true, ServerName: "orders",
				ClientSessionCache: tls.NewLRUClientSessionCache(8), MaxVersion: version,
			}
			for range 3 {
				if resumed, err := echoOver(t.Context(), at(serverIP, f.tcp), cfg); err != nil || resumed {
					t.Errorf("TLS %x: resumed %v, %v", version, resumed, err)
				}
			}
		}
	})
	t.Run("outbound", func(t *testing.T) {
		t.Parallel()
		f := &fixture{ca: newAuthority(t)}
		server := newTLSServer(t, f, ordersID)
		address, _ := f.toLines(t, server)
		for range 5 {
			envoytest.Eventually(t, envoytest.Patience, func() error {
				_, err := sayLine(t.Context(), address)
				return err
			})
		}
		if n := server.resumed.Load(); n > 0 {
			t.Errorf("%d of 5 sessions were resumed", n)
		}
	})
}

// echoOver says a line over a new connection, and tells whether its session was
// resumed.
func echoOver(ctx context.Context, address string, cfg *tls.Config) (resumed bool, err error) {
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Attempt))
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		return false, err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || line != "echo hello\n" {
		return false, fmt.Errorf("answer %q: %w", line, err)
	}
	secure, ok := conn.(*tls.Conn)
	return ok && secure.ConnectionState().DidResume, nil
}
