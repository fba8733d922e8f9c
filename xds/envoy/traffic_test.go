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
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const (
	clientIP = "127.0.0.11"
	serverIP = "127.0.0.12"
	webID    = "spiffe://cluster.local/ns/shop/sa/web"
	ordersID = "spiffe://cluster.local/ns/shop/sa/orders"
	hostID   = "spiffe://cluster.local/fairlead/host/web"
	spireID  = "spiffe://cluster.local/shop/frontend"
)

// TestMeshTraffic sends HTTP/1.1, gRPC and TCP from one host to the other, in
// every mode, and knocks at the door without the mesh.
func TestMeshTraffic(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"PERMISSIVE", "STRICT", "DISABLE"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: "+mode+"}}\n")
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			f.throughMesh(ctx, t, mode)
			f.withoutMesh(ctx, t, mode)
			f.client.NoRejections(t)
			f.server.NoRejections(t)
		})
	}
}

func (f *fixture) throughMesh(ctx context.Context, t *testing.T, mode string) {
	t.Helper()
	wantID := "URI=" + webID
	if mode == "DISABLE" {
		wantID = "xfcc= "
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		status, body, err := get(ctx, at(clientIP, f.http), nil)
		if err != nil || status != http.StatusOK || !strings.Contains(body, wantID) {
			return fmt.Errorf("status %d, body %q, error %w", status, body, errors.Join(err))
		}
		return nil
	})
	if err := callGRPC(ctx, at(clientIP, f.grpc)); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if line, err := sayLine(ctx, at(clientIP, f.tcp)); err != nil || line != "echo hello\n" {
		t.Errorf("TCP: %q, %v", line, err)
	}
	tlsUsed := f.server.Stat(t, "listener."+serverIP+"_"+strconv.Itoa(f.http)+".ssl.handshake")
	if (tlsUsed > 0) != (mode != "DISABLE") {
		t.Errorf("%d TLS handshakes in mode %s", tlsUsed, mode)
	}
}

func (f *fixture) withoutMesh(ctx context.Context, t *testing.T, mode string) {
	t.Helper()
	forged := http.Header{"X-Forwarded-Client-Cert": {"URI=" + webID}}
	status, body, err := get(ctx, at(serverIP, f.http), forged)
	if mode == "STRICT" {
		if err == nil {
			t.Errorf("plaintext got in: %d %q", status, body)
		}
	} else if err != nil || status != http.StatusOK || !strings.Contains(body, "xfcc= ") {
		t.Errorf("plaintext: %d %q, %v", status, body, err)
	}
	line, err := sayLine(ctx, at(serverIP, f.tcp))
	if got := err == nil && line == "echo hello\n"; got != (mode != "STRICT") {
		t.Errorf("plaintext TCP: %q, %v", line, err)
	}
	other := newAuthority(t)
	for _, c := range []struct {
		name string
		cert []tls.Certificate
		alpn []string
		want bool
	}{
		{"ours_with_istio", []tls.Certificate{f.ca.pair(t, webID)}, []string{"istio"}, mode != "DISABLE"},
		{"ours_without_istio", []tls.Certificate{f.ca.pair(t, webID)}, nil, mode == "STRICT"},
		{"another_authority", []tls.Certificate{other.pair(t, webID)}, []string{"istio"}, false},
		{"another_trust_domain", []tls.Certificate{f.ca.pair(t, "spiffe://other/ns/shop/sa/web")}, []string{"istio"}, false},
		{"no_certificate", nil, []string{"istio"}, false},
		{"host", []tls.Certificate{f.ca.pair(t, hostID)}, []string{"istio"}, false},
		{"host_without_istio", []tls.Certificate{f.ca.pair(t, hostID)}, nil, false},
		{"spire", []tls.Certificate{f.ca.pair(t, spireID)}, []string{"istio"}, mode != "DISABLE"},
	} {
		err := handshake(ctx, at(serverIP, f.tcp), &tls.Config{
			Certificates: c.cert, NextProtos: c.alpn,
			InsecureSkipVerify: true,
		})
		if (err == nil) != c.want {
			t.Errorf("%s: handshake: %v, want success %t", c.name, err, c.want)
		}
	}
	f.applicationTLS(ctx, t, mode)
}

// applicationTLS knocks with TLS that is not the mesh's: it is passed on as it
// is unless the mode is STRICT.
func (f *fixture) applicationTLS(ctx context.Context, t *testing.T, mode string) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at(serverIP, f.tcp))
	fatalIf(t, err, "dialing")
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(envoytest.Attempt))
	hello := &helloRecorder{}
	_ = tls.Client(hello, &tls.Config{ServerName: "app"}).HandshakeContext(ctx)
	_, err = c.Write(hello.sent)
	fatalIf(t, err, "writing")
	line, err := bufio.NewReader(c).ReadString('\n')
	if got := line == "tls\n"; got != (mode != "STRICT") {
		t.Errorf("an application's TLS: %q, %v", line, err)
	}
}

// handshake succeeds if the server has accepted the client, which with TLS 1.3
// shows only when it answers.
func handshake(ctx context.Context, addr string, cfg *tls.Config) error {
	c, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(envoytest.Attempt))
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	if line != "echo hello\n" {
		return fmt.Errorf("answer %q", line)
	}
	return nil
}

// helloRecorder is a connection on which nobody answers.
type helloRecorder struct {
	net.Conn
	sent []byte
}

func (r *helloRecorder) Write(b []byte) (int, error) {
	r.sent = append(r.sent, b...)
	return len(b), nil
}

func (r *helloRecorder) Read([]byte) (int, error) { return 0, io.EOF }

func (r *helloRecorder) SetDeadline(time.Time) error { return nil }

func (r *helloRecorder) SetReadDeadline(time.Time) error { return nil }

func (r *helloRecorder) SetWriteDeadline(time.Time) error { return nil }

func (r *helloRecorder) Close() error { return nil }

// TestUnenforcedDenies shows that a policy that cannot be enforced lets nobody
// in, over HTTP, gRPC and TCP.
func TestUnenforcedDenies(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: orders, namespace: shop}\nspec: {selector: {matchLabels: {app: orders}}, jwtRules: [{issuer: \"https://a.example\\n\"}]}\n")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		status, body, err := get(ctx, at(clientIP, f.http), nil)
		if err != nil || status != http.StatusForbidden {
			return fmt.Errorf("status %d, body %q, error %w", status, body, errors.Join(err))
		}
		return nil
	})
	if err := callGRPC(ctx, at(clientIP, f.grpc)); err == nil {
		t.Error("gRPC got in")
	}
	if line, err := sayLine(ctx, at(clientIP, f.tcp)); err == nil {
		t.Errorf("TCP got in: %q", line)
	}
	if status, body, err := get(ctx, at(serverIP, f.http), nil); err != nil || status != http.StatusForbidden {
		t.Errorf("plaintext: %d %q, %v", status, body, err)
	}
}

// TestWrongServerIsRefused gives the server's place to somebody else of the
// mesh: clients accept only the service's own identity.
func TestWrongServerIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	f.server.Kill()
	s := snapshotOf(t, strings.NewReplacer("HTTPPORT", strconv.Itoa(f.http), "GRPCPORT", strconv.Itoa(f.grpc),
		"TCPPORT", strconv.Itoa(f.tcp), "ECHO", strconv.Itoa(f.echo), "HEALTH", strconv.Itoa(f.health),
		"LINES", strconv.Itoa(f.lines)).Replace(fixtureManifests), "")
	f.start(t, s, proxyFile{Namespace: "shop", ServiceAccount: "thief", IP: serverIP, Interception: "NONE", Labels: map[string]string{"app": "orders"}})
	envoytest.Eventually(t, envoytest.Patience, func() error { // the thief is up: it answers plaintext
		_, _, err := get(ctx, at(serverIP, f.http), nil)
		return err
	})
	status, body, err := get(ctx, at(clientIP, f.http), nil)
	if err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("status %d, body %q, error %v", status, body, err)
	}
	cluster := "cluster.outbound|" + strconv.Itoa(f.http) + "||orders.shop.mesh;"
	if n := f.client.Stat(t, cluster+".ssl.fail_verify_san"); n == 0 {
		t.Errorf("no identity was refused: %s", f.client.Admin(t, "/stats?filter=ssl.*fail"))
	}
}

// TestUnhealthyGetsNothing adds endpoints that are known to be unhealthy: they
// get no request, not even when most are, where an Envoy by itself would panic.
func TestUnhealthyGetsNothing(t *testing.T) {
	t.Parallel()
	const noRetries = `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  http: [{retries: {attempts: 0}, route: [{destination: {host: orders.shop.mesh}}]}]
`
	const unhealthy = `---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: gone, namespace: shop}
spec: {address: 127.0.0.13, labels: {app: orders, test/health: unhealthy}, serviceAccount: orders}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: gone-too, namespace: shop}
spec: {address: 127.0.0.14, labels: {app: orders, test/health: unhealthy}, serviceAccount: orders}
`
	f := newFixture(t, noRetries+unhealthy)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for range 50 {
		status, body, err := get(ctx, at(clientIP, f.http), nil)
		if err != nil || status != http.StatusOK {
			t.Fatalf("status %d, body %q, error %v", status, body, err)
		}
	}
}
