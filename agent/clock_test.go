package agent

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/pki/svid"
)

const day = 24 * time.Hour

// keeper renews the identities of an agent without Envoy; its own clock is an argument.
func keeper(t *testing.T, state, token string) *identities {
	t.Helper()
	a, err := New(Config{
		Logger: slog.New(slog.DiscardHandler), StateDir: state, RunDir: t.TempDir(), Token: token, Address: netip.MustParseAddr("127.0.0.1"),
	})
	if err != nil {
		t.Fatal(err)
	}
	a.openClock(t.Context())
	e := must[*enrolled](t)(a.enroll(t.Context()))
	guard := must[*peercred.Guard](t)(a.guard(sdsSocket, "a-token-that-nobody-ever-shows", nil))
	secrets := must[*workload.Server](t)(workload.New(workload.Config{Logger: a.log, Socket: filepath.Join(a.c.RunDir, sdsSocket), Guard: guard}))
	return must[*identities](t)(newIdentities(a, e, secrets))
}

// renewAll renews everything that the clocks make due, as after a while.
func (i *identities) renewAll(t *testing.T, own time.Time) {
	t.Helper()
	i.notBefore = time.Time{}
	if err := i.check(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	i.a.saver.flush(t.Context())
}

// due makes everything due.
func (i *identities) due() { i.hostDue, i.workloadDue = time.Time{}, time.Time{} }

func in(id *svid.Identity, now time.Time) bool {
	return !now.Before(id.Leaf().NotBefore) && now.Before(id.NotAfter())
}

// TestLateAnswer has certificates that begin after they were requested, because the server was
// busy. No clock is wrong then.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	p := newPlane(t, 10*time.Second) // certificates begin a second before they are signed
	i := keeper(t, t.TempDir(), p.token("orders-1", "shop/orders"))
	i.renewAll(t, time.Now())
	p.late.Store(int64(2 * time.Second))
	i.due()
	i.renewAll(t, time.Now())
	if newest := i.workloadIDs.New; i.a.workload.Load() != newest {
		t.Errorf("Envoy has a certificate of %s, not the newest, of %s", i.a.workload.Load().Leaf().NotBefore, newest.Leaf().NotBefore)
	}
}

// TestServerClockAheadAndBack renews while the server's clock is a day ahead, and again when
// it is right. Envoy has a valid certificate all the time, also after a restart of the agent,
// and nobody has to act.
func TestServerClockAheadAndBack(t *testing.T) {
	t.Parallel()
	p, state, now := newPlane(t, day), t.TempDir(), time.Now()
	i := keeper(t, state, p.token("orders-1", "shop/orders"))
	i.renewAll(t, now)
	first := i.a.workload.Load()

	p.ahead.Store(int64(day))
	i.due()
	i.renewAll(t, now)
	if early := i.workloadIDs.New.Leaf(); !now.Before(early.NotBefore) {
		t.Fatalf("the test did not put the server's clock ahead: %s", early.NotBefore)
	}
	for range 3 { // asked again while it is ahead, and restarted
		if have := i.a.workload.Load(); have.Leaf().SerialNumber.Cmp(first.Leaf().SerialNumber) != 0 {
			t.Fatalf("Envoy has a certificate of %s to %s, at %s", have.Leaf().NotBefore, have.NotAfter(), now)
		}
		i.renewAll(t, now)
		i = keeper(t, state, "")
	}
	if i.a.clockMismatch(now) == "" {
		t.Error("nothing reports that the clocks differ")
	}

	p.ahead.Store(0)
	i.renewAll(t, now)
	for what, id := range map[string]*svid.Identity{"host": i.a.host.Load(), "workload": i.a.workload.Load()} {
		if !in(id, now) {
			t.Errorf("right again: the %s has a certificate of %s to %s, at %s", what, id.Leaf().NotBefore, id.NotAfter(), now)
		}
	}
	if mismatch := i.a.clockMismatch(now); mismatch != "" {
		t.Errorf("right again: %s", mismatch)
	}
	if again := i.workloadDue.Sub(now); again < 10*time.Hour || again > 14*time.Hour {
		t.Errorf("right again: the next renewal is in %s", again)
	}
}

// TestServerClockBehindAndBack has the server sign certificates that are expired when they
// arrive.
func TestServerClockBehindAndBack(t *testing.T) {
	t.Parallel()
	p, now := newPlane(t, day), time.Now()
	i := keeper(t, t.TempDir(), p.token("orders-1", "shop/orders"))
	i.renewAll(t, now)
	p.ahead.Store(int64(-2 * day))
	i.due()
	for range 3 {
		i.renewAll(t, now)
		for what, id := range map[string]*svid.Identity{"host": i.a.host.Load(), "workload": i.a.workload.Load()} {
			if !in(id, now) {
				t.Fatalf("the %s has a certificate of %s to %s, at %s", what, id.Leaf().NotBefore, id.NotAfter(), now)
			}
		}
	}
	p.ahead.Store(0)
	i.renewAll(t, now)
	if have := i.workloadIDs.New; !in(have, now) || !in(i.hostIDs.New, now) {
		t.Errorf("right again: a certificate of %s to %s", have.Leaf().NotBefore, have.NotAfter())
	}
}

// TestUpgradeWithFutureCertificate starts with the files of the release before after the
// server's clock was ahead: one certificate, which begins tomorrow.
func TestUpgradeWithFutureCertificate(t *testing.T) {
	t.Parallel()
	p, state, now := newPlane(t, day), t.TempDir(), time.Now()
	p.ahead.Store(int64(day))
	keeper(t, state, p.token("orders-1", "shop/orders")).renewAll(t, now)
	for _, pattern := range []string{"clock.json", "*-previous", "workloads/*-previous"} {
		files := must[[]string](t)(filepath.Glob(filepath.Join(state, pattern)))
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.ahead.Store(0)
	i := keeper(t, state, "")
	if err := i.check(t.Context(), now); err != nil { // at once
		t.Fatal(err)
	}
	if have := i.a.workload.Load(); !in(have, now) || !in(i.a.host.Load(), now) {
		t.Errorf("a certificate of %s to %s, at %s", have.Leaf().NotBefore, have.NotAfter(), now)
	}
}

// TestBothClocksAheadAndBack has the whole mesh a day ahead because of a wrong time source,
// and then set back. The lower bound of the time that was proven meanwhile must not lock the
// host out.
func TestBothClocksAheadAndBack(t *testing.T) {
	t.Parallel()
	p, state, now := newPlane(t, day), t.TempDir(), time.Now()
	i := keeper(t, state, p.token("orders-1", "shop/orders"))
	i.renewAll(t, now)
	p.ahead.Store(int64(day))
	i.due()
	i.renewAll(t, now.Add(day))
	if have := i.a.workload.Load(); !in(have, now.Add(day)) {
		t.Errorf("a day ahead Envoy has a certificate of %s to %s", have.Leaf().NotBefore, have.NotAfter())
	}
	p.ahead.Store(0)
	i.renewAll(t, now)
	if have := i.a.workload.Load(); !in(have, now) || i.a.clock.Behind(now) {
		t.Errorf("back again Envoy has a certificate of %s to %s; clock behind: %v", have.Leaf().NotBefore, have.NotAfter(), i.a.clock.Behind(now))
	}
}

// TestHostClockWrong sets the clock of one host, a boot in 1970 included. Its own clock proves
// nothing: the time that the authority proved stays, nothing is renewed in a loop, and all is
// well when the clock is right.
func TestHostClockWrong(t *testing.T) {
	t.Parallel()
	p, now := newPlane(t, day), time.Now()
	for name, own := range map[string]time.Time{
		"1970": time.Unix(100, 0), "a-day-behind": now.Add(-day), "half-a-day-ahead": now.Add(14 * time.Hour), "a-skew": now.Add(-30 * time.Second),
	} {
		state := t.TempDir()
		i := keeper(t, state, p.token("orders-"+name, "shop/orders"))
		i.renewAll(t, now)
		i = keeper(t, state, "") // boots with the wrong clock
		if got := i.a.clock.Now(own); got.Before(now.Add(-2 * time.Minute)) {
			t.Errorf("%s: the time is taken for %s", name, got)
		}
		if i.a.clock.Behind(own) != (name == "1970" || name == "a-day-behind") {
			t.Errorf("%s: behind: %v", name, i.a.clock.Behind(own))
		}
		for range 3 {
			if err := i.check(t.Context(), own); err != nil {
				t.Fatal(err)
			}
		}
		after := i.a.workload.Load()
		for range 3 { // no sooner again than askEvery
			if err := i.check(t.Context(), own); err != nil {
				t.Fatal(err)
			}
		}
		if i.a.workload.Load() != after {
			t.Errorf("%s: renewed again at once", name)
		}
		i.renewAll(t, now)
		if have := i.a.workload.Load(); !in(have, now) || i.a.clockMismatch(now) != "" {
			t.Errorf("%s: right again: a certificate of %s to %s; %s", name, have.Leaf().NotBefore, have.NotAfter(), i.a.clockMismatch(now))
		}
	}
}

// TestTokenPollsDoNotDelayClockChecks polls for a new token more often than the clock is
// checked. The clock is still checked, long before a renewal is due.
func TestTokenPollsDoNotDelayClockChecks(t *testing.T) {
	t.Parallel()
	const life = 20 * time.Second // looked at once a second
	p := newPlane(t, life)
	i := keeper(t, t.TempDir(), p.token("orders-1", "shop/orders"))
	i.renewAll(t, time.Now())
	polls := time.NewTicker(50 * time.Millisecond)
	defer polls.Stop()
	if _, more := i.await(t.Context(), polls.C, time.Time{}); !more {
		t.Fatal("the test ended")
	}
	if left := min(time.Until(i.hostDue), time.Until(i.workloadDue)); left < life/10 {
		t.Errorf("the clock was first looked at %s before a renewal", left)
	}
}
