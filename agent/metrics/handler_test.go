package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// application serves a page of metrics.
func application(t *testing.T, h http.HandlerFunc) *url.URL {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	u, err := ParseApp(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// failures is the metric about a part that could not be read.
func failures(t *testing.T, page string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, m := range parsePage(t, page)["fairlead_agent_stats_failures_total"].GetMetric() {
		out[m.GetLabel()[0].GetValue()] = int(m.GetCounter().GetValue())
	}
	return out
}

// TestPartsThatFailHideNoOthers: each part in turn cannot be read, or not to its end. The page has
// the others, and what was read.
func TestPartsThatFailHideNoOthers(t *testing.T) {
	t.Parallel()
	const lines = "# TYPE app_jobs counter\napp_jobs 7\n"
	good := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, lines) }
	envoyGood := (&fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 2}}}).open
	for name, c := range map[string]struct {
		envoy  func(context.Context, string) (io.ReadCloser, error)
		app    http.HandlerFunc
		failed string
		lacks  []string
	}{
		"none":          {envoyGood, good, "", nil},
		"envoy_refuses": {func(context.Context, string) (io.ReadCloser, error) { return nil, errors.New("refused") }, good, "envoy", []string{"istio_requests_total", "envoy_server_live"}},
		"envoy_breaks":  {(&fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 2}}, cut: 600}).open, good, "envoy", nil},
		"app_status":    {envoyGood, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, "application", []string{"app_jobs"}},
		"app_redirects": {envoyGood, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/elsewhere" {
				good(w, r)
				return
			}
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, "application", []string{"app_jobs"}},
		"app_breaks": {envoyGood, func(w http.ResponseWriter, r *http.Request) {
			good(w, r)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "application", nil},
		"app_never_ends": {envoyGood, func(w http.ResponseWriter, r *http.Request) {
			good(w, r)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "application", nil},
		"app_is_endless": {envoyGood, func(w http.ResponseWriter, r *http.Request) {
			good(w, r)
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
					return
				}
			}
		}, "application", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(r *rig, _ *Config) {
				r.open, r.process, r.app = c.envoy, Process{PID: 1, Since: time.Now()}, application(t, c.app)
			})
			families, page := r.scrape(t)
			for part, n := range failures(t, page) {
				if want := part == c.failed; want != (n == 1) {
					t.Errorf("%s failed %d times", part, n)
				}
			}
			for _, name := range []string{"istio_requests_total", "envoy_server_live", "app_jobs", "fairlead_agent_request_label_sets"} {
				want := true
				for _, lacks := range c.lacks {
					want = want && lacks != name
				}
				if c.failed == "envoy" && c.lacks == nil && name != "app_jobs" {
					continue // as far as it was read
				}
				if got := families[name] != nil; got != want {
					t.Errorf("%s is on the page: %v", name, got)
				}
			}
		})
	}
}

// TestApplicationsCannotSpeakForOthers: an application's families that Envoy or the agent have,
// and Istio's, are left out; its Go metrics stay beside the agent's.
func TestApplicationsCannotSpeakForOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, _ *Config) {
		r.open = (&fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 2}}}).open
		r.process = Process{PID: 1, Since: time.Now()}
		r.app = application(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "# TYPE istio_requests_total counter\nistio_requests_total{reporter=\"source\"} 1e9\nenvoy_server_live 0\n"+
				"fairlead_agent_stats_failures_total{part=\"envoy\"} 5\ngo_goroutines 12345\nistio_agent_go_goroutines 3\n")
		})
	})
	prometheus.WrapRegistererWithPrefix("istio_agent_", r.own).MustRegister(collectors.NewGoCollector())
	families, page := r.scrape(t)
	if n := total(families["istio_requests_total"]); n != 2 {
		t.Errorf("%d requests", n)
	}
	if v := families["envoy_server_live"].GetMetric()[0].GetGauge().GetValue(); v != 1 {
		t.Errorf("Envoy is live: %v", v)
	}
	if n := failures(t, page)["envoy"]; n != 0 {
		t.Errorf("%d failures", n)
	}
	if n := families["go_goroutines"].GetMetric()[0].GetUntyped().GetValue(); n != 12345 {
		t.Errorf("the application has %v goroutines", n)
	}
	if n := families["istio_agent_go_goroutines"].GetMetric(); len(n) != 1 || n[0].GetGauge() == nil {
		t.Errorf("goroutines of the agent: %v", n)
	}
	for _, m := range families["fairlead_agent_stats_dropped_lines_total"].GetMetric() {
		want := 0.0
		if m.GetLabel()[0].GetValue() == "application" {
			want = 5 // one type and four samples
		}
		if v := m.GetCounter().GetValue(); v != want {
			t.Errorf("%v lines of %s were left out", v, m.GetLabel()[0].GetValue())
		}
	}
}

// TestApplicationIsOnThisHost: other addresses are refused, by flag or when they are dialled.
func TestApplicationIsOnThisHost(t *testing.T) {
	t.Parallel()
	for s, ok := range map[string]bool{
		"http://127.0.0.1:8080/metrics": true, "http://127.0.0.1:8080": true, "https://[::1]:8443/m?x=1": true, "http://localhost:80/": true, "http://10.0.0.7:8080/": true,
		"http://metadata.google.internal/": false, "file:///etc/passwd": false, "127.0.0.1:8080": false, "http://u:p@127.0.0.1/": false, "http:///metrics": false, "": false,
	} {
		u, err := ParseApp(s)
		if (err == nil) != ok {
			t.Errorf("%q: %v, %v", s, u, err)
		}
	}
	h, err := NewHandler(HandlerConfig{
		Logger: newRig(t, nil).log, Own: prometheus.NewRegistry(), Collector: func() *Collector { return nil },
		Address: func() netip.Addr { return netip.MustParseAddr("10.0.0.7") },
	})
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end() // nothing is dialled
	for at, ok := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "[::ffff:127.0.0.1]:1": true, "10.0.0.7:1": true, "10.0.0.8:1": false, "169.254.169.254:80": false, "example.com:80": false} {
		_, err := h.dial(ended, "tcp", at)
		if allowed := errors.Is(err, context.Canceled); allowed != ok {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// TestPageThatIsItsOwnApplication ends, and says why.
func TestPageThatIsItsOwnApplication(t *testing.T) {
	t.Parallel()
	var page http.Handler
	var asked atomic.Int32
	r := newRig(t, func(r *rig, _ *Config) {
		r.open, r.process = (&fakeEnvoy{}).open, Process{PID: 1, Since: time.Now()}
		r.app = application(t, func(w http.ResponseWriter, req *http.Request) {
			asked.Add(1)
			page.ServeHTTP(w, req)
		})
	})
	page = r.page
	_, text := r.scrape(t)
	if n := asked.Load(); failures(t, text)["application"] != 1 || n != 1 {
		t.Errorf("the page was requested %d times: %v", n, failures(t, text))
	}
}

// TestSlowReadersDoNotBlock: readers that take nothing have the places of the page, and no others;
// Envoy's counters are read meanwhile.
func TestSlowReadersDoNotBlock(t *testing.T) {
	t.Parallel()
	series := map[string][]float64{}
	for i := range 100 { // more than the buffers of a connection hold
		series[inputLabels(2*i)] = []float64{1}
	}
	r := newRig(t, func(r *rig, _ *Config) {
		r.open, r.process = constant(t, series), Process{PID: 1, Since: time.Now()}
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	for range maxPages {
		go func() {
			r.page.ServeHTTP(&stuck{header: http.Header{}, until: ctx}, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
			ended <- struct{}{}
		}()
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if n := len(r.page.pages); n < maxPages {
			return fmt.Errorf("%d pages are written", n)
		}
		return nil
	})
	rec := httptest.NewRecorder()
	r.page.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	if rec.Code != http.StatusServiceUnavailable {
		t.Errorf("one more page: status %d", rec.Code)
	}
	if _, err := r.read(t.Context(), requestsOnly, nil); err != nil {
		t.Errorf("reading Envoy beside slow readers: %v", err)
	}
	stop()
	for range maxPages {
		<-ended
	}
	r.scrape(t)
}

// stuck is a reader that takes nothing until a context ends.
type stuck struct {
	header http.Header
	until  context.Context
}

func (s *stuck) Header() http.Header { return s.header }
func (s *stuck) WriteHeader(int)     {}
func (s *stuck) Write([]byte) (int, error) {
	<-s.until.Done()
	return 0, io.ErrClosedPipe
}

// TestNoCollectorYet: before the host has joined, the page has the application and the agent.
func TestNoCollectorYet(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(r *rig, _ *Config) {
		r.app = application(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "app_jobs 1\n") })
	})
	r.page.c.Collector = func() *Collector { return nil }
	families, _ := r.scrape(t)
	if families["app_jobs"] == nil || families["fairlead_agent_stats_failures_total"] == nil {
		t.Errorf("families: %v", families)
	}
}

// BenchmarkScrape is one page of 100 label sets with three histograms each: the agent's part of a
// scrape, 5 MB. On a shared core of an x86-64 server it takes 8 to 14 ms; Envoy's part is 8 ms more.
// 50 ms are the most that it may take.
func BenchmarkScrape(b *testing.B) {
	series := map[string][]float64{}
	for i := range 100 {
		series[inputLabels(2*i)] = []float64{1, 20, 300}
	}
	r := newRig(b, func(r *rig, _ *Config) {
		r.open, r.process = constant(b, series), Process{PID: 1, Since: time.Now()}
	})
	b.ReportAllocs()
	for b.Loop() {
		w := &count{header: http.Header{}}
		r.page.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/", http.NoBody))
		b.SetBytes(w.n)
	}
}

type count struct {
	header http.Header
	n      int64
}

func (c *count) Header() http.Header { return c.header }
func (c *count) WriteHeader(int)     {}
func (c *count) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return len(b), nil
}

// constant is an Envoy whose counters do not change, written once.
func constant(tb testing.TB, series map[string][]float64) func(context.Context, string) (io.ReadCloser, error) {
	tb.Helper()
	body, err := (&fakeEnvoy{series: series}).open(tb.Context(), "")
	if err != nil {
		tb.Fatal(err)
	}
	page, err := io.ReadAll(body)
	if err != nil {
		tb.Fatal(err)
	}
	return func(context.Context, string) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(string(page))), nil
	}
}
