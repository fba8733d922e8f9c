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

// resort is one service: how many endpoints it has of each kind.
type resort struct {
	name string
	// live answer; ill answer, too, and are unhealthy by a verdict; failing answer 503, so that
	// Envoy ejects them; silent answer.
	live, ill, failing, silent int
	// detection is of its DestinationRule.
	detection string
	want      string // who answers in the end: live, silent or nobody
	// never is who must not get a single request, from the first one on.
	never []string
}

const ejects = "consecutive5xxErrors: 1, interval: 0.1s, baseEjectionTime: 60s, maxEjectionPercent: 100"

// resorts are the cases. In those with failing endpoints no request may reach a silent one before
// all others are ejected.
func resorts() []resort {
	var out []resort
	for _, n := range []int{1, 2, 4, 100} {
		add := func(name string, r resort) {
			r.name = fmt.Sprintf("%s-%d", name, n)
			out = append(out, r)
		}
		add("unhealthy", resort{live: 1, ill: n, silent: n, want: "live", never: []string{"ill", "silent"}})
		add("ejected", resort{live: 1, ill: n, failing: n, silent: 1, detection: ejects, want: "live", never: []string{"ill", "silent"}})
		add("no-live", resort{ill: n, silent: n, want: "silent", never: []string{"ill"}})
		add("all-ejected", resort{ill: 1, failing: n, silent: n, detection: ejects, want: "silent", never: []string{"ill"}})
		add("panic", resort{live: 1, ill: n, silent: n, detection: ejects + ", minHealthPercent: 50", want: "live", never: []string{"ill", "silent"}})
	}
	return append(out,
		resort{name: "nobody", ill: 3, want: "nobody", never: []string{"ill"}},
		resort{name: "only-silent", silent: 3, want: "silent"})
}

// manifests are the service with its endpoints, of which the addresses begin at 127.2.0.0.
func (r resort) manifests(listen, app int, at *int, kinds map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %[3]d, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: %[1]s}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.shop.mesh]
  http: [{retries: {attempts: 0}, route: [{destination: {host: %[1]s.shop.mesh}}]}]
`, r.name, "", listen)
	if r.detection != "" {
		fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: shop}
spec: {host: %[1]s.shop.mesh, trafficPolicy: {outlierDetection: {%[2]s}}}
`, r.name, r.detection)
	}
	for _, of := range []struct {
		kind, health string
		n            int
	}{{"live", "", r.live}, {"ill", "unhealthy", r.ill}, {"failing", "", r.failing}, {"silent", "silent", r.silent}} {
		for i := range of.n {
			*at++
			address := fmt.Sprintf("127.2.%d.%d", *at/250, *at%250+1)
			kinds[address] = of.kind
			labels := "app: " + r.name
			if of.health != "" {
				labels += ", test/health: " + of.health
			}
			fmt.Fprintf(&b, "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s-%s-%d, namespace: shop}\n"+
				"spec: {address: %s, ports: {http: %d}, labels: {%s}, weight: %d}\n", r.name, of.kind, i, address, app, labels, i%7+1)
		}
	}
	return b.String()
}

// TestSilentEndpointsAreTheLastResort sends requests through real Envoys to services with live,
// unhealthy, failing and silent endpoints. A silent one gets no request while another one
// answers, whatever number of others is unhealthy or ejected; it gets all when no other is left.
func TestSilentEndpointsAreTheLastResort(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			kinds, asked := map[string]string{}, &counter{n: map[string]int{}}
			app := asked.serve(t, kinds)
			listen := envoytest.FreePorts(t, 1)[0]
			var manifests strings.Builder
			count := 0
			fmt.Fprintf(&manifests, `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  egress: [{port: {number: %d, name: http, protocol: HTTP}, bind: %s, hosts: ["./*"]}]
`, listen, clientIP)
			for _, r := range resorts() {
				manifests.WriteString(r.manifests(listen, app, &count, kinds))
			}
			f := &fixture{ca: newAuthority(t), version: version}
			who := proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE", Labels: map[string]string{"app": "web"}}
			e := f.start(t, snapshotOf(t, manifests.String(), ""), who)
			for _, r := range resorts() {
				asked.check(t, r, at(clientIP, listen))
			}
			e.NoRejections(t)
		})
	}
}

// counter counts the requests that endpoints get, by service and kind.
type counter struct {
	mu sync.Mutex // guards all following fields
	n  map[string]int
}

// serve answers for all endpoints: which one is asked is the address that the request came to.
func (c *counter) serve(t *testing.T, kinds map[string]string) (port int) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "0.0.0.0:0")
	fatalIf(t, err, "listening")
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := "an address that is no endpoint"
		if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && kinds[a.IP.String()] != "" {
			kind = kinds[a.IP.String()]
		}
		c.mu.Lock()
		c.n[r.Host+" "+kind]++
		c.mu.Unlock()
		if kind == "failing" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, kind)
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return portOf(t, l)
}

func (c *counter) of(r resort, kind string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[r.name+".shop.mesh "+kind]
}

func (c *counter) check(t *testing.T, r resort, listener string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}, Timeout: envoytest.Attempt}
	defer client.CloseIdleConnections()
	ask := func() string {
		req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, "http://"+listener, nil)
		fatalIf(t, err, "making a request")
		req.Host = r.name + ".shop.mesh"
		res, err := client.Do(req)
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
	want := func(answer string) bool {
		return answer == r.want || r.want == "nobody" && strings.HasPrefix(answer, "503 no healthy upstream")
	}
	// A failing endpoint is ejected after its first answer; Envoy's workers hear of several within
	// a second together.
	end := time.Now().Add(envoytest.Patience)
	for wanted := 0; r.failing > 0 && wanted < 50*(r.failing+1) && time.Now().Before(end); {
		switch got := ask(); {
		case want(got):
			wanted++
		case got != "503 failing" || r.want == "silent" && wanted > 0:
			t.Errorf("%s: %q after %d answers of %s endpoints", r.name, got, wanted, r.want)
			return
		default:
			wanted = 0
		}
	}
	for i := range 200 {
		if got := ask(); !want(got) {
			t.Errorf("%s: request %d is answered by %q, want %s", r.name, i, got, r.want)
			break
		}
	}
	for _, kind := range r.never {
		if n := c.of(r, kind); n > 0 {
			t.Errorf("%s: %d requests to %s endpoints", r.name, n, kind)
		}
	}
}
