package metrics

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// fakeEnvoy writes counters as Envoy does. It stands in for a real one where a test needs
// evictions and restarts at chosen moments.
type fakeEnvoy struct {
	series map[string][]float64 // durations, by labels
	cut    int                  // bytes after which the answer ends with an error; 0 means none
}

func (e *fakeEnvoy) open(context.Context, string) (io.ReadCloser, error) {
	var b bytes.Buffer
	order := slices.Sorted(maps.Keys(e.series))
	b.WriteString("# TYPE envoy_istio_requests_total counter\n")
	for _, s := range order {
		fmt.Fprintf(&b, "envoy_istio_requests_total{%s} %d\n", s, len(e.series[s]))
	}
	b.WriteString("# TYPE envoy_server_live gauge\nenvoy_server_live{} 1\n")
	// The same values in each of them.
	for _, family := range histogramNames() {
		name := "envoy_" + family
		fmt.Fprintf(&b, "# TYPE %s histogram\n", name)
		for _, s := range order {
			sum := 0.0
			for _, le := range istioBounds() {
				n := 0
				sum = 0
				for _, d := range e.series[s] {
					sum += d
					if le == "+Inf" || d <= mustFloat(le) {
						n++
					}
				}
				fmt.Fprintf(&b, "%s_bucket{%s,le=\"%s\"} %d\n", name, s, le, n)
			}
			fmt.Fprintf(&b, "%s_sum{%s} %v\n%s_count{%s} %d\n", name, s, sum, name, s, len(e.series[s]))
		}
	}
	if e.cut > 0 && e.cut < b.Len() {
		return io.NopCloser(io.MultiReader(bytes.NewReader(b.Bytes()[:e.cut]), broken{})), nil
	}
	return io.NopCloser(&b), nil
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func mustFloat(s string) float64 {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		panic(err)
	}
	return f
}

func inputLabels(i int) string {
	return fmt.Sprintf(`reporter="%s",peer="w%d;shop;w;v1;c",peer_principal="",service="s;s;shop",response_code="200",response_flags="",grpc_response_status=""`,
		[]reporter{source, destination}[i%2], i)
}

// workloadOf is how the series of inputLabels is found on the page.
func workloadOf(i int) string {
	if i%2 == 1 { // a subject that is none names nobody
		return "reporter=destination"
	}
	return fmt.Sprintf("destination_workload=w%d", i)
}

// TestCountersOnlyGrow: Envoy counts at random, drops series that do not change, restarts, and
// answers break off. The page always has every request that a reading has shown.
func TestCountersOnlyGrow(t *testing.T) {
	t.Parallel()
	seeds := uint64(12)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 1))
		envoy := &fakeEnvoy{series: map[string][]float64{}}
		r := newRig(t, func(r *rig, _ *Config) {
			r.open, r.process = envoy.open, Process{PID: 1, Since: time.Now()}
		})
		const series = 6
		unread, seen := map[int][]float64{}, map[int][]float64{}
		last := map[string]uint64{}
		for range 60 {
			switch rnd.IntN(8) {
			case 0: // dropped after a time without a change, in which there were readings, and so behind it
				i := rnd.IntN(series)
				if len(unread[i]) == 0 {
					delete(envoy.series, inputLabels(i))
					if _, err := r.read(t.Context(), requestsOnly, nil); err != nil {
						t.Fatal(err)
					}
					for i, d := range unread {
						seen[i] = append(seen[i], d...)
					}
					clear(unread)
				}
			case 1:
				if rnd.IntN(3) == 0 {
					clear(envoy.series)
					clear(unread) // what nobody read is lost
					r.process = Process{PID: r.process.PID + 1, Since: time.Now()}
				}
			default:
				i := rnd.IntN(series)
				d := float64(rnd.IntN(5000))
				envoy.series[inputLabels(i)] = append(envoy.series[inputLabels(i)], d)
				unread[i] = append(unread[i], d)
			}
			if rnd.IntN(2) == 0 {
				continue
			}
			if rnd.IntN(4) == 0 { // an answer that breaks off, and the next reading
				envoy.cut = 1 + rnd.IntN(12000)
				_, _ = r.read(t.Context(), requestsOnly, nil)
				envoy.cut = 0
			}
			if _, err := r.read(t.Context(), requestsOnly, nil); err != nil {
				t.Fatal(err)
			}
			for i, d := range unread {
				seen[i] = append(seen[i], d...)
			}
			clear(unread)
			var page bytes.Buffer
			if err := r.store.writeTo(&page); err != nil {
				t.Fatal(err)
			}
			families := parsePage(t, page.String())
			checkSeen(t, seed, families, seen)
			for _, f := range families {
				for _, m := range f.GetMetric() {
					key := f.GetName() + text(m)
					n := uint64(m.GetCounter().GetValue()) + m.GetHistogram().GetSampleCount()
					if n < last[key] {
						t.Fatalf("seed %d: %s fell from %d to %d", seed, key, last[key], n)
					}
					last[key] = n
				}
			}
		}
	}
}

func checkSeen(t *testing.T, seed uint64, families map[string]*dto.MetricFamily, seen map[int][]float64) {
	t.Helper()
	want := map[string][]float64{}
	for i, d := range seen {
		want[workloadOf(i)] = append(want[workloadOf(i)], d...)
	}
	for label, d := range want {
		if n := total(families["istio_requests_total"], label); n != uint64(len(d)) {
			t.Fatalf("seed %d: %d requests of %s, want %d", seed, n, label, len(d))
		}
		sum := 0.0
		for _, x := range d {
			sum += x
		}
		for _, m := range find(families["istio_request_duration_milliseconds"], label) {
			h := m.GetHistogram()
			if h.GetSampleCount() != uint64(len(d)) || h.GetSampleSum() != sum {
				t.Fatalf("seed %d: %s: %d requests of %v ms, want %d of %v", seed, label, h.GetSampleCount(), h.GetSampleSum(), len(d), sum)
			}
			for _, b := range h.GetBucket() {
				n := uint64(0)
				for _, x := range d {
					if x <= b.GetUpperBound() {
						n++
					}
				}
				if b.GetCumulativeCount() != n {
					t.Fatalf("seed %d: %s: %d up to %v ms, want %d", seed, label, b.GetCumulativeCount(), b.GetUpperBound(), n)
				}
			}
		}
	}
}

// TestAdoptedEnvoyIsNotCountedTwice: an Envoy that runs longer than the agent has counters that
// the agent before published. A new Envoy of this agent counts from its start.
func TestAdoptedEnvoyIsNotCountedTwice(t *testing.T) {
	t.Parallel()
	envoy := &fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 2, 3}}}
	r := newRig(t, func(r *rig, _ *Config) {
		r.open, r.process = envoy.open, Process{PID: 1, Since: time.Now(), Adopted: true}
	})
	want := func(n uint64) {
		t.Helper()
		families, _ := r.scrape(t)
		for _, name := range []string{"istio_requests_total", "istio_request_duration_milliseconds"} {
			if got := total(families[name], workloadOf(0)); got != n {
				t.Errorf("%s = %d, want %d", name, got, n)
			}
		}
	}
	want(0)
	envoy.series[inputLabels(0)] = append(envoy.series[inputLabels(0)], 4)
	want(1)
	envoy.series = map[string][]float64{inputLabels(0): {5, 6, 7, 8, 9}}
	r.process = Process{PID: 2, Since: time.Now()}
	want(6)
}

// TestRequestsWithEqualLabelsAreAdded: labels that are left out make series equal.
func TestRequestsWithEqualLabelsAreAdded(t *testing.T) {
	t.Parallel()
	removed := `,fairlead_removed="destination_workload,destination_canonical_service"`
	envoy := &fakeEnvoy{series: map[string][]float64{inputLabels(0) + removed: {1}, inputLabels(2) + removed: {2, 3}}}
	r := newRig(t, func(r *rig, _ *Config) { r.open, r.process = envoy.open, Process{PID: 1, Since: time.Now()} })
	families, _ := r.scrape(t)
	if f := families["istio_requests_total"]; len(f.GetMetric()) != 1 || total(f) != 3 {
		t.Errorf("requests: %v", f)
	}
}

// TestSeriesAreLimited: label sets beyond the limit count as overflow, and none is lost; those
// that are not used make room.
func TestSeriesAreLimited(t *testing.T) {
	t.Parallel()
	envoy := &fakeEnvoy{series: map[string][]float64{}}
	r := newRig(t, func(r *rig, c *Config) {
		r.open, r.process, c.MaxSeries = envoy.open, Process{PID: 1, Since: time.Now()}, 5
	})
	for i := range 40 {
		envoy.series[inputLabels(2*i)] = []float64{1, 2}
	}
	for round := range 3 {
		families, _ := r.scrape(t)
		f := families["istio_requests_total"]
		if n := len(f.GetMetric()); n != 6 {
			t.Errorf("%d series", n)
		}
		want := uint64(80)
		if round > 0 { // of a rest that is not remembered only growth counts
			want = total(f)
		}
		if n := total(f); n != want {
			t.Errorf("round %d: %d requests, want %d", round, n, want)
		}
		if n := total(f, "destination_service=overflow", "reporter=source"); n < 60 {
			t.Errorf("%d requests overflowed", n)
		}
	}
	if n := len(r.intake.known); n > 10 {
		t.Errorf("%d label sets are remembered", n)
	}
	envoy.series = map[string][]float64{inputLabels(1): {1}}
	r.scrape(t)
	r.store.mu.Lock()
	evicted := r.store.evict(time.Now().Add(idleTime+time.Second), idleTime)
	r.store.mu.Unlock()
	if evicted != 5 {
		t.Errorf("%d rows were removed", evicted)
	}
	envoy.series[inputLabels(100)] = []float64{1}
	if families, _ := r.scrape(t); total(families["istio_requests_total"], workloadOf(100)) != 1 {
		t.Error("no room for a new label set")
	}
}

// TestWorkloadChanges: what is counted after the control plane said who the workload is has its
// labels.
func TestWorkloadChanges(t *testing.T) {
	t.Parallel()
	envoy := &fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 2}}}
	r := newRig(t, func(r *rig, _ *Config) { r.open, r.process = envoy.open, Process{PID: 1, Since: time.Now()} })
	r.scrape(t)
	r.workload.Name = "web-renamed"
	envoy.series[inputLabels(0)] = []float64{1, 2, 3}
	families, _ := r.scrape(t)
	f := families["istio_requests_total"]
	if before, after := total(f, "source_workload=web-1"), total(f, "source_workload=web-renamed"); before != 2 || after != 1 {
		t.Errorf("%d requests before, %d after", before, after)
	}
}

// TestBrokenLinesCountNothing: what Envoy could not have written changes no counter.
func TestBrokenLinesCountNothing(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		`envoy_istio_requests_total{reporter="source"`, `envoy_istio_requests_total{reporter="source"} x`, `envoy_istio_requests_total{reporter="source"} -1`,
		`envoy_istio_requests_total{reporter="other"} 1`, `envoy_istio_requests_total 1`, `envoy_istio_requests_total{reporter="source",reporter="destination"} 1`,
		`envoy_istio_request_bytes_bucket{reporter="source"} 1`, `envoy_istio_request_bytes_bucket{reporter="source",le="x"} 1`,
		`envoy_istio_request_bytes_count{reporter="source"} 1`, `envoy_istio_request_bytes_bucket{le="+Inf",reporter="source"} 1`,
	} {
		r := newRig(t, func(r *rig, _ *Config) {
			r.process = Process{PID: 1, Since: time.Now()}
			r.open = func(context.Context, string) (io.ReadCloser, error) {
				return io.NopCloser(strings.NewReader(line + "\n")), nil
			}
		})
		_, page := r.scrape(t)
		if strings.Contains(page, "istio_request") && !strings.Contains(page, "fairlead_agent_request_label_sets 0") {
			t.Errorf("%s: %s", line, page)
		}
	}
}

// TestAnswersOfUnknownEnvoysCountNothing: if Envoy is replaced while it is asked, nobody knows
// whose counters the answer has.
func TestAnswersOfUnknownEnvoysCountNothing(t *testing.T) {
	t.Parallel()
	envoy := &fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 2}}}
	r := newRig(t, func(r *rig, _ *Config) { r.process = Process{PID: 1, Since: time.Now()} })
	r.open = func(ctx context.Context, path string) (io.ReadCloser, error) {
		r.process.PID++
		return envoy.open(ctx, path)
	}
	if _, err := r.read(t.Context(), requestsOnly, nil); err == nil {
		t.Error("the answer was taken")
	}
	r.open = envoy.open
	if families, _ := r.scrape(t); total(families["istio_requests_total"]) != 2 {
		t.Errorf("requests: %v", families["istio_requests_total"])
	}
}
