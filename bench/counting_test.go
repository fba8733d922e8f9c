package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// variant is a mesh that reports something.
type variant struct {
	name string
	// config are lines of MeshConfig; LOG is a file, and PORT that of the receiver of traces.
	config string
	// manifest is one more manifest.
	manifest string
	budget   budget
	// check says whether the mesh reported what it should.
	check func(*counted) error
}

// budget is of the corrected ratio: what its 95 % interval ends below, or what its median is at
// most; 0 is none.
type budget struct{ interval, median float64 }

func (b budget) text() string {
	switch {
	case b.interval > 0:
		return fmt.Sprintf("interval < %.2f", b.interval)
	case b.median > 0:
		return fmt.Sprintf("median ≤ %.2f", b.median)
	default:
		return "–"
	}
}

func (b budget) result(values []float64) string {
	_, high := intervalOf(values)
	switch {
	case b == budget{}:
		return ""
	case b.interval > 0 && high < b.interval, b.median > 0 && medianOf(values) <= b.median:
		return "met"
	default:
		return "**missed**"
	}
}

const (
	without    = "nothing"
	idle       = "nothing, another mesh (idle control)"
	counters   = "metrics, counters only"
	histograms = "metrics, with histograms"
)

// variants are the meshes, the one without anything first, the idle control second.
func variants() []variant {
	return []variant{
		{name: without, check: (*counted).silent},
		{name: idle, check: (*counted).silent},
		{
			name: counters, config: "defaultProviders: {metrics: [prometheus]}\n", budget: budget{interval: 1.10},
			manifest: `
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec:
  metrics:
  - overrides:
    - {match: {metric: REQUEST_DURATION}, disabled: true}
    - {match: {metric: REQUEST_SIZE}, disabled: true}
    - {match: {metric: RESPONSE_SIZE}, disabled: true}
`,
			check: func(m *counted) error { return m.hasCounted(false) },
		},
		{
			name: histograms, config: "defaultProviders: {metrics: [prometheus]}\n", budget: budget{median: 1.2},
			check: func(m *counted) error { return m.hasCounted(true) },
		},
		{name: "access log, Istio's format, to a file", config: "accessLogFile: LOG\n", check: (*counted).hasLogged},
		{
			name:   "traces of 1 % of requests, OTLP over gRPC",
			config: "extensionProviders: [{name: otlp, opentelemetry: {service: collector.watch.internal, port: 4317}}]\ndefaultProviders: {tracing: [otlp]}\n",
			manifest: `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: watch}
spec:
  hosts: [collector.watch.internal]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC, targetPort: PORT}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec:
  tracing:
  - {providers: [{name: otlp}], randomSamplingPercentage: 1}
`,
			check: (*counted).hasTraced,
		},
	}
}

// services are names of the same application: each is a label of its own at the client.
func services() []string { return []string{"a", "b", "c", "d", "e"} }

const (
	countingService = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: NAME, namespace: shop}
spec:
  hosts: [NAME.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: echo}}
`
	countingMesh = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: client, namespace: shop}
spec: {address: 127.0.0.11, labels: {app: client}, serviceAccount: client}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: echo, namespace: shop}
spec: {address: 127.0.0.12, labels: {app: echo}, serviceAccount: echo}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: shop}
spec:
  workloadSelector: {labels: {app: client}}
  egress: [{port: {number: 9080, name: http, protocol: HTTP}, bind: 127.0.0.11, hosts: ["./*"]}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: echo, namespace: shop}
spec:
  workloadSelector: {labels: {app: echo}}
  ingress: [{port: {number: 9080, name: http, protocol: HTTP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:18081"}]
  egress: [{hosts: ["~/*"]}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mesh, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
`
)

// counted is a running mesh of two hosts, client and echo, under load in its turn.
type counted struct {
	*meshtest.Mesh
	b *testing.B
	variant
	logFile string
	spans   *atomic.Int64
	asked   int // requests that were answered, those of before the load included
	callers []*caller
	// Envoy and agent of the client and of echo.
	clientEnvoy, clientAgent, echoEnvoy, echoAgent int
}

// connections is how many requests are under way at once.
const connections = 4

// newCounted starts a mesh and waits until requests get through.
func newCounted(b *testing.B, v variant) *counted {
	b.Helper()
	m := &counted{
		Mesh: meshtest.New(b, "", map[string]int{"http": 18081}), b: b, variant: v,
		logFile: filepath.Join(b.TempDir(), "access.log"), spans: &atomic.Int64{},
	}
	m.Write("mesh.yaml", countingMesh)
	for _, name := range services() {
		m.Write(name+".yaml", strings.ReplaceAll(countingService, "NAME", name))
	}
	if v.manifest != "" {
		m.Write("more.yaml", strings.ReplaceAll(v.manifest, "PORT", m.receiver()))
	}
	config := filepath.Join(b.TempDir(), "mesh.yaml")
	text := "defaultConfig: {concurrency: 1}\n" + strings.ReplaceAll(v.config, "LOG", m.logFile)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	m.serve()
	m.StartServer("--mesh-config", config)
	var agents []*meshtest.Process
	for i, name := range []string{"client", "echo"} {
		h := meshtest.Host{Name: name, Workload: "shop/" + name, Address: 11 + i}
		h.Agent = []string{"--drain-time", "1s", "--http-address", m.AgentHTTP(h.Address)}
		_, agent := m.StartHost(h)
		agents = append(agents, agent)
	}
	b.Cleanup(func() {
		for _, p := range agents { // each drains: all at once
			if !p.Ended() {
				_ = syscall.Kill(p.PID(), syscall.SIGTERM)
			}
		}
	})
	m.AwaitLive("client", "echo")
	m.clientAgent, m.echoAgent = agents[0].PID(), agents[1].PID()
	m.clientEnvoy, m.echoEnvoy = m.EnvoyPID("client"), m.EnvoyPID("echo")
	for _, pid := range []int{m.clientEnvoy, m.echoEnvoy} {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !strings.Contains(string(line), "--concurrency\x001\x00") {
			b.Fatalf("the Envoy does not have one worker: %q, %v", line, err)
		}
	}
	for range connections {
		c := &caller{}
		envoytest.Eventually(b, envoytest.Patience, func() error {
			conn, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", net.JoinHostPort(m.Address(11), "9080"))
			if err != nil {
				return err
			}
			c.conn, c.r = conn, bufio.NewReader(conn)
			for _, name := range services() {
				if err := c.ask(name, http.StatusOK); err != nil {
					return errors.Join(err, conn.Close())
				}
				m.asked++
			}
			return nil
		})
		b.Cleanup(func() { _ = c.conn.Close() })
		m.callers = append(m.callers, c)
	}
	return m
}

// serve runs the application of echo, which answers with the status that is asked for.
func (m *counted) serve() {
	m.b.Helper()
	l, err := (&net.ListenConfig{}).Listen(m.b.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", m.Port("http")))
	if err != nil {
		m.b.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		if err != nil || code < http.StatusOK || code > 599 {
			code = http.StatusBadRequest
		}
		w.WriteHeader(code)
	})}
	go func() { _ = s.Serve(l) }()
	m.b.Cleanup(func() { _ = s.Close() })
}

// receiver runs a receiver of traces; it gives its port.
func (m *counted) receiver() string {
	m.b.Helper()
	l, err := (&net.ListenConfig{}).Listen(m.b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		m.b.Fatal(err)
	}
	s := grpc.NewServer()
	coltrace.RegisterTraceServiceServer(s, &sink{spans: m.spans})
	go func() { _ = s.Serve(l) }()
	m.b.Cleanup(s.Stop)
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		m.b.Fatal(err)
	}
	return port
}

// sink is a receiver of traces that counts and forgets them.
type sink struct {
	coltrace.UnimplementedTraceServiceServer
	spans *atomic.Int64
}

// Export takes spans.
func (s *sink) Export(_ context.Context, in *coltrace.ExportTraceServiceRequest) (*coltrace.ExportTraceServiceResponse, error) {
	for _, r := range in.GetResourceSpans() {
		for _, scope := range r.GetScopeSpans() {
			s.spans.Add(int64(len(scope.GetSpans())))
		}
	}
	return &coltrace.ExportTraceServiceResponse{}, nil
}

// caller is a connection to the client's Envoy that is kept.
type caller struct {
	conn net.Conn
	r    *bufio.Reader
}

// ask sends a request, and waits for the answer with a status.
func (c *caller) ask(service string, code int) error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c.conn, "GET /%d HTTP/1.1\r\nhost: %s.shop.internal\r\n\r\n", code, service); err != nil {
		return err
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != code {
		return fmt.Errorf("answered with %d, not %d", res.StatusCode, code)
	}
	return nil
}

// cost is the CPU of a request, in microseconds.
type cost struct{ envoys, agents float64 }

func (c cost) all() float64 { return c.envoys + c.agents }

// load sends n requests and gives the CPU that one took.
func (m *counted) load(n int) cost {
	m.b.Helper()
	envoys, agents := m.clocks()
	errs := make([]error, len(m.callers))
	var wg sync.WaitGroup
	for i, c := range m.callers {
		wg.Go(func() {
			for range n / connections {
				if errs[i] = c.ask("a", http.StatusOK); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		m.b.Fatalf("%s: %v", m.name, err)
	}
	sent := n / connections * connections
	m.asked += sent
	envoysNow, agentsNow := m.clocks()
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(sent) }
	return cost{each(envoysNow - envoys), each(agentsNow - agents)}
}

// clocks are the CPU times of both Envoys and of both agents.
func (m *counted) clocks() (envoys, agents time.Duration) {
	m.b.Helper()
	return clock(m.b, m.clientEnvoy) + clock(m.b, m.echoEnvoy), clock(m.b, m.clientAgent) + clock(m.b, m.echoAgent)
}

// clock is the CPU time of a process: its threads together, those that have ended too, in
// nanoseconds, where /proc/PID/stat has hundredths of a second.
func clock(b *testing.B, pid int) time.Duration {
	b.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|2, &ts); err != nil {
		b.Fatalf("reading the clock of process %d: %v", pid, err)
	}
	return time.Duration(ts.Nano())
}

// silent says whether nothing was reported.
func (m *counted) silent() error {
	page, err := m.Metrics(11)
	if err == nil && len(page.Matching("istio_request")) != 0 {
		err = fmt.Errorf("%s: %v", m.name, page.Matching("istio_request"))
	}
	return err
}

// hasCounted says whether both sides have counted all requests.
func (m *counted) hasCounted(withHistograms bool) error {
	for host, side := range map[int]string{11: "source", 12: "destination"} {
		page, err := m.Metrics(host)
		if err != nil {
			return err
		}
		n, durations := page.Sum("istio_requests_total", "reporter", side, "response_code", "200"), page.Sum("istio_request_duration_milliseconds_count", "reporter", side, "response_code", "200")
		switch {
		case n < float64(m.asked):
			return fmt.Errorf("%s: host %d counted %v of %d requests", m.name, host, n, m.asked)
		case withHistograms && durations != n, !withHistograms && durations != 0:
			return fmt.Errorf("%s: host %d has %v durations of %v requests", m.name, host, durations, n)
		}
	}
	return nil
}

// hasLogged says whether there are lines of both sides.
func (m *counted) hasLogged() error {
	const aLine = 150 // is longer
	info, err := os.Stat(m.logFile)
	if err == nil && info.Size() < 2*aLine*int64(m.asked) {
		err = fmt.Errorf("the access log of %d requests has %d bytes", m.asked, info.Size())
	}
	return err
}

// hasTraced says whether a part of the requests was traced, with two spans each.
func (m *counted) hasTraced() error {
	share := float64(m.spans.Load()) / 2 / float64(m.asked)
	if m.asked > 5000 && (share < 0.005 || share > 0.02) || share == 0 {
		return fmt.Errorf("%d spans of %d requests", m.spans.Load(), m.asked)
	}
	return nil
}

// pairs are costs beside one another, of one round each.
type pairs struct{ on, off []float64 }

func (p pairs) ratios() []float64 { return over(p.on, p.off) }

// variantCosts are those of a variant in all rounds.
type variantCosts struct {
	with           pairs
	envoys, agents []float64
}

// corrected are the ratios of each round by those of the idle control in the same round.
func (v variantCosts) corrected(idle pairs) []float64 { return over(v.with.ratios(), idle.ratios()) }

// size is how much is measured: so many times all meshes are started anew, so many rounds each,
// so many requests a mesh and turn.
type size struct{ starts, rounds, requests int }

// BenchmarkCounting measures what reports of requests cost, and writes the page to the file that
// BENCH_COUNTING names. BENCH_ONLY=try is a fraction of it, to see whether it works.
func BenchmarkCounting(b *testing.B) {
	envoytest.Binary(b)
	s := size{starts: 4, rounds: 6, requests: 1500}
	if os.Getenv("BENCH_ONLY") == "try" {
		s = size{starts: 1, rounds: 2, requests: 600}
	}
	r := &countingReport{size: s, began: time.Now(), load: []string{loadAverage(b)}, costs: make([]variantCosts, len(variants()))}
	for i := range s.starts {
		b.Run(strconv.Itoa(i), func(b *testing.B) { countingStart(b, r, i == s.starts-1) })
	}
	if b.Failed() {
		return
	}
	r.load = append(r.load, loadAverage(b))
	text := r.markdown()
	b.Log("\n" + text)
	if path := os.Getenv("BENCH_COUNTING"); path != "" {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
}

// countingStart starts all meshes and measures some rounds; the last start also measures series.
func countingStart(b *testing.B, r *countingReport, last bool) {
	b.Helper()
	var meshes []*counted
	for _, v := range variants() {
		m := newCounted(b, v)
		m.load(r.size.requests) // caches get warm
		meshes = append(meshes, m)
	}
	base := meshes[0]
	for round := range r.size.rounds {
		for i := range len(meshes) - 1 {
			// Everybody is first, last, before and behind the mesh without anything equally often.
			at := 1 + (i+round)%(len(meshes)-1)
			var on, off cost
			if (at+round)%2 == 0 {
				on, off = meshes[at].load(r.size.requests), base.load(r.size.requests)
			} else {
				off, on = base.load(r.size.requests), meshes[at].load(r.size.requests)
			}
			c := &r.costs[at]
			c.with.on, c.with.off = append(c.with.on, on.all()), append(c.with.off, off.all())
			c.envoys, c.agents = append(c.envoys, on.envoys), append(c.agents, on.agents)
			none := &r.costs[0]
			none.envoys, none.agents = append(none.envoys, off.envoys), append(none.agents, off.agents)
			none.with.on = append(none.with.on, off.all())
		}
	}
	for _, m := range meshes {
		envoytest.Eventually(b, envoytest.Patience, func() error { return m.check(m) })
	}
	if last {
		for _, m := range meshes {
			if m.name == counters || m.name == histograms {
				r.series = append(r.series, m.manySeries())
			}
		}
	}
}

// seriesCost is what label sets of requests cost the client's host.
type seriesCost struct {
	name string
	// few and many are how many there were.
	few, many int
	// envoy and agent are bytes a label set, of memory that is no page of a file: Envoy's before
	// anybody reads the page, and both after that.
	envoy, envoyRead, agentRead float64
	// envoyNow and agentNow are MB that the processes hold with many, after all.
	envoyNow, agentNow float64
	// of a scrape, in ms.
	scrapeFew, scrapeMany []cost
}

// manySeries makes label sets: a status of a service is one.
func (m *counted) manySeries() seriesCost {
	m.b.Helper()
	out := seriesCost{name: m.name}
	ask := func(service string, n int) {
		for i := range n {
			if err := m.callers[0].ask(service, http.StatusOK+i); err != nil {
				m.b.Fatal(err)
			}
		}
	}
	count := func() int {
		page, err := m.Metrics(11)
		if err != nil {
			m.b.Fatal(err)
		}
		return len(page.Matching("istio_requests_total", "reporter", "source"))
	}
	own := func() (envoy, agent usage) {
		pause(histogramsMerged)
		return usageOf(m.b, m.clientEnvoy), usageOf(m.b, m.clientAgent)
	}
	ask("a", 100-len(services())+1)
	envoyFew, _ := own()
	out.few, out.scrapeFew = count(), m.scrapes()
	envoyFewRead, agentFewRead := own()
	for _, name := range services() {
		ask(name, 390)
	}
	envoyMany, _ := own()
	out.many, out.scrapeMany = count(), m.scrapes()
	envoyRead, agentRead := own()
	each := func(now, before usage) float64 { return (now.own - before.own) * (1 << 20) / float64(out.many-out.few) }
	out.envoy = each(envoyMany, envoyFew)
	out.envoyRead, out.agentRead = each(envoyRead, envoyFewRead), each(agentRead, agentFewRead)
	out.envoyNow, out.agentNow = envoyRead.rss, agentRead.rss
	return out
}

// histogramsMerged is more than Envoy takes to merge the histograms of its workers, every five
// seconds.
const histogramsMerged = 6 * time.Second

// scrapes reads the page of the client's host some times, and gives what each took of its Envoy
// and its agent, in ms.
func (m *counted) scrapes() []cost {
	m.b.Helper()
	var out []cost
	for range 10 {
		envoy, agent := clock(m.b, m.clientEnvoy), clock(m.b, m.clientAgent)
		req, err := http.NewRequestWithContext(m.b.Context(), http.MethodGet, "http://"+m.AgentHTTP(11)+"/stats/prometheus", http.NoBody)
		if err != nil {
			m.b.Fatal(err)
		}
		res, err := (&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			m.b.Fatal(err)
		}
		_, err = io.Copy(io.Discard, res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != http.StatusOK {
			m.b.Fatalf("reading a page: %s, %v", res.Status, err)
		}
		ms := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
		out = append(out, cost{ms(clock(m.b, m.clientEnvoy) - envoy), ms(clock(m.b, m.clientAgent) - agent)})
	}
	return out
}

// loadAverage is the machine's load of the last minute.
func loadAverage(b *testing.B) string {
	b.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		b.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
