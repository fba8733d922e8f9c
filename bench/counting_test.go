package bench

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
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

// connections is how many requests are under way at once.
const connections = 4

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
	s := size{starts: 8, rounds: 12, requests: 1500}
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
