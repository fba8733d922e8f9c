package collectors

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeEnvoy is the admin interface of an Envoy with some statistics.
type fakeEnvoy struct {
	stats   map[string]uint64
	none    bool // no cluster of a collector
	asked   int
	id      string
	adopted bool
}

func (e *fakeEnvoy) open(_ context.Context, path string) (io.ReadCloser, error) {
	e.asked++
	filter, err := url.QueryUnescape(strings.TrimPrefix(path, "/stats?filter="))
	if err != nil {
		return nil, err
	}
	names := regexp.MustCompile(filter)
	var b strings.Builder
	for name, n := range e.stats {
		if names.MatchString(name) {
			fmt.Fprintf(&b, "%s: %d\n", name, n)
		}
	}
	return io.NopCloser(strings.NewReader(b.String())), nil
}

// configured is whether it has collectors.
func (e *fakeEnvoy) configured() bool { return !e.none }

func (e *fakeEnvoy) cluster(name string, add map[string]uint64) {
	for _, stat := range []string{"active", "5xx", "pending_overflow", "active_overflow", "max_duration_reached", "timeout", "total"} {
		e.stats["cluster."+name+";.upstream_rq_"+stat] += add[stat]
	}
}

func newFake(t *testing.T, e *fakeEnvoy) *Watch {
	t.Helper()
	w, err := New(Config{Logger: slog.New(slog.DiscardHandler), Open: e.open, Configured: e.configured, Process: func() (string, bool) { return e.id, e.adopted }})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

const calls, streams, requests, app = "outbound|4317|telemetry_grpc|c.watch", "outbound|9000|telemetry_stream|c.watch", "outbound|9411|telemetry_http|z.watch", "outbound|80||web.shop"

// TestLosses: what each release of Envoy counts is told once, with the reason; a collector that
// takes reports again is told no more.
func TestLosses(t *testing.T) {
	t.Parallel()
	e := &fakeEnvoy{id: "a", stats: map[string]uint64{"access_logs.grpc_access_log.logs_dropped": 3, "tracing.skywalking.segments_dropped": 4, "tracing.zipkin.reports_dropped": 5}}
	for _, name := range []string{calls, streams, requests, app} {
		e.cluster(name, nil)
	}
	w := newFake(t, e)
	w.read(t.Context())
	if s := w.Status(); len(s.Remarks()) > 0 || s.LogEntries != 3 || s.Spans != 4 || s.Calls != 0 || len(s.Collectors) != 3 {
		t.Errorf("at rest: %+v", s)
	}
	e.stats["cluster."+calls+";.upstream_rq_active"] = 256
	for range mostly {
		e.cluster(calls, map[string]uint64{"active_overflow": 9, "5xx": 12, "max_duration_reached": 5}) // 3 without a connection
		e.cluster(requests, map[string]uint64{"pending_overflow": 1, "timeout": 2, "5xx": 3})
		e.cluster(app, map[string]uint64{"pending_overflow": 1000, "5xx": 1000})
		w.read(t.Context())
	}
	want := []Collector{
		{Name: "c.watch:4317", Form: "grpc", Waiting: 256, Dropped: 18, Unanswered: 10, Failed: 6, Failing: &Losses{Dropped: 18, Unanswered: 10, Failed: 6}},
		{Name: "c.watch:9000", Form: "stream"},
		{Name: "z.watch:9411", Form: "http", Dropped: 2, Unanswered: 4, Failing: &Losses{Dropped: 2, Unanswered: 4}},
	}
	s := w.Status()
	if diff := cmp.Diff(want, s.Collectors); diff != "" || s.Calls != 40 {
		t.Errorf("%d calls, %s", s.Calls, diff)
	}
	text := "the collector c.watch:4317 does not take what Envoy reports; requests are not affected. Of the calls with spans or logs of the last minute: 10 not answered in time, " +
		"18 dropped because too many waited for an answer, 6 failed, as without a connection. Look whether it runs, answers and is reachable from this host"
	if r := s.Remarks(); len(r) != 2 || r[0] != text {
		t.Errorf("remarks %q", r)
	}
	if p := s.Problems(); len(p) != 2 || !strings.HasPrefix(p[0], "the collector c.watch:4317 does not answer, or too late: ") || !strings.HasPrefix(p[1], "the collector z.watch:9411 does not answer") {
		t.Errorf("problems %q", p)
	}
	for range recent {
		w.read(t.Context())
	}
	if s := w.Status(); len(s.Remarks())+len(s.Problems()) > 0 || s.Calls != 40 {
		t.Errorf("after a quiet minute: %+v", s)
	}
}

// TestStreamsThatTakeNoMore: what Envoy drops because a stream takes no more is told with the collectors
// that get streams, and with no other; and so is a collector without connections.
func TestStreamsThatTakeNoMore(t *testing.T) {
	t.Parallel()
	e := &fakeEnvoy{id: "a", stats: map[string]uint64{}}
	w := newFake(t, e)
	for n := range mostly + 1 {
		e.cluster(calls, nil)
		e.cluster(streams, nil)
		e.cluster(requests, map[string]uint64{"5xx": 1})
		e.stats["access_logs.grpc_access_log.logs_dropped"] += uint64(20 * n)
		e.stats["tracing.skywalking.segments_dropped"] += uint64(n)
		w.read(t.Context())
	}
	s := w.Status()
	remarks, problems := s.Remarks(), s.Problems()
	if len(remarks) != 2 || !strings.Contains(remarks[0], "the collector c.watch:9000 ") || !strings.Contains(remarks[0], ": 63 lines or spans dropped because a stream takes no more. ") {
		t.Errorf("remarks %q", remarks)
	}
	if len(problems) != 2 || !strings.Contains(problems[0], "the collector c.watch:9000 does not answer") || !strings.Contains(problems[1], "the collector z.watch:9411 takes no spans or logs of Envoy, which drops them: calls fail") {
		t.Errorf("problems %q", problems)
	}
	for range recent {
		w.read(t.Context())
	}
	if s := w.Status(); len(s.Problems()) > 0 || s.LogEntries != 60 || s.Spans != 3 {
		t.Errorf("after a quiet minute: %+v", s)
	}
}

// TestOtherEnvoys: counts go on over Envoys, and what an Envoy counted before this agent is not
// counted; one loss alone, as of a collector that restarts, is not told.
func TestOtherEnvoys(t *testing.T) {
	t.Parallel()
	e := &fakeEnvoy{id: "a", adopted: true, stats: map[string]uint64{}}
	e.cluster(calls, map[string]uint64{"5xx": 100})
	w := newFake(t, e)
	w.read(t.Context())
	e.cluster(calls, map[string]uint64{"5xx": 7})
	w.read(t.Context())
	if s := w.Status(); s.Calls != 7 || len(s.Remarks()) > 0 {
		t.Errorf("of an Envoy that was there: %+v", s)
	}
	e.id, e.adopted, e.stats = "b", false, map[string]uint64{}
	e.cluster(calls, map[string]uint64{"5xx": 200})
	w.read(t.Context())
	if s := w.Status(); s.Calls != 207 {
		t.Errorf("with another Envoy: %+v", s)
	}
	e.id = ""
	w.read(t.Context())
	e.id, e.stats = "b", map[string]uint64{"access_logs.open_telemetry_access_log.logs_dropped": 1}
	w.read(t.Context())
	if s := w.Status(); s.Calls != 207 || len(s.Collectors) > 0 || s.LogEntries != 1 {
		t.Errorf("without the collector: %+v", s)
	}
	for i := range 2 * maxCollectors {
		e.cluster(fmt.Sprintf("outbound|%d|telemetry_http|c", i+1), nil)
	}
	w.read(t.Context())
	if n := len(w.Status().Collectors); n != maxCollectors {
		t.Errorf("%d collectors", n)
	}
}

// TestNotAskedWithoutCollectors: an Envoy without collectors is not asked, and one that has lost them
// once more.
func TestNotAskedWithoutCollectors(t *testing.T) {
	t.Parallel()
	e := &fakeEnvoy{id: "a", none: true, stats: map[string]uint64{}}
	w := newFake(t, e)
	for range 3 {
		w.read(t.Context())
	}
	if e.asked != 0 {
		t.Errorf("asked %d times without a collector", e.asked)
	}
	e.none = false
	e.cluster(calls, nil)
	if w.read(t.Context()); e.asked != 1 || len(w.Status().Collectors) != 1 {
		t.Errorf("asked %d times with a collector: %+v", e.asked, w.Status())
	}
	e.none, e.stats = true, map[string]uint64{}
	for range 3 {
		w.read(t.Context())
	}
	if e.asked != 2 || len(w.Status().Collectors) != 0 {
		t.Errorf("asked %d times after the last one left: %+v", e.asked, w.Status())
	}
	for name, want := range map[string]bool{calls: true, streams: true, requests: true, app: false, "inbound|8080|telemetry_grpc|": false, "outbound|80||telemetry_x.shop": false} {
		if IsCollector(name) != want {
			t.Errorf("IsCollector(%q) is %v", name, !want)
		}
	}
}
