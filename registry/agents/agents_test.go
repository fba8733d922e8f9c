package agents

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/registry/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is a Source in a synctest bubble, with its latest fragment.
type harness struct {
	*Source
	t    *testing.T
	out  chan *mesh.Fragment
	last *mesh.Fragment
	sent int
}

func run(t *testing.T, c Config) *harness {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{Source: s, t: t, out: make(chan *mesh.Fragment)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, h.out) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	h.after(0)
	if h.sent != 1 || len(h.last.Health) != 0 || h.last.Source != "agents" {
		t.Fatalf("at the start: %d fragments, %v", h.sent, h.last)
	}
	return h
}

// after lets time pass and takes what comes.
func (h *harness) after(d time.Duration) {
	h.t.Helper()
	end := time.After(d)
	for {
		synctest.Wait()
		select {
		case f := <-h.out:
			h.last = f
			h.sent++
			continue
		default:
		}
		select {
		case f := <-h.out:
			h.last = f
			h.sent++
		case <-end:
			synctest.Wait()
			select {
			case f := <-h.out:
				h.last = f
				h.sent++
			default:
			}
			return
		}
	}
}

func account() mesh.ServiceAccount { return mesh.ServiceAccount{Namespace: "a", Name: "web"} }

func (h *harness) open(stream uint64, host int) {
	h.t.Helper()
	c := claimed("host", fmt.Sprintf("10.0.0.%03d", host))
	if err := h.StreamOpened(stream, c, nil); err != nil {
		h.t.Fatal(err)
	}
}

// claimed is the claim of a host to the one workload at an address.
func claimed(host, address string) mesh.Claim {
	return mesh.Claim{Host: host, Binding: host, Address: address, ServiceAccount: account(), Workload: "w", Present: []string{"w"}}
}

func (h *harness) say(stream uint64, health mesh.Health) {
	h.ReportProbe(stream, health, "probe")
}

// want compares what is reported, as "host+" for healthy and "host-" for not.
func (h *harness) want(what, want string) {
	h.t.Helper()
	var got []string
	for _, r := range h.last.Health {
		sign := map[mesh.Health]string{mesh.Healthy: "+", mesh.Unhealthy: "-", mesh.HealthUnknown: "?"}[r.Health]
		if r.Health == mesh.Unhealthy && r.Reason == goneReason {
			sign = "-gone"
		} else if r.Reason == leftReason || r.Reason == waitReason {
			sign = "-silent"
		}
		if !r.Own || r.ServiceAccount != account() {
			h.t.Errorf("%s: %+v", what, r)
		}
		got = append(got, strings.TrimLeft(strings.TrimPrefix(r.Address, "10.0.0."), "0")+sign)
	}
	if g := strings.Join(got, " "); g != want {
		h.t.Fatalf("%s: got %q, want %q", what, g, want)
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		h.open(1, 1)
		h.after(time.Hour)
		h.want("connected without a word", "")
		h.say(1, mesh.Healthy)
		h.after(0)
		h.want("healthy", "1+")
		h.say(1, mesh.Unhealthy)
		h.after(0)
		h.want("unhealthy at once", "1-")
		h.say(1, mesh.Healthy)
		h.StreamClosed(1)
		h.after(9 * time.Second)
		h.want("lost is unknown", "")
		h.after(time.Second)
		h.want("out after the grace", "1-gone")
		h.after(24 * time.Hour)
		h.want("stays out", "1-gone")
		h.open(2, 1)
		h.after(0)
		h.want("back is unknown", "")
		h.say(2, mesh.Healthy)
		h.after(0)
		h.want("and healthy", "1+")
	})
}

func TestReconnectWithinTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		h.open(1, 1)
		h.say(1, mesh.Healthy)
		h.StreamClosed(1)
		h.after(9 * time.Second)
		h.open(2, 1)
		h.after(time.Hour)
		h.want("never out", "")
	})
}

func TestReconnectOvertakesTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		h.open(1, 1)
		h.say(1, mesh.Unhealthy)
		h.open(2, 1)
		h.say(2, mesh.Healthy)
		h.say(1, mesh.Unhealthy) // late, from the old stream
		h.StreamClosed(1)
		h.say(1, mesh.Unhealthy) // later still
		h.after(time.Hour)
		h.want("the new stream counts", "1+")
		if st := h.Status(); st.Ignored != 1 || st.Connected != 1 {
			t.Errorf("status: %+v", st)
		}
	})
}

func TestUnhealthyStaysOutWhenLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		h.open(1, 1)
		h.say(1, mesh.Unhealthy)
		h.StreamClosed(1)
		h.after(5 * time.Second)
		h.want("it is silent, and was out", "1-silent")
		h.open(2, 1)
		h.after(9 * time.Second)
		h.want("after a reconnect, not repeated yet", "1-silent")
		h.after(time.Second)
		h.want("not repeated", "")
		h.say(2, mesh.Unhealthy)
		h.StreamClosed(2)
		h.open(3, 1)
		h.say(3, mesh.Unhealthy)
		h.after(time.Hour)
		h.want("repeated", "1-")
	})
}

func TestManyLostAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		for i := range uint64(20) {
			h.open(i+1, int(i))
			h.say(i+1, mesh.Healthy)
		}
		h.say(20, mesh.Unhealthy)
		for i := range uint64(20) {
			h.StreamClosed(i + 1)
			h.after(100 * time.Millisecond)
		}
		h.after(time.Hour)
		h.want("all lost: only who was out is out", "19-silent")
		if st := h.Status(); st.Held != 19 || st.Gone != 1 || len(st.Workloads) != 20 {
			t.Errorf("status: %+v", st)
		}
		for i := range uint64(17) { // 17 of 20 return: three are not many
			h.open(100+i, int(i))
		}
		h.after(9 * time.Second)
		h.want("a new grace", "19-silent")
		h.after(time.Second)
		h.want("the rest is gone", "17-gone 18-gone 19-silent")
		if h.Release() {
			t.Error("there was nothing to release")
		}
	})
}

func TestReleaseOfMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		for i := range uint64(10) {
			h.open(i+1, int(i))
		}
		for i := range uint64(5) {
			h.StreamClosed(i + 1)
		}
		h.after(time.Hour)
		h.want("held", "")
		if !h.Release() {
			t.Error("nothing was released")
		}
		h.after(0)
		h.want("released", "-gone 1-gone 2-gone 3-gone 4-gone")
	})
}

func TestFewLostAreGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		for i := range uint64(20) {
			h.open(i+1, int(i))
		}
		for i := range uint64(6) { // 30 %, not more
			h.StreamClosed(i + 1)
		}
		h.after(10 * time.Second)
		if st := h.Status(); st.Gone != 6 || st.Unhealthy != 6 || st.Connected != 14 {
			t.Errorf("status: %+v", st)
		}
	})
}

func TestBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{MaxWorkloads: 2})
		h.open(1, 1)
		h.open(2, 2)
		h.open(3, 3)
		if st := h.Status(); st.Connected != 2 || st.Refused != 1 {
			t.Errorf("status: %+v", st)
		}
		h.StreamClosed(1)
		h.after(time.Minute)
		h.want("gone", "1-gone")
		h.open(4, 4)
		h.say(4, mesh.Healthy)
		h.after(0)
		h.want("the one that is gone made room", "4+")
		for i := range uint64(100) {
			h.open(100+i, 4)
		}
		if n := len(h.streams); n != 1+maxStreams {
			t.Errorf("%d streams are remembered", n)
		}
		h.ReportProbe(199, mesh.Unhealthy, strings.Repeat("ä", 1000))
		h.after(0)
		if r := h.last.Health[0].Reason; len(r) > maxReason || len(r) < maxReason-1 {
			t.Errorf("the reason has %d bytes", len(r))
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{}); err == nil {
		t.Error("no logger is needed")
	}
	if _, err := New(Config{Logger: slog.New(slog.DiscardHandler), Grace: -1}); err == nil {
		t.Error("a negative grace is taken")
	}
}

// TestHealthFollowsFromProbeAndEnvoy reports in every order what a probe and an Envoy
// may do: a workload is out while its probe says so or its Envoy is gone, which one
// that only starts still is.
func TestHealthFollowsFromProbeAndEnvoy(t *testing.T) {
	t.Parallel()
	reports := []string{"ok", "ill", "absent", "starting", "live", "rejecting"}
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		for n := range len(reports) * len(reports) * len(reports) {
			stream := uint64(n + 1)
			h.open(stream, 1)
			probe, down := mesh.HealthUnknown, false
			var said []string
			for range 3 {
				r := reports[n%len(reports)]
				n /= len(reports)
				said = append(said, r)
				var got mesh.Health
				var why string
				switch r {
				case "ok", "ill":
					if probe = mesh.Healthy; r == "ill" {
						probe = mesh.Unhealthy
					}
					got, why = h.ReportProbe(stream, probe, "probe")
				default:
					down = r == "absent" || r == "starting" && down
					got, why = h.ReportEnvoy(stream, r)
				}
				want, reason := probe, ""
				switch {
				case down:
					want, reason = mesh.Unhealthy, downReason
				case probe == mesh.Unhealthy:
					reason = "probe"
				}
				if got != want || why != reason {
					t.Errorf("%v: %v (%s), want %v (%s)", said, got, why, want, reason)
				}
			}
			h.after(0)
			sum := mesh.HealthUnknown
			for _, r := range h.last.Health {
				sum = r.Health
			}
			want := probe
			if down {
				want = mesh.Unhealthy
			}
			if sum != want {
				t.Errorf("%v: %v is published, want %v", said, sum, want)
			}
			h.ReportEnvoy(stream, "live")
			h.ReportProbe(stream, mesh.Healthy, "")
			h.StreamClosed(stream)
			h.after(0)
		}
		if got, _ := h.ReportProbe(1, mesh.Unhealthy, "late"); got != mesh.HealthUnknown {
			t.Errorf("a stream that is closed reports %v", got)
		}
	})
}
