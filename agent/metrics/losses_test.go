package metrics

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// agents are the agents of a host, one after the other.
type agents struct {
	envoy *fakeEnvoy
	dir   string
	log   bytes.Buffer
}

func newAgents(t *testing.T) *agents {
	t.Helper()
	return &agents{envoy: &fakeEnvoy{series: map[string][]float64{inputLabels(0): {1, 20}}}, dir: t.TempDir()}
}

func (a *agents) losses() string { return filepath.Join(a.dir, "counter-losses.json") }

func (a *agents) next(t *testing.T, running Process) *rig {
	t.Helper()
	return newRig(t, func(r *rig, c *Config) {
		r.open, r.process, c.Owner = a.envoy.open, running, "orders"
		c.StateFile, c.LossesFile = filepath.Join(a.dir, "counters.json"), a.losses()
		c.Logger = slog.New(slog.NewTextHandler(&a.log, nil))
	})
}

// lost checks the page, and that the log has a line for each loss.
func (a *agents) lost(t *testing.T, r *rig, envoy, agent uint64) {
	t.Helper()
	families, _ := r.scrape(t)
	f := families["fairlead_agent_request_counter_losses_total"]
	if e, g := total(f, "process=envoy"), total(f, "process=agent"); e != envoy || g != agent {
		t.Errorf("losses: envoy %d, agent %d, want %d, %d", e, g, envoy, agent)
	}
	if n := strings.Count(a.log.String(), " since="); uint64(n) != envoy+agent {
		t.Errorf("%d lines say since when, want %d:\n%s", n, envoy+agent, a.log.String())
	}
}

func running(pid int, birth string) Process {
	return Process{PID: pid, Since: time.Now(), Birth: birth}
}

// TestKilledAgentsAreLosses: an agent that does not save its counters is a loss, since its last
// page. The number goes on over all kinds of restarts, and an agent that saves is none.
func TestKilledAgentsAreLosses(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	a.lost(t, a.next(t, running(1, "a")), 0, 0)
	page := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(a.losses(), page, page); err != nil {
		t.Fatal(err)
	}
	second := a.next(t, running(1, "a"))
	if want := "since=" + page.UTC().Format(time.RFC3339); !strings.Contains(a.log.String(), want) {
		t.Errorf("no line says %s:\n%s", want, a.log.String())
	}
	a.lost(t, second, 0, 1)
	if fi, err := os.Stat(a.losses()); err != nil || time.Since(fi.ModTime()) > time.Minute || fi.Mode().Perm() != 0o600 {
		t.Errorf("the time of the last page is not noted: %v, %v", fi, err)
	}
	second.Finish(t.Context(), false)
	a.lost(t, second, 0, 1)
	a.lost(t, a.next(t, running(2, "b")), 0, 1)
	third := a.next(t, running(2, "b"))
	a.lost(t, third, 0, 2)
	third.Finish(t.Context(), false)
	if err := os.WriteFile(filepath.Join(a.dir, "counters.json"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.lost(t, a.next(t, running(3, "c")), 0, 3) // what it saved is lost
}

// TestNothingCountedIsNoLoss: a host whose Envoy never counted anything loses nothing.
func TestNothingCountedIsNoLoss(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	a.envoy.series = nil
	a.lost(t, a.next(t, running(1, "a")), 0, 0)
	r := a.next(t, running(1, "a"))
	r.process = running(2, "b")
	a.lost(t, r, 0, 0)
	if _, err := os.Stat(a.losses()); !os.IsNotExist(err) {
		t.Errorf("there is a file: %v", err)
	}
}

// TestEndsOfEnvoyAreLosses: an Envoy that ends by itself is one loss, whatever is read meanwhile;
// one that the agent stops is none, and one that it leaves running is one if it ended before the
// next agent came.
func TestEndsOfEnvoyAreLosses(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	r := a.next(t, running(1, "a"))
	r.scrape(t)
	r.process = running(2, "b") // replaced between two readings
	r.scrape(t)
	a.lost(t, r, 1, 0)
	read := r.lastRead
	r.process.Birth = "" // it has ended, and nobody has noticed
	a.lost(t, r, 1, 0)
	r.process.PID = 0
	if a.lost(t, r, 2, 0); !strings.Contains(a.log.String(), "since="+read.UTC().Format(time.RFC3339)) {
		t.Errorf("no line says since %s:\n%s", read, a.log.String())
	}
	a.lost(t, r, 2, 0)
	r.process = running(3, "c")
	a.lost(t, r, 2, 0)
	r.Finish(t.Context(), false)
	r.process.PID = 0 // stopped
	a.lost(t, r, 2, 0)

	left := running(4, "d")
	r = a.next(t, left)
	a.lost(t, r, 2, 0)
	r.Finish(t.Context(), true)
	r = a.next(t, Process{})
	a.lost(t, r, 2, 0) // not known yet
	r.process = Process{PID: 4, Since: time.Now(), Birth: "d", Adopted: true}
	a.lost(t, r, 2, 0)
	r.Finish(t.Context(), true)
	a.lost(t, a.next(t, running(5, "e")), 3, 0)
}

// TestLastReadingThatFailsIsALoss: an agent that cannot read Envoy before it stops it says so.
func TestLastReadingThatFailsIsALoss(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]bool{"stopped": false, "left": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgents(t)
			r := a.next(t, running(1, "a"))
			r.scrape(t)
			a.envoy.cut = 5
			r.Finish(t.Context(), left)
			want := uint64(1)
			if left {
				want = 0 // the next agent goes on
			}
			a.lost(t, r, want, 0)
		})
	}
}

// TestReplacedEnvoyIsNoLoss: an Envoy of an earlier agent that was read before another one takes its
// place is no loss; one that could not be read is.
func TestReplacedEnvoyIsNoLoss(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]uint64{"read": 0, "unread": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgents(t)
			r := a.next(t, running(1, "a"))
			r.scrape(t)
			if want > 0 {
				a.envoy.cut = 5
			}
			r.ReadReplaced(t.Context())
			a.envoy.cut = 0
			r.scrape(t) // it still runs
			r.process = running(2, "b")
			a.lost(t, r, want, 0)
		})
	}
}

// TestBrokenLosses: a file that cannot be read is an agent that counted; the number begins anew.
func TestBrokenLosses(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	if err := os.WriteFile(a.losses(), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.lost(t, a.next(t, running(1, "a")), 0, 1)
	a.lost(t, a.next(t, running(1, "a")), 0, 2)
}

// TestLossesKeepTheTimeOfThePage: only pages set the time from which on counts would be missing.
func TestLossesKeepTheTimeOfThePage(t *testing.T) {
	t.Parallel()
	a := newAgents(t)
	r := a.next(t, running(1, "a"))
	r.scrape(t)
	page := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(a.losses(), page, page); err != nil {
		t.Fatal(err)
	}
	r.process = running(2, "b")
	if _, err := r.read(t.Context(), requestsOnly, nil); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(a.losses())
	if err != nil || !fi.ModTime().Equal(page) {
		t.Errorf("the time is another: %v, %v", fi, err)
	}
	if n := r.losses.times(); n != [enders]uint64{1, 0} {
		t.Errorf("losses: %v", n)
	}
}
