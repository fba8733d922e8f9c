package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEnvoy gives one answer after the other, and then repeats the last.
type fakeEnvoy struct {
	mu      sync.Mutex // guards answers
	answers []error
}

func (e *fakeEnvoy) set(answers ...error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers = answers
}

func (e *fakeEnvoy) Ready(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.answers) == 0 {
		return nil
	}
	err := e.answers[0]
	if len(e.answers) > 1 {
		e.answers = e.answers[1:]
	}
	return err
}

type recorder struct {
	mu  sync.Mutex // guards got
	got []string
}

func (r *recorder) ReportHealth(healthy bool, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, fmt.Sprint(healthy, " ", message))
}

func (r *recorder) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func TestThresholds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		success, failure int
		answers, changes string
	}{
		"defaults":        {1, 1, "++--+", "+.-.+"},
		"first_bad":       {1, 1, "-+", "-+"},
		"failure_three":   {1, 3, "+--+---", "+.....-"},
		"success_two":     {2, 1, "+-++", ".-.+"},
		"nothing_for_two": {2, 2, "+-+-", "...."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := thresholds{success: c.success, failure: c.failure}
			var got strings.Builder
			for _, a := range c.answers {
				if j.observe(a == '+') {
					got.WriteRune(a)
				} else {
					got.WriteByte('.')
				}
			}
			if got.String() != c.changes {
				t.Errorf("answers %s make changes %s, want %s", c.answers, got.String(), c.changes)
			}
		})
	}
}

// TestEnvoyFirst runs in synthetic time: nothing is reported before Envoy was ready once, and
// an application is unhealthy while its Envoy is not ready.
func TestEnvoyFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rec, envoy := &recorder{}, &fakeEnvoy{}
		envoy.set(errors.New("starting"))
		h, err := New(Config{
			Logger: slog.New(slog.DiscardHandler), Envoy: envoy, Reporter: rec,
			Probe: Probe{InitialDelay: 30 * time.Second, TCP: &TCPSocket{Port: 1}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		<-time.After(60 * time.Second)
		synctest.Wait()
		if got := rec.list(); len(got) > 0 {
			t.Errorf("reported of an Envoy that starts: %q", got)
		}
		// Ready for one question, then draining.
		envoy.set(nil, errors.New("draining"))
		<-time.After(100 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"false Envoy is not ready: draining"}, rec.list()); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func port(tb testing.TB, addr net.Addr) int {
	tb.Helper()
	_, p, err := net.SplitHostPort(addr.String())
	if err != nil {
		tb.Fatal(err)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls_%t", secure), func(t *testing.T) {
			t.Parallel()
			var code atomic.Int64
			code.Store(http.StatusOK)
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/ready" || r.Header.Get("x-probe") != "yes" || r.Host != "app.example" {
					t.Errorf("asked %s of %s with %v", r.URL.Path, r.Host, r.Header)
				}
				w.WriteHeader(int(code.Load()))
			})
			server, scheme := httptest.NewServer, "HTTP"
			if secure {
				server, scheme = httptest.NewTLSServer, "HTTPS"
			}
			s := server(handler)
			defer s.Close()
			p, err := FromIstio(&networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_HttpGet{
				HttpGet: &networkingv1alpha3.HTTPHealthCheckConfig{
					Path: "/ready", Port: uint32(port(t, s.Listener.Addr())), Scheme: scheme,
					HttpHeaders: []*networkingv1alpha3.HTTPHeader{{Name: "x-probe", Value: "yes"}, {Name: "Host", Value: "app.example"}},
				},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if p.Timeout != time.Second || p.Period != 10*time.Second || p.SuccessThreshold != 1 || p.FailureThreshold != 1 {
				t.Errorf("defaults are %+v", p)
			}
			for status, well := range map[int]bool{200: true, 204: true, 302: true, 399: true, 400: false, 404: false, 500: false, 503: false} {
				code.Store(int64(status))
				if err := p.ask(t.Context(), newClient()); (err == nil) != well {
					t.Errorf("status %d: %v", status, err)
				}
			}
		})
	}
}

func TestTCPAndTimeout(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Probe{TCP: &TCPSocket{Port: port(t, l.Addr())}}
	if err := p.complete(); err != nil {
		t.Fatal(err)
	}
	if err := p.ask(t.Context(), newClient()); err != nil {
		t.Error(err)
	}
	// It accepts and never answers.
	hang := &Probe{Timeout: 50 * time.Millisecond, HTTP: &HTTPGet{Port: port(t, l.Addr())}}
	if err := hang.complete(); err != nil {
		t.Fatal(err)
	}
	if err := hang.ask(t.Context(), newClient()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ask = %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.ask(t.Context(), newClient()); err == nil {
		t.Error("a closed port is well")
	}
}

func TestChangesOnly(t *testing.T) {
	t.Parallel()
	var asked, bad atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if bad.Load() > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	rec := &recorder{}
	h, err := New(Config{
		Logger: slog.New(slog.DiscardHandler), Envoy: &fakeEnvoy{}, Reporter: rec,
		Probe: Probe{Period: 10 * time.Millisecond, HTTP: &HTTPGet{Port: port(t, s.Listener.Addr())}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	more := func(n int64) {
		t.Helper()
		from, tick := asked.Load(), time.NewTicker(5*time.Millisecond)
		defer tick.Stop()
		for asked.Load() < from+n {
			<-tick.C
		}
	}
	more(5)
	bad.Store(1)
	more(5)
	bad.Store(0)
	more(5)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	got := rec.list()
	if len(got) != 3 || got[0] != "true " || !strings.Contains(got[1], "503") || got[2] != "true " {
		t.Errorf("reports: %q", got)
	}
}

func TestInvalidProbe(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*networkingv1alpha3.ReadinessProbe{
		"nothing": {},
		"exec":    {HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_Exec{Exec: &networkingv1alpha3.ExecHealthCheckConfig{Command: []string{"true"}}}},
		"port":    {HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_TcpSocket{TcpSocket: &networkingv1alpha3.TCPHealthCheckConfig{}}},
		"scheme": {HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_HttpGet{
			HttpGet: &networkingv1alpha3.HTTPHealthCheckConfig{Port: 1, Scheme: "ftp"},
		}},
		"period": {PeriodSeconds: -1, HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_TcpSocket{
			TcpSocket: &networkingv1alpha3.TCPHealthCheckConfig{Port: 1},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if p, err := FromIstio(r); err == nil {
				t.Errorf("accepted as %+v", p)
			}
		})
	}
}
