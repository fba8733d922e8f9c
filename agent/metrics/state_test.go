package metrics

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// next is the agent behind a restart of the agent, beside the same Envoy or another one.
func next(t *testing.T, envoy *fakeEnvoy, file string, running Process) *rig {
	t.Helper()
	return newRig(t, func(r *rig, c *Config) {
		r.open, r.process, c.StateFile, c.Owner = envoy.open, running, file, "orders"
	})
}

// TestCountersSurviveARestart: an agent that was stopped goes on with its counters, whether Envoy
// was left running or not. Every request and byte counts once.
func TestCountersSurviveARestart(t *testing.T) {
	t.Parallel()
	for name, same := range map[string]bool{"envoy_left": true, "envoy_replaced": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "counters.json")
			envoy := &fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 20}, inputLabels(1): {3}}}
			first := next(t, envoy, file, Process{PID: 1, Since: time.Now(), Birth: "a"})
			first.scrape(t)
			first.logs.take(time.Now(), source, tcpLogs(tcpEntry("a", connected, 0, 0), tcpEntry("a", periodic, 10, 20), tcpEntry("b", connected, 0, 0), tcpEntry("b", ended, 5, 5)))
			envoy.series[inputLabels(0)] = append(envoy.series[inputLabels(0)], 300) // seen by the last reading only
			first.Finish(t.Context(), false)
			before, _ := first.scrape(t)
			if n := total(before["istio_requests_total"]); n != 4 {
				t.Fatalf("%d requests before", n)
			}
			first.logs.take(time.Now(), source, tcpLogs(tcpEntry("late", ended, 1, 1)))
			if got := first.connections(t); got != [4]uint64{2, 1, 15, 25} {
				t.Errorf("after the end: %d", got)
			}

			running := Process{PID: 1, Since: time.Now(), Adopted: true, Birth: "a"}
			want, wantTCP := uint64(4+2), [4]uint64{2, 2, 15 + 3, 25 + 4}
			envoy.series[inputLabels(0)] = append(envoy.series[inputLabels(0)], 4, 5)
			if !same {
				running = Process{PID: 2, Since: time.Now(), Birth: "b"}
				envoy.series = map[string][]float64{inputLabels(0): {7}}
				want, wantTCP = 4+1, [4]uint64{2, 2, 15, 25}
			}
			second := next(t, envoy, file, running)
			if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the file is still there: %v", err)
			}
			if same {
				second.logs.take(time.Now(), source, tcpLogs(tcpEntry("a", periodic, 12, 20), tcpEntry("a", ended, 13, 24)))
			}
			for range 2 {
				after, _ := second.scrape(t)
				for _, family := range []string{"istio_requests_total", "istio_request_duration_milliseconds"} {
					if n := total(after[family]); n != want {
						t.Errorf("%s = %d, want %d", family, n, want)
					}
				}
				if got := second.connections(t); got != wantTCP {
					t.Errorf("connections: %d, want %d", got, wantTCP)
				}
			}
		})
	}
}

// TestKilledAgentsBeginWithZero: without the end of an agent there is nothing to go on with, and
// nothing is counted twice. What another workload counted is not taken either.
func TestKilledAgentsBeginWithZero(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "counters.json")
	envoy := &fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 20}}}
	next(t, envoy, file, Process{PID: 1, Since: time.Now(), Birth: "a"}).scrape(t)
	running := Process{PID: 1, Since: time.Now(), Adopted: true, Birth: "a"}
	want := func(r *rig, n uint64) {
		t.Helper()
		families, _ := r.scrape(t)
		if got := total(families["istio_requests_total"]); got != n {
			t.Errorf("%d requests, want %d", got, n)
		}
	}
	second := next(t, envoy, file, running)
	want(second, 0)
	envoy.series[inputLabels(0)] = append(envoy.series[inputLabels(0)], 1)
	want(second, 1)
	second.Finish(t.Context(), false)
	other := newRig(t, func(r *rig, c *Config) {
		r.open, r.process, c.StateFile, c.Owner = envoy.open, running, file, "another"
	})
	want(other, 0)
}

// TestBrokenStateIsNotUsed: a file that cannot be read is removed, and counters begin with 0; no
// content of it makes the page invalid.
func TestBrokenStateIsNotUsed(t *testing.T) {
	t.Parallel()
	envoy := &fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 20}}}
	file := filepath.Join(t.TempDir(), "counters.json")
	running := Process{PID: 1, Since: time.Now(), Birth: "a"}
	r := next(t, envoy, file, running)
	r.scrape(t)
	r.logs.take(time.Now(), source, tcpLogs(tcpEntry("a", connected, 0, 0)))
	r.Finish(t.Context(), false)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		b := append([]byte{}, good...)
		for range 1 + rnd.IntN(4) {
			b[rnd.IntN(len(b))] = "0\"{}[],:n\\x"[rnd.IntN(11)]
		}
		if rnd.IntN(5) == 0 {
			b = b[:rnd.IntN(len(b))]
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		running.Adopted = true
		r := next(t, envoy, file, running)
		r.scrape(t)
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the file is still there: %v", err)
		}
	}
}

// TestFallenValuesCountFromZero: a series that was dropped and came back between two readings.
func TestFallenValuesCountFromZero(t *testing.T) {
	t.Parallel()
	envoy := &fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 2, 300}}}
	r := next(t, envoy, "", Process{PID: 1, Since: time.Now()})
	r.scrape(t)
	envoy.series[inputLabels(0)] = []float64{7, 7}
	families, _ := r.scrape(t)
	for _, name := range []string{"istio_requests_total", "istio_request_duration_milliseconds"} {
		if n := total(families[name]); n != 5 {
			t.Errorf("%s = %d", name, n)
		}
	}
	if sum := families["istio_request_duration_milliseconds"].GetMetric()[0].GetHistogram().GetSampleSum(); sum != 303+14 {
		t.Errorf("the sum is %v", sum)
	}
}

// TestRowsThatEnvoyHasStay: a series that does not change and that Envoy still has is not removed,
// or it would be counted again from 0 when it changes.
func TestRowsThatEnvoyHasStay(t *testing.T) {
	t.Parallel()
	envoy := &fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 2}}}
	r := next(t, envoy, "", Process{PID: 1, Since: time.Now()})
	r.scrape(t)
	r.store.mu.Lock()
	evicted := r.store.evict(time.Now().Add(10*idleTime), idleTime)
	r.store.mu.Unlock()
	families, _ := r.scrape(t)
	if n := total(families["istio_requests_total"]); n != 2 || evicted != 0 {
		t.Errorf("%d requests, %d rows were removed", n, evicted)
	}
}

// TestHistogramsWithBrokenLines: a histogram with a line that is none counts nothing, and the next
// one does.
func TestHistogramsWithBrokenLines(t *testing.T) {
	t.Parallel()
	const labels = `reporter="source"`
	lines := func(buckets ...string) string {
		return strings.Join(append(buckets, `envoy_istio_request_bytes_sum{`+labels+`} 5`, `envoy_istio_request_bytes_count{`+labels+`} 3`), "\n")
	}
	bucket := func(le, n string) string {
		return `envoy_istio_request_bytes_bucket{` + labels + `,le="` + le + `"} ` + n
	}
	for name, c := range map[string]struct {
		text string
		want uint64
	}{
		"good":        {lines(bucket("1", "2"), bucket("+Inf", "3")), 3},
		"not_a_count": {lines(bucket("1", "1.5"), bucket("+Inf", "3")), 0},
		"falls":       {lines(bucket("1", "4"), bucket("+Inf", "3")), 0},
		"no_infinity": {lines(bucket("1", "2"), bucket("5", "3")), 0},
		"no_buckets":  {lines(), 0},
		"no_sum":      {strings.Replace(lines(bucket("+Inf", "3")), "} 5", "} NaN", 1), 0},
		"again":       {lines(bucket("1", "x"), bucket("+Inf", "3")) + "\n" + lines(bucket("1", "2"), bucket("+Inf", "3")), 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(10)
			in := newIntake(s, newUncounted(s))
			in.begin(time.Now(), "a", Workload{}, false)
			for line := range strings.SplitSeq(c.text, "\n") {
				if !in.take([]byte(line)) {
					t.Errorf("not taken: %s", line)
				}
			}
			in.end(true)
			var page strings.Builder
			if err := in.store.writeTo(&page); err != nil {
				t.Fatal(err)
			}
			got := total(parsePage(t, page.String())["istio_request_bytes"])
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s\n%s", diff, page.String())
			}
		})
	}
}
