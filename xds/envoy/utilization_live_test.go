package envoy_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// answers are endpoints of one service, which answer as a test says, and count.
type answers struct {
	port  int
	count map[string]*atomic.Int64 // requests by address
}

// startAnswers serves at each address of the loopback interface.
func startAnswers(t *testing.T, addresses []string, answer func(address string, n int64, w http.ResponseWriter)) *answers {
	t.Helper()
	a := &answers{port: envoytest.FreePorts(t, 1)[0], count: map[string]*atomic.Int64{}}
	for _, address := range addresses {
		n := &atomic.Int64{}
		a.count[address] = n
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", at(address, a.port))
		fatalIf(t, err, "listening")
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			answer(address, n.Add(1), w)
		})}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	return a
}

// reset begins to count anew.
func (a *answers) reset() {
	for _, n := range a.count {
		n.Store(0)
	}
}

// startCaller starts an Envoy that calls the endpoints by a rule with a policy, and returns a function that sends
// a number of requests and gives the statuses that were answered.
func (a *answers) startCaller(t *testing.T, version, policy string) (e *envoytest.Envoy, send func(n int) map[int]int) {
	t.Helper()
	listen := envoytest.FreePorts(t, 1)[0]
	var endpoints strings.Builder
	for address := range a.count {
		fmt.Fprintf(&endpoints, "\n  - {address: %s, ports: {http: %d}}", address, a.port)
	}
	m := strings.NewReplacer("LISTEN", strconv.Itoa(listen), "CLIENT", clientIP, "ENDPOINTS", endpoints.String(), "POLICY", policy).Replace(`
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  egress: [{port: {number: LISTEN, name: http, protocol: HTTP}, bind: CLIENT, hosts: ["./*"]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: LISTEN, name: http, protocol: HTTP}]
  endpoints:ENDPOINTS
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  http: [{retries: {attempts: 0}, route: [{destination: {host: orders.shop.mesh}}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: shop}
spec: {host: orders.shop.mesh, trafficPolicy: {POLICY}}
`)
	f := &fixture{ca: newAuthority(t), version: version}
	e = f.start(t, snapshotOf(t, m, ""), proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE", Labels: map[string]string{"app": "web"}})
	client := &http.Client{Transport: &http.Transport{}, Timeout: envoytest.Attempt}
	t.Cleanup(client.CloseIdleConnections)
	return e, func(n int) map[int]int {
		t.Helper()
		out := map[int]int{}
		for range n {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at(clientIP, listen), http.NoBody)
			fatalIf(t, err, "making a request")
			req.Host = "orders.shop.mesh"
			resp, err := client.Do(req)
			fatalIf(t, err, "asking")
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			out[resp.StatusCode]++
		}
		return out
	}
}

// TestEndpointsAreWeighedByTheirLoad: of two endpoints, the one that reports four times the load of the other gets
// a fifth of the requests, by the usual measure or by one that the rule names.
func TestEndpointsAreWeighedByTheirLoad(t *testing.T) {
	t.Parallel()
	const busy, idle = "127.5.1.1", "127.5.1.2"
	for _, version := range envoytest.Ends() {
		for name, c := range map[string]struct{ metric, names string }{
			"application": {"application_utilization", ""},
			"named":       {"named_metrics.queue", ", metricNamesForComputingUtilization: [named_metrics.queue]"},
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				a := startAnswers(t, []string{busy, idle}, func(address string, _ int64, w http.ResponseWriter) {
					load := map[string]string{busy: "0.8", idle: "0.2"}[address]
					w.Header().Set("Endpoint-Load-Metrics", "TEXT "+c.metric+"="+load+",rps_fractional=100")
				})
				_, send := a.startCaller(t, version, "loadBalancer: {backendUtilization: {weightStabilizationPeriod: 0s, weightUpdatePeriod: 0.1s"+c.names+"}}")
				envoytest.Eventually(t, envoytest.Patience, func() error {
					a.reset()
					send(200)
					if share := float64(a.count[busy].Load()) / 200; share < 0.15 || share > 0.25 {
						return fmt.Errorf("the busy endpoint gets %.2f of the requests", share)
					}
					return nil
				})
			})
		}
	}
}

// TestOftenFailingEndpointIsEjected: one of five endpoints fails each other request, so never twice in a row. It is
// ejected by its failure rate, and without a threshold it is not.
func TestOftenFailingEndpointIsEjected(t *testing.T) {
	t.Parallel()
	addresses := []string{"127.5.2.1", "127.5.2.2", "127.5.2.3", "127.5.2.4", "127.5.2.5"}
	for _, version := range envoytest.Ends() {
		for name, c := range map[string]struct {
			threshold string
			ejected   bool
		}{
			"30":   {", failurePercentageThreshold: 30", true},
			"70":   {", failurePercentageThreshold: 70", false},
			"0":    {", failurePercentageThreshold: 0", false},
			"none": {"", false},
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				a := startAnswers(t, addresses, func(address string, n int64, w http.ResponseWriter) {
					if address == addresses[0] && n%2 == 0 {
						w.WriteHeader(http.StatusInternalServerError)
					}
				})
				e, send := a.startCaller(t, version, "loadBalancer: {simple: ROUND_ROBIN}, outlierDetection: {interval: 1s, baseEjectionTime: 600s, maxEjectionPercent: 100"+c.threshold+"}")
				ejected := func() bool { // Envoy asks for 50 requests of five endpoints in an interval
					send(500)
					a.reset()
					send(50)
					return a.count[addresses[0]].Load() == 0
				}
				if c.ejected {
					envoytest.Eventually(t, envoytest.Patience, func() error {
						if !ejected() {
							return fmt.Errorf("%s still gets requests", addresses[0])
						}
						return nil
					})
					return
				}
				for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); { // two sweeps
					if ejected() {
						t.Fatalf("%s is ejected", addresses[0])
					}
				}
				e.NoRejections(t)
			})
		}
	}
}

// TestRetriesToTheApplication: an application that does not listen is asked as often as MeshConfig says, three
// times by default, and once through a port of gRPC.
func TestRetriesToTheApplication(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		for name, c := range map[string]struct {
			settings string
			asked    int
		}{
			"default": {"", 3},
			"none":    {"defaultInboundHttpRetryPolicy: {}\n", 1},
			"four":    {"defaultInboundHttpRetryPolicy: {attempts: 4, backoff: 0.001s}\n", 5},
			"other":   {"defaultInboundHttpRetryPolicy: {attempts: 4, retryOn: \"503,gateway-error\"}\n", 5},
			"unmet":   {"defaultInboundHttpRetryPolicy: {attempts: 4, retryOn: \"retriable-4xx\"}\n", 1},
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				ports := envoytest.FreePorts(t, 3)
				m := strings.NewReplacer("HTTP1", strconv.Itoa(ports[0]), "GRPC1", strconv.Itoa(ports[1]), "APP", strconv.Itoa(ports[2])).Replace(`
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  ingress:
  - {port: {number: HTTP1, name: http, protocol: HTTP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:APP"}
  - {port: {number: GRPC1, name: grpc, protocol: GRPC}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:APP"}
  egress: [{hosts: ["~/*"]}]
`)
				f := &fixture{ca: newAuthority(t), version: version}
				e := f.start(t, snapshotOf(t, m, c.settings), proxyFile{Namespace: "shop", ServiceAccount: "web", IP: serverIP, Interception: "NONE", Labels: map[string]string{"app": "web"}})
				ask := func(port int) int {
					status, _, err := get(t.Context(), at(serverIP, port), nil)
					if err != nil || status != http.StatusServiceUnavailable {
						t.Errorf("answered with %d, %v", status, err)
					}
					return e.Stat(t, fmt.Sprintf("cluster.inbound|%d||;.upstream_cx_connect_fail", port))
				}
				if got := ask(ports[0]); got != c.asked {
					t.Errorf("the application was asked %d times, want %d", got, c.asked)
				}
				if got := ask(ports[1]); got != 1 {
					t.Errorf("at the port of gRPC the application was asked %d times, want 1", got)
				}
			})
		}
	}
}
