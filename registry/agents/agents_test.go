package agents

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
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

// want compares what is reported, as "host+" for healthy, "host-" for not and "host~" for
// silent.
func (h *harness) want(what, want string) {
	h.t.Helper()
	var got []string
	for _, r := range h.last.Health {
		sign := map[mesh.Health]string{mesh.Healthy: "+", mesh.Unhealthy: "-", mesh.HealthUnknown: "?"}[r.Health]
		switch r.Reason {
		case silentReason:
			sign = map[mesh.Health]string{mesh.Silent: "~"}[r.Health]
		case removedReason:
			sign = "-removed"
		case leftReason, waitReason:
			sign = "-left"
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
		h.after(2 * time.Second)
		h.want("lost is unknown", "")
		h.after(time.Second)
		h.want("silent after the grace", "1~")
		h.after(24 * time.Hour)
		h.want("stays silent", "1~")
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
		h.after(2 * time.Second)
		h.open(2, 1)
		h.after(time.Hour)
		h.want("never silent", "")
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
		h.want("it is silent, and was out", "1-left")
		h.open(2, 1)
		h.after(9 * time.Second)
		h.want("after a reconnect, not repeated yet", "1-left")
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

// TestEnvoyThatIsBackEndsItsAbsence: a workload that was out because its Envoy did not run is in again
// when the next stream says that it is live. What its probe said stays until it says something else.
func TestEnvoyThatIsBackEndsItsAbsence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, state := range []string{"live", "rejecting"} {
			h := run(t, Config{})
			h.open(1, 1)
			h.ReportEnvoy(1, "absent")
			h.StreamClosed(1)
			h.open(2, 1)
			h.after(0)
			h.want("back without a word", "1-left")
			h.ReportEnvoy(2, "starting")
			h.after(0)
			h.want("its Envoy starts", "1-left")
			h.ReportEnvoy(2, state)
			h.after(0)
			h.want("its Envoy is "+state, "")
			h.say(2, mesh.Unhealthy)
			h.ReportEnvoy(2, "absent")
			h.StreamClosed(2)
			h.open(3, 1)
			h.ReportEnvoy(3, state)
			h.after(0)
			h.want("its application was not well either", "1-left")
			h.say(3, mesh.Healthy)
			h.after(0)
			h.want("its application is well", "1+")
		}
	})
}

// TestSilenceOfAnyNumberIsNoVerdict: whatever number of agents of whatever number is lost at
// once, their workloads are silent, and only a report, or a person, takes one out.
func TestSilenceOfAnyNumberIsNoVerdict(t *testing.T) {
	t.Parallel()
	for _, all := range []int{1, 2, 4, 5, 20} {
		for lost := range all + 1 {
			synctest.Test(t, func(t *testing.T) {
				h := run(t, Config{})
				for i := range all {
					h.open(uint64(i+1), i)
					h.say(uint64(i+1), mesh.Healthy)
				}
				for i := range lost {
					h.StreamClosed(uint64(i + 1))
				}
				h.after(time.Hour)
				count := map[mesh.Health]int{}
				for _, r := range h.last.Health {
					count[r.Health]++
				}
				if st := h.Status(); count[mesh.Unhealthy] != 0 || count[mesh.Silent] != lost || st.Silent != lost || st.Unhealthy != 0 || len(st.Workloads) != lost {
					t.Fatalf("%d of %d lost: %v, %+v", lost, all, count, st)
				}
				for i := range lost {
					h.open(uint64(100+i), i)
					h.after(0)
					if n := len(h.last.Health); n != all-i-1 {
						t.Fatalf("%d of %d returned: %d reports", i+1, lost, n)
					}
				}
			})
		}
	}
}

// TestPersonTakesSilentOnesOut: what a person says of silent workloads counts until their agents
// are back, also after a restart.
func TestPersonTakesSilentOnesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		h := run(t, Config{Store: store})
		for i := range uint64(3) {
			h.open(i+1, int(i+1))
		}
		if h.Release() {
			t.Error("nobody is silent, and somebody was taken out")
		}
		h.StreamClosed(1)
		h.StreamClosed(2)
		h.after(time.Hour)
		h.want("before", "1~ 2~")
		if !h.Release() {
			t.Error("nothing was released")
		}
		h.after(time.Second)
		h.want("taken out", "1-removed 2-removed")
		if len(store.out) != 2 {
			t.Errorf("saved: %v", store.out)
		}
		h.open(4, 1)
		h.after(0)
		h.want("one is back", "2-removed")
	})
}

// TestRemovedHostIsOut: the workloads of a host that is removed are out, whether it was
// connected, lost, silent or not yet back after a restart.
func TestRemovedHostIsOut(t *testing.T) {
	t.Parallel()
	for _, state := range []State{Connected, Lost, Silent, Awaited} {
		synctest.Test(t, func(t *testing.T) {
			var gone atomic.Bool
			claims := &claimMemory{}
			if state == Awaited {
				claims.saved.Claims = []SavedClaim{{Address: "10.0.0.001", Namespace: "a", ServiceAccount: "web", Workload: "w", Host: "host", Binding: "host"}}
			}
			h := run(t, Config{Claims: claims, Stands: func(string, string) bool { return !gone.Load() }})
			switch state {
			case Connected, Lost, Silent, Gone:
				h.open(1, 1)
				if state == Connected {
					break
				}
				h.StreamClosed(1)
				if state == Silent {
					h.after(time.Minute)
				}
			case Awaited:
			}
			if st := h.Status(); len(h.leases) != 1 || h.counts[state] != 1 {
				t.Fatalf("%s: %+v", state, st)
			}
			gone.Store(true)
			h.HostsChanged()
			if state == Connected { // the server ends its streams
				h.StreamClosed(1)
				h.after(time.Minute)
			}
			h.after(0)
			h.want(string(state), "1-removed")
		})
	}
}

// TestWhoDoesNotComeBackIsSilent: after a restart the workloads on record count as before until
// the time to settle has passed. It begins when the first agent is there: before that this server
// may be the one that is cut off.
func TestWhoDoesNotComeBackIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		claims := &claimMemory{}
		for _, a := range []string{"10.0.0.001", "10.0.0.002", "10.0.0.003"} {
			claims.saved.Claims = append(claims.saved.Claims, SavedClaim{Address: a, Namespace: "a", ServiceAccount: "web", Workload: "w", Host: "host", Binding: "host"})
		}
		h := run(t, Config{Claims: claims, Settle: 20 * time.Second})
		h.after(time.Hour)
		h.want("nobody is back", "")
		h.open(1, 1)
		h.after(19 * time.Second)
		h.want("still coming back", "")
		h.open(2, 2)
		h.after(time.Second)
		h.want("one did not come back", "3~")
		if st := h.Status(); st.Silent != 1 || st.Awaited != 0 || st.Connected != 2 {
			t.Errorf("status: %+v", st)
		}
		h.open(3, 3)
		h.after(time.Hour)
		h.want("now it did", "")
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
		h.want("silent", "1~")
		h.open(4, 4)
		h.say(4, mesh.Healthy)
		h.after(0)
		h.want("the one that is silent made room", "4+")
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
