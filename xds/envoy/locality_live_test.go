package envoy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// localityRules are the services of the test, by the settings of their rules. All have the same
// endpoints.
func localityRules() map[string]string {
	const detects = "outlierDetection: {consecutive5xxErrors: 1, interval: 0.1s, baseEjectionTime: 60s, maxEjectionPercent: 100}"
	return map[string]string{
		"distance": detects,
		"regions":  "loadBalancer: {localityLbSetting: {failover: [{from: eu, to: ap}]}}, " + detects,
		"labels":   `loadBalancer: {localityLbSetting: {failoverPriority: ["rack=7", version]}}, ` + detects,
		"shares":   `loadBalancer: {localityLbSetting: {distribute: [{from: eu/a/1, to: {"eu/a/*": 70, "eu/b": 20, "us/*": 10}}]}}`,
	}
}

// localityEndpoints are where each endpoint is, by its address.
func localityEndpoints() map[string]string {
	return map[string]string{
		"127.3.1.1": "locality: eu/a/1, labels: {app: orders, version: v2}",
		"127.3.2.1": `locality: eu/b, labels: {app: orders, version: v2, rack: "7"}`,
		"127.3.2.2": "locality: eu/b, labels: {app: orders, version: v1}",
		"127.3.3.1": `locality: us/a, labels: {app: orders, version: v1, rack: "7"}`,
		"127.3.3.2": "locality: us/a, labels: {app: orders, version: v2}",
		"127.3.3.3": "locality: us/b, labels: {app: orders, version: v2}",
		"127.3.4.1": "locality: ap, labels: {app: orders, version: v2}",
	}
}

// TestLocalitiesFailOver asks a real Envoy in eu/a/1, with label version v1, for services whose
// rules say who is next, and kills the endpoints that answer, until nobody is left.
func TestLocalitiesFailOver(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := startLocalityMesh(t, version)
			m.shares(t)
			// Each step is the endpoints of one priority.
			for _, x := range []struct {
				service string
				steps   []string
			}{
				{"distance", []string{"127.3.1.", "127.3.2.", "127.3.3. 127.3.4."}},
				{"regions", []string{"127.3.1.", "127.3.2.", "127.3.4.", "127.3.3."}},
				{"labels", []string{"127.3.3.1", "127.3.2.1", "127.3.1. 127.3.2.2 127.3.3.2 127.3.3.3 127.3.4."}},
			} {
				m.revive(t)
				for i, step := range x.steps {
					m.answeredBy(t, x.service, step)
					if i < len(x.steps)-1 {
						m.kill(step)
					}
				}
			}
			m.NoRejections(t)
		})
	}
}

// localityMesh is an Envoy, and endpoints that can be killed.
type localityMesh struct {
	*envoytest.Envoy

	listen, port int
	client       *http.Client
	mu           sync.Mutex // guards servers
	servers      map[string]*http.Server
}

func startLocalityMesh(t *testing.T, version string) *localityMesh {
	t.Helper()
	ports := envoytest.FreePorts(t, 2)
	m := &localityMesh{listen: ports[0], port: ports[1], client: &http.Client{Transport: &http.Transport{}, Timeout: envoytest.Attempt}, servers: map[string]*http.Server{}}
	t.Cleanup(m.client.CloseIdleConnections)
	var b strings.Builder
	fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  egress: [{port: {number: %d, name: http, protocol: HTTP}, bind: %s, hosts: ["./*"]}]
`, m.listen, clientIP)
	for name, policy := range localityRules() {
		fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %[2]d, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.shop.mesh]
  http: [{retries: {attempts: 0}, route: [{destination: {host: %[1]s.shop.mesh}}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: shop}
spec: {host: %[1]s.shop.mesh, trafficPolicy: {%[3]s}}
`, name, m.listen, policy)
	}
	i := 0
	for address, at := range localityEndpoints() {
		i++
		fmt.Fprintf(&b, "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w%d, namespace: shop}\nspec: {address: %s, ports: {http: %d}, %s}\n", i, address, m.port, at)
	}
	f := &fixture{ca: newAuthority(t), version: version}
	who := proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE", Locality: "eu/a/1", Labels: map[string]string{"app": "web", "version": "v1"}}
	m.revive(t)
	m.Envoy = f.start(t, snapshotOf(t, b.String(), ""), who)
	return m
}

// revive has all endpoints answer, with their addresses.
func (m *localityMesh) revive(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for address := range localityEndpoints() {
		if m.servers[address] != nil {
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", at(address, m.port))
		fatalIf(t, err, "listening")
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, address) })}
		m.servers[address] = s
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
}

// within reports whether an address is one of a step.
func within(address, step string) bool {
	for prefix := range strings.FieldsSeq(step) {
		if strings.HasPrefix(address, prefix) {
			return true
		}
	}
	return false
}

func (m *localityMesh) kill(step string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for address, s := range m.servers {
		if within(address, step) {
			_ = s.Close()
			delete(m.servers, address)
		}
	}
}

func (m *localityMesh) ask(t *testing.T, service string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, "http://"+at(clientIP, m.listen), nil)
	fatalIf(t, err, "making a request")
	req.Host = service + ".shop.mesh"
	res, err := m.client.Do(req)
	if err != nil {
		return err.Error()
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Sprintf("%d %s", res.StatusCode, body)
	}
	return string(body)
}

// answeredBy waits until a hundred requests in a row are answered by the endpoints of a step, and by
// each of them. Until the endpoints before are ejected, their requests fail; no others may answer.
func (m *localityMesh) answeredBy(t *testing.T, service, step string) {
	t.Helper()
	want := 0
	for address := range localityEndpoints() {
		if within(address, step) {
			want++
		}
	}
	end := time.Now().Add(envoytest.Patience)
	seen := map[string]bool{}
	for n := 0; n < 100 || len(seen) < want; {
		got := m.ask(t, service)
		switch {
		case within(got, step):
			n++
			seen[got] = true
		case strings.HasPrefix(got, "503 "):
			n = 0
		default:
			t.Fatalf("%s: %q answers in place of %s", service, got, step)
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %d answers of %s, by %v; the last one is %q", service, n, step, seen, got)
		}
	}
}

// shares sends many requests to the service whose rule distributes them. The deviations of right
// shares are below 1.1 %; by the number of endpoints the shares would be 17, 33 and 50 %.
func (m *localityMesh) shares(t *testing.T) {
	t.Helper()
	const requests, tolerance = 2000, 0.06
	count := map[string]int{}
	for range requests {
		got := m.ask(t, "shares")
		count[got[:min(len(got), len("127.3.1."))]]++
	}
	for prefix, share := range map[string]float64{"127.3.1.": 0.7, "127.3.2.": 0.2, "127.3.3.": 0.1, "127.3.4.": 0} {
		if got := float64(count[prefix]) / requests; got < share-tolerance || got > share+tolerance {
			t.Errorf("%s gets %.3f of the requests, want %.2f (%v)", prefix, got, share, count)
		}
	}
	if count["127.3.1."]+count["127.3.2."]+count["127.3.3."] != requests {
		t.Errorf("some requests are answered by others: %v", count)
	}
}
