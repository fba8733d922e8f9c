package sites

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// protocolMesh has services of gRPC, TCP and TLS on the hosts of ledger, and lets web call them at ports of
// its host. The services of gRPC differ in what ends a connection of a client.
const protocolMesh = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  egress:
  - port: {number: 9090, name: grpc, protocol: GRPC}
    bind: 127.0.0.1
    hosts: ["./*"]
  - port: {number: 9000, name: tcp, protocol: TCP}
    bind: 127.0.0.1
    hosts: ["./lines.shop.internal"]
  - port: {number: 9443, name: tls, protocol: TLS}
    bind: 127.0.0.1
    hosts: ["./safe.shop.internal"]
  - hosts: ["./*"]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: lines, namespace: shop}
spec:
  hosts: [lines.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: tcp, protocol: TCP}]
  workloadSelector: {labels: {ledger: "yes"}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: safe, namespace: shop}
spec:
  hosts: [safe.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9443, name: tls, protocol: TLS}]
  workloadSelector: {labels: {ledger: "yes"}}
`

// protocolIngress are the ports of the hosts of ledger.
const protocolIngress = `    defaultEndpoint: 127.0.0.1:8080
  - port: {number: 9090, name: grpc, protocol: GRPC}
    defaultEndpoint: 127.0.0.1:8082
  - port: {number: 9000, name: tcp, protocol: TCP}
    defaultEndpoint: 127.0.0.1:8083
  - port: {number: 9443, name: tls, protocol: TLS}
    defaultEndpoint: 127.0.0.1:8443
`

// grpcService is a service of gRPC with what its DestinationRule says.
const grpcService = `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: NAME, namespace: shop}
spec:
  hosts: [NAME.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9090, name: grpc, protocol: GRPC}]
  workloadSelector: {labels: {ledger: "yes"}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: NAME, namespace: shop}
spec:
  host: NAME.shop.internal
  trafficPolicy: {POLICY}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: NAME, namespace: shop}
spec:
  hosts: [NAME.shop.internal]
  http:
  - route: [{destination: {host: NAME.shop.internal}}]
    retries: {attempts: 5, retryOn: "connect-failure,refused-stream,reset,unavailable"}
    timeout: 5s
`

// ways are what ends connections of gRPC to a host that is unhealthy, by the name of the service.
func ways() map[string]string {
	return map[string]string{
		"nothing":  "",
		"requests": "connectionPool: {http: {maxRequestsPerConnection: 50}}",
		"age":      "connectionPool: {tcp: {maxConnectionDuration: 2s}}",
		"outlier":  "outlierDetection: {consecutive5xxErrors: 3, interval: 1s, baseEjectionTime: 1s, maxEjectionPercent: 100, minHealthPercent: 1}",
	}
}

// protocolPorts are the applications of ledger's hosts, by protocol.
func protocolPorts() map[string]int { return map[string]int{"grpc": 8082, "tcp": 8083} }

// TestProtocolsAcrossSites has web of site a call services of gRPC, TCP and TLS in site b, of which one host
// is there first and then the other. New connections go to the host that is healthy. Requests of gRPC do as
// soon as the connection from before has ended, by what the DestinationRule says.
func TestProtocolsAcrossSites(t *testing.T) {
	s := newSites(t)
	var text strings.Builder
	text.WriteString(protocolMesh)
	for name, policy := range ways() {
		text.WriteString(strings.NewReplacer("NAME", name, "POLICY", policy).Replace(grpcService))
	}
	s.prepare = func() {
		s.write("protocols.yaml", text.String())
		s.each(func(l *site) { l.Edit("services.yaml", "    defaultEndpoint: 127.0.0.1:8080\n", protocolIngress) })
	}
	s.start()
	ring := meshtest.NewKeyRing(t, t.TempDir())
	cert, _ := ring.Client("safe.shop.internal")
	serveTLS(t, s.b.hosts["orders-b1"], cert)
	serveTLS(t, s.b.hosts["orders-b2"], cert)
	first := s.b.protocolApps("orders-b1")
	s.b.apps["orders-b2"].Kill()
	s.b.awaitHealth("unhealthy", "orders-b2")
	s.answersBy(ring, "orders-b1")

	loads := map[string]*meshtest.Load{}
	for name := range ways() {
		c := dialGRPC(t, s.a.hosts["web-a"], name+".shop.internal")
		envoytest.Eventually(t, envoytest.Patience, func() error { return answersGRPC(t.Context(), c) })
		loads[name] = meshtest.StartLoad(t, rate/2, func(ctx context.Context) error { return answersGRPC(ctx, c) })
	}
	loads["requests"].Wait(t, rate)
	second := s.b.protocolApps("orders-b2")
	s.b.startApp("orders-b2")
	s.b.awaitHealth("healthy", "orders-b2")
	before := map[string]meshtest.Result{}
	for name, l := range loads {
		before[name] = l.Now()
	}
	killed := time.Now()
	for _, p := range append(first, s.b.apps["orders-b1"]) {
		p.Kill()
	}
	s.b.awaitHealth("unhealthy", "orders-b1")
	known := since(killed)
	for name, l := range loads {
		if name == "nothing" {
			continue
		}
		envoytest.Eventually(t, envoytest.Patience, func() error {
			from := l.Now()
			l.Wait(t, rate/2)
			if now := l.Now(); now.Failed > from.Failed {
				return fmt.Errorf("%s: %d requests failed: %v", name, now.Failed-from.Failed, now.Errors)
			}
			return nil
		})
	}
	for name, l := range loads {
		r := l.Now()
		t.Logf("%s: known after %s; %d of %d requests failed, the last after %s", name, known, r.Failed-before[name].Failed, r.Failed+r.Good, max(0, r.LastFailure.Sub(killed)))
	}
	if n, err := s.b.passes(s.b.edges[0], "9090", "nothing", "orders-b1", openNow); n == 0 || err != nil {
		t.Errorf("a connection that nothing ends is not there any more: %v; the page says that it stays", err)
	}
	s.answersBy(ring, "orders-b2")
	for _, p := range second {
		if p.Ended() {
			t.Errorf("%s has ended", p.Name)
		}
	}
}

// protocolApps starts the applications of gRPC and TCP of a host.
func (s *site) protocolApps(label string) (out []*meshtest.Process) {
	s.t.Helper()
	_, app := s.Binaries()
	for protocol, port := range protocolPorts() {
		out = append(out, s.hosts[label].Start(label+"-"+protocol, hosttest.AppUser, app, "--name", label, "--protocol", protocol, "--listen", fmt.Sprintf("127.0.0.1:%d", port)))
	}
	return out
}

// answersBy waits until new connections of TCP and TLS go to one host of site b only.
func (s *sites) answersBy(ring *meshtest.KeyRing, host string) {
	s.t.Helper()
	for port, conf := range map[int]*tls.Config{9000: nil, 9443: ring.TLS("safe.shop.internal")} {
		envoytest.Eventually(s.t, envoytest.Patience, func() error {
			got := tallyOf(50, func() (string, error) { return askLine(s.t.Context(), s.a.hosts["web-a"], port, conf) })
			if err := only(got, host); err != nil {
				return fmt.Errorf("port %d: %w", port, err)
			}
			return nil
		})
	}
}

// serveTLS has a program on a host that ends TLS itself and says its host's name.
func serveTLS(t *testing.T, h *hosttest.Host, cert tls.Certificate) {
	t.Helper()
	var l net.Listener
	h.As(0, func() {
		var lc net.ListenConfig
		var err error
		if l, err = lc.Listen(t.Context(), "tcp", "127.0.0.1:8443"); err != nil {
			t.Error(err)
		}
	})
	if l == nil {
		t.FailNow()
	}
	l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				_, _ = fmt.Fprintln(c, h.Label+":")
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
}

// patience bounds one question.
const patience = 10 * time.Second

// askLine connects to a port of a host's loopback address, by TLS if there are settings, says a line, and
// returns the name before the colon of the line that comes.
func askLine(ctx context.Context, h *hosttest.Host, port int, conf *tls.Config) (string, error) {
	c, err := h.Dial(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if conf != nil {
		c = tls.Client(c, conf)
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	name, _, ok := strings.Cut(line, ":")
	if err == nil && !ok {
		err = errors.New("no name: " + line)
	}
	return name, err
}

// dialGRPC is one connection of an application on a host to its Envoy.
func dialGRPC(t *testing.T, h *hosttest.Host, service string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///127.0.0.1:9090", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(service),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return h.Dial(ctx, "tcp", address) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// answersGRPC is nil if a call is answered, with the client's identity.
func answersGRPC(ctx context.Context, c *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out structpb.Struct
	if err := c.Invoke(ctx, "/shop.Inventory/Stock", &structpb.Struct{}, &out); err != nil {
		return err
	}
	if caller := out.GetFields()["caller"].GetStringValue(); caller != client {
		return fmt.Errorf("called by %q", caller)
	}
	return nil
}
