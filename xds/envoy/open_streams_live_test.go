package envoy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// openStreams is a host with streams: its own service by HTTP and gRPC, and another one that it
// calls.
const openStreams = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: lines, namespace: shop}
spec:
  hosts: [lines.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: OUTPORT, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.0.0.1, ports: {tcp: CHAT}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: db, namespace: shop}
spec:
  ingress:
  - {port: {number: HTTPPORT, name: http, protocol: HTTP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:CHAT"}
  - {port: {number: GRPCPORT, name: grpc, protocol: GRPC}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:HEALTH"}
  egress: [{port: {number: OUTPORT, name: tcp, protocol: TCP}, bind: 127.0.0.12, hosts: ["./*"]}]
`

// revoked is a caller, and denyRevoked the policy that refuses it.
const (
	revoked     = "127.0.0.5"
	denyRevoked = `---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec: {action: DENY, rules: [{from: [{source: {ipBlocks: [` + revoked + `]}}]}]}
`
)

// TestOpenStreamsOfARevokedCallerEnd has a caller with an open WebSocket and an open gRPC stream
// when a policy refuses it. The extension refuses its next request at once, but touches no open
// stream. The listeners' update that comes with it ends them within the drain time, and leaves
// connections of other listeners alone.
func TestOpenStreamsOfARevokedCallerEnd(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			f := &ruleFed{fileFed: fileFed{dir: t.TempDir()}}
			ports := envoytest.FreePorts(t, 3)
			m := strings.NewReplacer("HTTPPORT", strconv.Itoa(ports[0]), "GRPCPORT", strconv.Itoa(ports[1]), "OUTPORT", strconv.Itoa(ports[2]),
				"CHAT", strconv.Itoa(chatServer(t)), "HEALTH", strconv.Itoa(healthServer(t))).Replace(openStreams)
			resources := f.build(t, m)
			f.writeExtensions(t, resources)
			f.writeListeners(t, resources)
			e := f.start(t, resources, version)
			web, rpc, out := at(serverIP, ports[0]), at(serverIP, ports[1]), at(serverIP, ports[2])
			envoytest.Eventually(t, envoytest.Patience, func() error { return asked(t, web, revoked, http.StatusOK) })

			socket := dialFrom(t, revoked, web)
			upgrade(t, socket)
			watch := watchFrom(t, revoked, rpc)
			called := dialFrom(t, revoked, out)
			said(t, called)
			kept := dialFrom(t, revoked, web)
			if code := askOn(t, kept); code != http.StatusOK {
				t.Fatalf("answered with %d", code)
			}

			resources = f.build(t, m+denyRevoked)
			f.writeExtensions(t, resources)
			envoytest.Eventually(t, envoytest.Patience, func() error { return asked(t, web, revoked, http.StatusForbidden) })
			if code := askOn(t, kept); code != http.StatusForbidden {
				t.Errorf("on a connection that is open, the revoked caller is answered with %d", code)
			}
			said(t, socket) // rules alone do not end it

			f.writeListeners(t, resources)
			if line, err := bufio.NewReader(socket).ReadString('\n'); err == nil {
				t.Errorf("the WebSocket said %q", line)
			} else if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the WebSocket of a revoked caller is open")
			}
			if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
				t.Errorf("the gRPC stream of a revoked caller is open: %v", err)
			}
			said(t, called)
			if err := asked(t, web, "127.0.0.6", http.StatusOK); err != nil {
				t.Errorf("another caller: %v", err)
			}
			if n := e.Stat(t, "listener_manager.listener_in_place_updated"); n == 0 {
				t.Error("the listeners were not updated in place")
			}
			e.NoRejections(t)
		})
	}
}

// ruleFed is an Envoy that has its listeners and its extensions from files.
type ruleFed struct{ fileFed }

func (f *ruleFed) build(t *testing.T, manifests string) []envoy.Resource {
	t.Helper()
	return buildAll(view.Build(snapshotOf(t, manifests, ""), proxyFile{
		Namespace: "shop", ServiceAccount: "db", IP: serverIP, Interception: "NONE",
	}.proxy()))
}

func (f *ruleFed) path(extension string) string { return filepath.Join(f.dir, extension) }

func (f *ruleFed) writeExtensions(t *testing.T, resources []envoy.Resource) {
	t.Helper()
	for _, m := range messages(t, resources, envoy.ExtensionType) {
		if x, ok := m.(*corev3.TypedExtensionConfig); ok {
			f.write(t, x.GetName(), x)
		}
	}
}

func (f *ruleFed) writeListeners(t *testing.T, resources []envoy.Resource) {
	t.Helper()
	list := messages(t, resources, envoy.ListenerType)
	for _, m := range list {
		l, ok := m.(*listenerv3.Listener)
		if !ok {
			t.Fatalf("%T is no listener", m)
		}
		for _, c := range l.GetFilterChains() {
			f.fromFiles(t, c)
		}
	}
	f.write(t, "lds.json", list...)
}

// fromFiles makes a chain read its extensions from files.
func (f *ruleFed) fromFiles(t *testing.T, c *listenerv3.FilterChain) {
	t.Helper()
	for _, filter := range c.GetFilters() {
		h := &hcmv3.HttpConnectionManager{}
		if !filter.GetTypedConfig().MessageIs(h) {
			continue
		}
		fatalIf(t, filter.GetTypedConfig().UnmarshalTo(h), "reading a connection manager")
		for _, x := range h.GetHttpFilters() {
			if d := x.GetConfigDiscovery(); d != nil {
				d.ConfigSource = pathSource(f.path(x.GetName()))
			}
		}
		packed, err := anypb.New(h)
		fatalIf(t, err, "packing a connection manager")
		filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
	}
}

func (f *ruleFed) start(t *testing.T, resources []envoy.Resource, version string) *envoytest.Envoy {
	t.Helper()
	var rest []envoy.Resource
	for _, r := range resources {
		if r.TypeURL != envoy.ListenerType {
			rest = append(rest, r)
		}
	}
	var node map[string]any
	fatalIf(t, json.Unmarshal(bootstrap(t, rest), &node), "reading own JSON")
	withoutSDS(node)
	withSecrets(t, node, newAuthority(t), proxyFile{Namespace: "shop", ServiceAccount: "db"})
	node["admin"] = json.RawMessage(envoytest.AdminJSON)
	node["dynamicResources"] = map[string]any{"ldsConfig": map[string]any{"resourceApiVersion": "V3", "pathConfigSource": map[string]any{"path": f.path("lds.json")}}}
	boot, err := json.Marshal(node)
	fatalIf(t, err, "marshaling bootstrap")
	return envoytest.Start(t, envoytest.Config{Bootstrap: boot, Version: version})
}

// chatServer answers the first line that begins with GET as a WebSocket or with an empty
// answer, and then each line with itself.
func chatServer(t *testing.T) int {
	t.Helper()
	return accept(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if !strings.HasPrefix(line, "GET ") {
				_, _ = io.WriteString(c, line)
				continue
			}
			req, err := http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader(line), r)))
			if err != nil {
				return
			}
			answer := "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
			if req.Header.Get("Upgrade") != "" {
				answer = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
			}
			_, _ = io.WriteString(c, answer)
		}
	})
}

func dialFrom(t *testing.T, source, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).DialContext(t.Context(), "tcp", address)
	fatalIf(t, err, "connecting")
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(envoytest.Patience))
	return c
}

// asked asks for "/" by a connection of its own.
func asked(t *testing.T, address, source string, want int) error {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(envoytest.Patience))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nhost: db.mesh\r\nconnection: close\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != want {
		return fmt.Errorf("answered with %d, want %d", resp.StatusCode, want)
	}
	return nil
}

// askOn asks for "/" on a connection, and returns the status code.
func askOn(t *testing.T, c net.Conn) int {
	t.Helper()
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\nhost: db.mesh\r\n\r\n")
	fatalIf(t, err, "writing")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	fatalIf(t, err, "reading")
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

func upgrade(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\nhost: db.mesh\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
	fatalIf(t, err, "writing")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	fatalIf(t, err, "reading")
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("answered with %d", resp.StatusCode)
	}
	said(t, c)
}

// said sends a line and waits until it comes back.
func said(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.WriteString(c, "hello\n")
	fatalIf(t, err, "writing")
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || line != "hello\n" {
		t.Fatalf("got %q, %v", line, err)
	}
}

// watchFrom opens a gRPC stream, and returns it when the first message is there.
func watchFrom(t *testing.T, source, address string) grpc.ServerStreamingClient[healthpb.HealthCheckResponse] {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", a) }))
	fatalIf(t, err, "making a client")
	t.Cleanup(func() { _ = cc.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), envoytest.Patience)
	t.Cleanup(cancel)
	w, err := healthpb.NewHealthClient(cc).Watch(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	fatalIf(t, err, "watching")
	_, err = w.Recv()
	fatalIf(t, err, "receiving")
	return w
}
