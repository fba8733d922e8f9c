package envoy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/view"
)

// slowManifests is a host with an application that waits for its client, and one,
// like MySQL's, that speaks first, with mTLS as they like and enforced.
const slowManifests = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: db, namespace: shop}
spec:
  hosts: [db.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: HTTPPORT, name: http, protocol: HTTP}
  - {number: LOOSEPORT, name: mysql, protocol: TCP}
  - {number: STRICTPORT, name: mysql-strict, protocol: TCP}
  workloadSelector: {labels: {app: db}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db, namespace: shop}
spec: {address: 127.0.0.12, labels: {app: db}, serviceAccount: db}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: db, namespace: shop}
spec: {selector: {matchLabels: {app: db}}, mtls: {mode: PERMISSIVE}, portLevelMtls: {STRICTPORT: {mode: STRICT}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: db, namespace: shop}
spec:
  workloadSelector: {labels: {app: db}}
  ingress:
  - {port: {number: HTTPPORT, name: http, protocol: HTTP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:ECHO"}
  - {port: {number: LOOSEPORT, name: mysql, protocol: TCP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:GREETER"}
  - {port: {number: STRICTPORT, name: mysql-strict, protocol: TCP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:GREETER"}
  egress: [{hosts: ["~/*"]}]
`

type slowFixture struct {
	*fixture
	loose, strict int
}

func newSlowFixture(t *testing.T, meshConfig string) *slowFixture {
	t.Helper()
	ports := envoytest.FreePorts(t, 3)
	f := &slowFixture{fixture: &fixture{ca: newAuthority(t), http: ports[0]}, loose: ports[1], strict: ports[2]}
	m := strings.NewReplacer("HTTPPORT", strconv.Itoa(f.http), "LOOSEPORT", strconv.Itoa(f.loose), "STRICTPORT", strconv.Itoa(f.strict),
		"ECHO", strconv.Itoa(echoServer(t)), "GREETER", strconv.Itoa(greeter(t))).Replace(slowManifests)
	f.server = f.start(t, snapshotOf(t, m, meshConfig), proxyFile{
		Namespace: "shop", ServiceAccount: "db", IP: serverIP, Interception: "NONE", Labels: map[string]string{"app": "db"},
	})
	return f
}

// greeter speaks first, and then says nothing more.
func greeter(t *testing.T) int {
	t.Helper()
	return accept(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "greetings\n")
		_, _ = io.Copy(io.Discard, c)
	})
}

// patience tells what is bounded from what is not: bounds are 15 s.
const patience = 40 * time.Second

// sayAndWait opens a connection, says something, and gives the first line that
// comes back, or with toEnd waits until the far side closes.
func sayAndWait(ctx context.Context, address string, say []byte, toEnd bool) (line string, err error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(say); err != nil {
		return "", err
	}
	if toEnd {
		_, err = io.Copy(io.Discard, c)
	} else {
		line, err = bufio.NewReader(c).ReadString('\n')
	}
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return line, fmt.Errorf("open for %s: %w", patience, err)
	}
	return line, nil // an end may be a reset
}

// clientHello is the first message of a client.
func clientHello(t *testing.T, cfg *tls.Config) []byte {
	t.Helper()
	r := &helloRecorder{}
	_ = tls.Client(r, cfg).HandshakeContext(t.Context())
	return r.sent
}

// TestSlowPeersAreDisconnected has peers that stop at each step of a connection: none of
// them is held without end. An application that speaks first works after the timeout.
func TestSlowPeersAreDisconnected(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{"default": "", "set": "protocolDetectionTimeout: 2s\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newSlowFixture(t, settings)
			hello := clientHello(t, &tls.Config{ServerName: "db", NextProtos: []string{"istio"}})
			var all sync.WaitGroup // each only waits: together they take as long as one
			for name, c := range map[string]struct {
				port int
				say  []byte
				line string // or empty: it is closed
			}{
				"silent_strict":      {f.strict, nil, ""},
				"half_hello":         {f.strict, hello[:len(hello)/2], ""},
				"hello_only":         {f.strict, hello, ""},
				"hello_permissive":   {f.loose, hello, ""},
				"headers_begun":      {f.http, []byte("GET / HTTP/1.1\r\nHost: db.shop.mesh\r\nX-"), "HTTP/1.1 408 Request Timeout\r\n"},
				"server_first":       {f.loose, nil, "greetings\n"},
				"http_not_yet_known": {f.http, []byte("GE"), "HTTP/1.1 408 Request Timeout\r\n"},
			} {
				all.Go(func() {
					t.Run(name, func(t *testing.T) {
						if line, err := sayAndWait(t.Context(), at(serverIP, c.port), c.say, c.line == ""); err != nil || line != c.line {
							t.Errorf("answer %q, error %v; want %q", line, err, c.line)
						}
					})
				})
			}
			all.Wait()
		})
	}
}

// TestConnectionsEndAtMaxAge keeps connections busy for longer than they may live: every
// request is answered, and none goes over a connection that is too old.
func TestConnectionsEndAtMaxAge(t *testing.T) {
	t.Parallel()
	const age = 3 * time.Second
	f := newFixtureWith(t, view.Settings{MaxConnectionAge: age},
		"---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		status, body, err := get(t.Context(), at(clientIP, f.http), nil)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("status %d, body %q, error %w", status, body, errors.Join(err))
		}
		return nil
	})
	t.Run("busy", func(t *testing.T) {
		t.Parallel()
		for end := time.Now().Add(4 * age); time.Now().Before(end); {
			if status, body, err := get(t.Context(), at(clientIP, f.http), nil); err != nil || status != http.StatusOK {
				t.Fatalf("status %d, body %q, error %v", status, body, err)
			}
			if err := callGRPC(t.Context(), at(clientIP, f.grpc)); err != nil {
				t.Fatalf("gRPC: %v", err)
			}
		}
		for _, port := range []int{f.http, f.grpc} {
			cluster := "cluster.outbound|" + strconv.Itoa(port) + "||orders.shop.mesh;."
			if n := f.client.Stat(t, cluster+"upstream_cx_total"); n < 3 {
				t.Errorf("%d connections to port %d in %s", n, port, 4*age)
			}
		}
	})
	// A client that would go on for ever, with TLS and nothing else, has an end.
	for name, c := range map[string]struct {
		port int
		alpn []string
		say  string
	}{
		"idle_http1": {f.http, []string{"http/1.1"}, "GET / HTTP/1.1\r\nHost: orders.shop.mesh\r\n\r\n"},
		"idle_http2": {f.grpc, []string{"h2"}, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"},
		"tcp":        {f.tcp, []string{"istio"}, "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := (&tls.Dialer{Config: &tls.Config{
				Certificates: []tls.Certificate{f.ca.pair(t, webID)}, InsecureSkipVerify: true, NextProtos: c.alpn,
			}}).DialContext(t.Context(), "tcp", at(serverIP, c.port))
			fatalIf(t, err, "dialing")
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, err = io.WriteString(conn, c.say)
			fatalIf(t, err, "writing")
			_, err = io.Copy(io.Discard, conn)
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("open for %s", patience)
			}
		})
	}
}
