package envoy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// fixture is two hosts with an Envoy each, and the applications behind the
// second.
type fixture struct {
	ca                  *authority
	http, grpc, tcp     int // ports of the service
	client, server      *envoytest.Envoy
	echo, health, lines int // ports of the applications
	settings            view.Settings
	resumable           bool // sessions resume, which is not generated
	version             string
	meshConfig          string // text
	environ             []string
	secrets             []any                          // besides those of the mesh
	rewire              func(bootstrap map[string]any) // or nil
}

// meshFor is the manifests of the two hosts.
const fixtureManifests = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: HTTPPORT, name: http, protocol: HTTP}
  - {number: GRPCPORT, name: grpc, protocol: GRPC}
  - {number: TCPPORT, name: tcp, protocol: TCP}
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
  - {port: {number: HTTPPORT, name: http, protocol: HTTP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:ECHO"}
  - {port: {number: GRPCPORT, name: grpc, protocol: GRPC}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:HEALTH"}
  - {port: {number: TCPPORT, name: tcp, protocol: TCP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:LINES"}
  egress: [{hosts: ["~/*"]}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  egress:
  - {port: {number: HTTPPORT, name: http, protocol: HTTP}, bind: 127.0.0.11, hosts: ["./*"]}
  - {port: {number: GRPCPORT, name: grpc, protocol: GRPC}, bind: 127.0.0.11, hosts: ["./*"]}
  - {port: {number: TCPPORT, name: tcp, protocol: TCP}, bind: 127.0.0.11, hosts: ["./*"]}
`

func newFixture(t *testing.T, more string) *fixture {
	t.Helper()
	return newFixtureWith(t, view.Settings{}, more)
}

func newFixtureWith(t *testing.T, settings view.Settings, more string) *fixture {
	t.Helper()
	f := &fixture{settings: settings, echo: echoServer(t)}
	f.setUp(t, more)
	return f
}

// setUp starts two Envoys, with further manifests.
func (f *fixture) setUp(t *testing.T, more string) {
	t.Helper()
	ports := envoytest.FreePorts(t, 3)
	f.ca, f.http, f.grpc, f.tcp = newAuthority(t), ports[0], ports[1], ports[2]
	f.health, f.lines = healthServer(t), lineServer(t)
	manifests := fixtureManifests + more
	for name, port := range map[string]int{
		"HTTPPORT": f.http, "GRPCPORT": f.grpc, "TCPPORT": f.tcp, "ECHO": f.echo, "HEALTH": f.health, "LINES": f.lines,
	} {
		manifests = strings.ReplaceAll(manifests, name, strconv.Itoa(port))
	}
	s := snapshotOf(t, manifests, f.meshConfig)
	f.server = f.start(t, s, proxyFile{Namespace: "shop", ServiceAccount: "orders", IP: serverIP, Interception: "NONE", Labels: map[string]string{"app": "orders"}})
	f.client = f.start(t, s, proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE", Labels: map[string]string{"app": "web"}})
}

func (f *fixture) start(t testing.TB, s *mesh.Snapshot, who proxyFile) *envoytest.Envoy {
	t.Helper()
	proxy := who.proxy()
	if f.version != "" {
		proxy.EnvoyVersion = view.Version{Major: 1, Minor: uint32(envoytest.Minor(t, f.version))}
	}
	boot := bootstrap(t, buildAll(f.settings.NewIndex(s).Build(proxy)))
	var node map[string]any
	fatalIf(t, json.Unmarshal(boot, &node), "reading own JSON")
	withoutSDS(node)
	if f.resumable {
		without(node, "disableStatelessSessionResumption")
	}
	withSecrets(t, node, f.ca, who)
	if static, ok := node["staticResources"].(map[string]any); ok && len(f.secrets) > 0 {
		have, _ := static["secrets"].([]any)
		static["secrets"] = append(have, f.secrets...)
	}
	if f.rewire != nil {
		f.rewire(node)
	}
	node["admin"] = json.RawMessage(envoytest.AdminJSON)
	boot, err := json.Marshal(node)
	fatalIf(t, err, "marshaling bootstrap")
	return envoytest.Start(t, envoytest.Config{Bootstrap: boot, Version: f.version, Env: f.environ})
}

// withSecrets puts the secrets of a proxy into its bootstrap.
func withSecrets(t testing.TB, node map[string]any, ca *authority, who proxyFile) {
	t.Helper()
	cert, key := ca.identity(t, "spiffe://cluster.local/ns/"+who.Namespace+"/sa/"+who.ServiceAccount)
	inline := func(text string) map[string]any { return map[string]any{"inline_string": text} }
	static, ok := node["staticResources"].(map[string]any)
	if !ok {
		t.Fatal("no static resources")
	}
	have, _ := static["secrets"].([]any)
	static["secrets"] = append(have,
		map[string]any{"name": "default", "tls_certificate": map[string]any{"certificate_chain": inline(cert), "private_key": inline(key)}},
		map[string]any{"name": "ROOTCA", "validation_context": map[string]any{"trusted_ca": inline(ca.rootPEM())}},
	)
}

// withoutSDS makes secrets come from the bootstrap itself.
func withoutSDS(x any) { without(x, "sdsConfig") }

// without takes a field out wherever it is.
func without(x any, field string) {
	switch x := x.(type) {
	case map[string]any:
		delete(x, field)
		for _, v := range x {
			without(v, field)
		}
	case []any:
		for _, v := range x {
			without(v, field)
		}
	}
}

func echoServer(t *testing.T) int {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "xfcc=%s host=%s", r.Header.Get("X-Forwarded-Client-Cert"), r.Host)
	}))
	t.Cleanup(s.Close)
	return portOf(t, s.Listener)
}

func portOf(t testing.TB, l net.Listener) int {
	t.Helper()
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is no TCP address", l.Addr())
	}
	return a.Port
}

func healthServer(t *testing.T) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	fatalIf(t, err, "listening")
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return portOf(t, l)
}

// lineServer answers each line with itself. A first byte of a TLS handshake it
// answers with "tls", so that a test sees who got it.
func lineServer(t testing.TB) int {
	t.Helper()
	return accept(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		if b, err := r.Peek(1); err == nil && b[0] == 22 {
			_, _ = io.WriteString(c, "tls\n")
			return
		}
		line, _ := r.ReadString('\n')
		_, _ = io.WriteString(c, "echo "+line)
	})
}

// accept serves each connection to a port of its own, for a minute at most, and returns the port.
func accept(t testing.TB, serve func(net.Conn)) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	fatalIf(t, err, "listening")
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(envoytest.Attempt))
				serve(c)
			}()
		}
	}()
	return portOf(t, l)
}

func get(ctx context.Context, addr string, header http.Header) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return 0, "", err
	}
	req.Host = "orders.shop.mesh"
	maps.Copy(req.Header, header)
	if host := header.Get("Host"); host != "" {
		req.Host = host
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: envoytest.Attempt}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

func callGRPC(ctx context.Context, addr string) error {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("orders.shop.mesh"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func sayLine(ctx context.Context, addr string) (string, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(envoytest.Attempt))
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	return bufio.NewReader(c).ReadString('\n')
}

func at(ip string, port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }
