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

// undeclaredMesh has a service with ports of no declared protocol. TCPSERVER is one that the
// server's Sidecar declares as TCP: its chains are those of a server of an earlier release.
// TCPCLIENT is one that clients know as TCP: they offer what clients of earlier releases do.
const undeclaredMesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: MIXED, name: any}
  - {number: RPC, name: rpc}
  - {number: TCPSERVER, name: tcpserver}
  - {number: TCPCLIENT, name: tcpclient, protocol: TCP}
  workloadSelector: {labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: orders, namespace: shop}
spec: {address: 127.0.0.12, labels: {app: orders}, serviceAccount: orders}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: orders, namespace: shop}
spec:
  workloadSelector: {labels: {app: orders}}
  ingress:
  - {port: {number: MIXED, name: any, protocol: ""}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:APP"}
  - {port: {number: RPC, name: rpc, protocol: ""}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:HEALTH"}
  - {port: {number: TCPSERVER, name: tcpserver, protocol: TCP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:APP"}
  - {port: {number: TCPCLIENT, name: tcpclient, protocol: ""}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:APP"}
  - {port: {number: GREETER, name: greeter, protocol: ""}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:FIRST"}
  egress: [{hosts: ["~/*"]}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  egress:
  - {port: {number: MIXED, name: any, protocol: ""}, bind: 127.0.0.11, hosts: ["./*"]}
  - {port: {number: RPC, name: rpc, protocol: ""}, bind: 127.0.0.11, hosts: ["./*"]}
  - {port: {number: TCPSERVER, name: tcpserver, protocol: ""}, bind: 127.0.0.11, hosts: ["./*"]}
  - {port: {number: TCPCLIENT, name: tcpclient, protocol: TCP}, bind: 127.0.0.11, hosts: ["./*"]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: MODE}}
`

// undeclaredFixture is a client, and the server of undeclaredMesh.
type undeclaredFixture struct {
	fixture
	mixed, rpc, tcpServer, tcpClient, greeter int
}

func newUndeclaredFixture(t *testing.T, version, mode string) *undeclaredFixture {
	t.Helper()
	p := envoytest.FreePorts(t, 5)
	f := &undeclaredFixture{
		fixture: fixture{ca: newAuthority(t), version: version},
		mixed:   p[0], rpc: p[1], tcpServer: p[2], tcpClient: p[3], greeter: p[4],
	}
	manifests := undeclaredMesh
	for name, port := range map[string]int{
		"MIXED": f.mixed, "RPC": f.rpc, "TCPSERVER": f.tcpServer, "TCPCLIENT": f.tcpClient, "GREETER": f.greeter,
		"APP": mixedServer(t), "HEALTH": healthServer(t), "FIRST": greeter(t),
	} {
		manifests = strings.ReplaceAll(manifests, name, strconv.Itoa(port))
	}
	s := snapshotOf(t, strings.ReplaceAll(manifests, "MODE", mode), "")
	f.server = f.start(t, s, proxyFile{Namespace: "shop", ServiceAccount: "orders", IP: serverIP, Interception: "NONE", Labels: map[string]string{"app": "orders"}})
	f.client = f.start(t, s, proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE", Labels: map[string]string{"app": "web"}})
	return f
}

// mixedServer serves HTTP/1.1 and lines at one port: it answers a request with the client's
// identity, an upgrade and everything else with what it gets.
func mixedServer(t testing.TB) int {
	t.Helper()
	return accept(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		if b, err := r.Peek(4); err != nil || string(b) != "GET " {
			line, _ := r.ReadString('\n')
			_, _ = io.WriteString(c, "echo "+line)
			return
		}
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			if req.Header.Get("Upgrade") != "" {
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				line, _ := r.ReadString('\n')
				_, _ = io.WriteString(c, "echo "+line)
				return
			}
			body := "xfcc=" + req.Header.Get("X-Forwarded-Client-Cert")
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
	})
}

// asHTTP and asTCP are how many requests and connections the server got at a port.
func (f *undeclaredFixture) asHTTP(t *testing.T, port int) int {
	t.Helper()
	return f.server.Stat(t, fmt.Sprintf("http.inbound_%s_%d;.downstream_rq_total", serverIP, port))
}

func (f *undeclaredFixture) asTCP(t *testing.T, port int) int {
	t.Helper()
	return f.server.Stat(t, fmt.Sprintf("tcp.inbound|%d||.downstream_cx_total", port))
}

// TestUndeclaredPortsTellProtocolsApartWithMTLS: on a port without a declared protocol, HTTP is
// HTTP at the server, and everything else is TCP, whichever comes first. A client or a server
// of an earlier release makes it TCP.
func TestUndeclaredPortsTellProtocolsApartWithMTLS(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		for _, mode := range []string{"PERMISSIVE", "STRICT"} {
			t.Run(version+"_"+mode, func(t *testing.T) {
				t.Parallel()
				f := newUndeclaredFixture(t, version, mode)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				f.waitForHTTP(ctx, t)
				f.interleaved(ctx, t)
				f.rpcIsHTTP(ctx, t)
				f.upgrades(ctx, t)
				f.earlierReleases(ctx, t)
				f.greets(ctx, t)
				f.client.NoRejections(t)
				f.server.NoRejections(t)
			})
		}
	}
}

func (f *undeclaredFixture) waitForHTTP(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, port := range []int{f.mixed, f.tcpServer, f.tcpClient} {
		envoytest.Eventually(t, envoytest.Patience, func() error {
			status, body, err := get(ctx, at(clientIP, port), nil)
			if err != nil || status != http.StatusOK {
				return fmt.Errorf("port %d: status %d, body %q, error %w", port, status, body, errors.Join(err))
			}
			return nil
		})
	}
}

// interleaved sends HTTP and lines in turns, so that connections to one cluster are there for
// both.
func (f *undeclaredFixture) interleaved(ctx context.Context, t *testing.T) {
	t.Helper()
	tcp := f.asTCP(t, f.mixed)
	for range 5 {
		if status, body, err := get(ctx, at(clientIP, f.mixed), nil); err != nil || status != http.StatusOK || !strings.Contains(body, "URI="+webID) {
			t.Errorf("HTTP: %d %q, %v", status, body, err)
		}
		if line, err := sayLine(ctx, at(clientIP, f.mixed)); err != nil || line != "echo hello\n" {
			t.Errorf("TCP: %q, %v", line, err)
		}
	}
	if n := f.asTCP(t, f.mixed) - tcp; n != 5 {
		t.Errorf("%d of 5 connections were TCP at the server", n)
	}
	if n := f.server.Stat(t, fmt.Sprintf("listener.%s_%d.ssl.handshake", serverIP, f.mixed)); n == 0 {
		t.Error("no TLS handshakes")
	}
}

func (f *undeclaredFixture) rpcIsHTTP(ctx context.Context, t *testing.T) {
	t.Helper()
	for range 3 {
		if err := callGRPC(ctx, at(clientIP, f.rpc)); err != nil {
			t.Errorf("gRPC: %v", err)
		}
	}
	if requests, tcp := f.asHTTP(t, f.rpc), f.asTCP(t, f.rpc); requests != 3 || tcp != 0 {
		t.Errorf("%d of 3 calls were HTTP, %d connections TCP", requests, tcp)
	}
}

func (f *undeclaredFixture) upgrades(ctx context.Context, t *testing.T) {
	t.Helper()
	before := f.asHTTP(t, f.mixed)
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at(clientIP, f.mixed))
	fatalIf(t, err, "dialing")
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(envoytest.Attempt))
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: orders.shop.mesh\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	fatalIf(t, err, "writing")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	fatalIf(t, err, "reading the response")
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Errorf("upgrade: status %d", resp.StatusCode)
		return
	}
	_, err = io.WriteString(c, "hello\n")
	fatalIf(t, err, "writing")
	if line, err := r.ReadString('\n'); err != nil || line != "echo hello\n" {
		t.Errorf("after the upgrade: %q, %v", line, err)
	}
	if n := f.asHTTP(t, f.mixed) - before; n != 1 {
		t.Errorf("the upgrade was %d requests at the server", n)
	}
}

func (f *undeclaredFixture) earlierReleases(ctx context.Context, t *testing.T) {
	t.Helper()
	for name, port := range map[string]int{"client": f.tcpClient, "server": f.tcpServer} {
		if status, body, err := get(ctx, at(clientIP, port), nil); err != nil || status != http.StatusOK || body != "xfcc=" {
			t.Errorf("HTTP with an earlier %s: %d %q, %v", name, status, body, err)
		}
		if line, err := sayLine(ctx, at(clientIP, port)); err != nil || line != "echo hello\n" {
			t.Errorf("TCP with an earlier %s: %q, %v", name, line, err)
		}
		if f.asTCP(t, port) == 0 {
			t.Errorf("with an earlier %s nothing was TCP", name)
		}
	}
	if n := f.asHTTP(t, f.tcpClient); n != 0 {
		t.Errorf("%d requests of an earlier client were HTTP", n)
	}
}

// greets connects to an application that speaks first. With mTLS nobody waits for the client.
func (f *undeclaredFixture) greets(ctx context.Context, t *testing.T) {
	t.Helper()
	c, err := (&tls.Dialer{Config: &tls.Config{
		Certificates: []tls.Certificate{f.ca.pair(t, webID)}, NextProtos: []string{"istio"}, InsecureSkipVerify: true,
	}}).DialContext(ctx, "tcp", at(serverIP, f.greeter))
	fatalIf(t, err, "dialing")
	defer func() { _ = c.Close() }()
	const inspected = 10 * time.Second // without mTLS, the inspection ends after 15
	_ = c.SetDeadline(time.Now().Add(inspected))
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "greetings\n" {
		t.Errorf("an application that speaks first: %q, %v", line, err)
	}
}
