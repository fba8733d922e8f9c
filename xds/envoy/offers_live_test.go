package envoy_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// offersMesh has a host whose routes lead to every kind of service. All of them are at
// servers that record what is offered to them, and close the connection.
const offersMesh = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  egress:
  - {port: {number: FRONT, name: http, protocol: HTTP}, bind: 127.0.0.11, hosts: ["./*"]}
  - {port: {number: ANY, name: any, protocol: ""}, bind: 127.0.0.11, hosts: ["./undeclared.mesh"]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: front, namespace: shop}
spec: {hosts: [front.mesh], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: FRONT, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: front, namespace: shop}
spec:
  hosts: [front.mesh]
  http:
  - match: [{uri: {prefix: /weighted}}]
    retries: {attempts: 0}
    route: [{destination: {host: undeclared.mesh, port: {number: ANY}}, weight: 50}, {destination: {host: declared.mesh}, weight: 50}]
  - match: [{uri: {prefix: /subset}}]
    retries: {attempts: 0}
    route: [{destination: {host: undeclared.mesh, port: {number: ANY}, subset: v1}}]
  - match: [{uri: {prefix: /originates}}]
    retries: {attempts: 0}
    route: [{destination: {host: undeclared.mesh, port: {number: ANY}, subset: simple}}]
  - match: [{uri: {prefix: /mirrored}}]
    retries: {attempts: 0}
    mirror: {host: mirror.mesh}
    route: [{destination: {host: undeclared.mesh, port: {number: ANY}}}]
  - match: [{uri: {prefix: /declared}}]
    retries: {attempts: 0}
    mirror: {host: undeclared.mesh, port: {number: ANY}}
    route: [{destination: {host: declared.mesh}}]
  - retries: {attempts: 0}
    route: [{destination: {host: undeclared.mesh, port: {number: ANY}}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: undeclared, namespace: shop}
spec:
  host: undeclared.mesh
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: simple, labels: {version: simple}, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: mirror, namespace: shop}
spec: {host: mirror.mesh, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}
`

// helloServer records which ALPN protocols the connections to it offer.
type helloServer struct {
	mu     sync.Mutex
	offers []string
	port   int
}

func newHelloServer(t *testing.T, ca *authority) *helloServer {
	t.Helper()
	s := &helloServer{}
	pair := ca.pair(t, ordersID)
	s.port = accept(t, func(c net.Conn) {
		_ = tls.Server(c, &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
			GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.offers = append(s.offers, strings.Join(h.SupportedProtos, ","))
				return nil, errors.New("that is all")
			},
		}).HandshakeContext(t.Context())
	})
	return s
}

// take returns what was offered, each once.
func (s *helloServer) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Compact(slices.Sorted(slices.Values(s.offers)))
	s.offers = nil
	return out
}

// offersFixture is a client of offersMesh.
type offersFixture struct {
	fixture
	front, any int // ports of the client's listeners
	servers    map[string]*helloServer
}

func newOffersFixture(t *testing.T, version string) *offersFixture {
	t.Helper()
	p := envoytest.FreePorts(t, 2)
	f := &offersFixture{
		fixture: fixture{ca: newAuthority(t), version: version},
		front:   p[0], any: p[1], servers: map[string]*helloServer{},
	}
	var manifests strings.Builder
	manifests.WriteString(offersMesh)
	for _, w := range []struct{ host, name, port, labels string }{
		{"undeclared", "plain", "{number: ANY, name: any}", ""},
		{"undeclared", "subset", "", "version: v1"},
		{"undeclared", "simple", "", "version: simple"},
		{"declared", "declared", "{number: FRONT, name: http, protocol: HTTP}", ""},
		{"mirror", "mirror", "{number: FRONT, name: http}", ""},
	} {
		server := newHelloServer(t, f.ca)
		f.servers[w.name] = server
		if w.port != "" {
			_, _ = fmt.Fprintf(&manifests, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec: {hosts: [%[1]s.mesh], location: MESH_INTERNAL, resolution: STATIC, ports: [%[2]s], workloadSelector: {labels: {app: %[1]s}}}
`, w.host, w.port)
		}
		_, _ = fmt.Fprintf(&manifests, `---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: %s, namespace: shop}
spec: {address: 127.0.0.1, ports: {any: %[2]d, http: %[2]d}, labels: {app: %[3]s, %[4]s}, serviceAccount: orders}
`, w.name, server.port, w.host, w.labels)
	}
	ports := strings.NewReplacer("FRONT", strconv.Itoa(f.front), "ANY", strconv.Itoa(f.any))
	f.client = f.start(t, snapshotOf(t, ports.Replace(manifests.String()), ""), proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE"})
	return f
}

// send sends a request for a path, or a line if it is empty.
func (f *offersFixture) send(t *testing.T, path string) {
	t.Helper()
	if path == "" {
		_, _ = sayLine(t.Context(), at(clientIP, f.any))
		return
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at(clientIP, f.front)+path, nil)
	fatalIf(t, err, "making a request")
	req.Host = "front.mesh"
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: envoytest.Attempt}
	if resp, err := client.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}

// offers sends to a path until all of some servers had connections, and returns what these
// and all others were offered.
func (f *offersFixture) offers(t *testing.T, path string, want map[string]string) map[string][]string {
	t.Helper()
	got := map[string][]string{}
	take := func() {
		for name, s := range f.servers {
			got[name] = append(got[name], s.take()...)
		}
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		f.send(t, path)
		take()
		for name := range want {
			if len(got[name]) == 0 {
				return fmt.Errorf("%q: no connection to %s", path, name)
			}
		}
		return nil
	})
	envoytest.Eventually(t, envoytest.Patience, func() error { // mirrored copies go their own way
		for line := range strings.Lines(f.client.Admin(t, "/stats?usedonly&filter=outbound.*active$")) {
			if !strings.HasSuffix(line, ": 0\n") {
				return errors.New("there is " + line)
			}
		}
		return nil
	})
	take()
	return got
}

// TestOnlyHTTPToUndeclaredPortsAnnouncesItself: requests offer Istio's protocols for HTTP to
// ports without a declared protocol, and only there: not where a rule asks for TLS of its own,
// not to declared ports, not in copies, and not where the connection is TCP.
func TestOnlyHTTPToUndeclaredPortsAnnouncesItself(t *testing.T) {
	t.Parallel()
	const announced = "istio-http/1.1,istio-h2"
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			f := newOffersFixture(t, version)
			for path, want := range map[string]map[string]string{
				"/":           {"plain": announced, "subset": announced, "simple": announced},
				"/weighted":   {"plain": announced, "subset": announced, "simple": announced, "declared": "istio"},
				"/subset":     {"subset": announced},
				"/originates": {"simple": "http/1.1"},
				"/mirrored":   {"plain": announced, "subset": announced, "simple": announced, "mirror": "http/1.1"},
				"/declared":   {"declared": "istio", "plain": "istio", "subset": "istio", "simple": "istio"},
				"":            {"plain": "istio", "subset": "istio", "simple": "istio"},
			} {
				for name, offers := range f.offers(t, path, want) {
					for _, offer := range offers {
						if offer != want[name] {
							t.Errorf("%q: %s was offered %q, want %q", path, name, offer, want[name])
						}
					}
				}
			}
			f.client.NoRejections(t)
		})
	}
}
