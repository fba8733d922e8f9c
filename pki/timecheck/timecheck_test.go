package timecheck

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/internal/peeraddr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const day = 24 * time.Hour

// bench is a Check with clocks that a test sets.
type bench struct {
	*Check
	t *testing.T
	r reading
}

func newBench(t *testing.T, path string) *bench {
	t.Helper()
	if path == "" {
		path = filepath.Join(t.TempDir(), "clock.json")
	}
	c, err := New(Config{Logger: slog.New(slog.DiscardHandler), Path: path})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{c, t, read()}
}

// host has a host say that its clock is off the true time, which is b.r's.
func (b *bench) host(name, address string, off time.Duration) (forget func()) {
	return b.vote(vote{name, peeraddr.Host(address), b.r.origin().Add(off)})
}

// hosts are n hosts whose clocks are right.
func (b *bench) hosts(n int) {
	for i := range n {
		b.host(fmt.Sprint("host-", i), fmt.Sprintf("10.0.0.%d:1000", i), 0)
	}
}

// heldAt reports whether signing is on hold where the wall clock is off the true time.
func (b *bench) heldAt(off time.Duration) bool {
	r := b.r
	r.wall = r.wall.Add(off)
	b.look(r)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holdLocked(r) != nil
}

func TestServerClockStepHoldsSigningUntilItIsRight(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{-365 * day, -day, -6 * time.Minute, 6 * time.Minute, day, 50 * 365 * day} {
		b := newBench(t, "")
		b.hosts(3)
		if b.heldAt(0) {
			t.Errorf("%s: held while all agree", step)
		}
		if !b.heldAt(step) {
			t.Errorf("%s: signs by a clock that no host shares", step)
		}
		b.r.kernel += day // and goes on for a day
		b.r.wall = b.r.wall.Add(day)
		if !b.heldAt(step) {
			t.Errorf("%s: signs a day later", step)
		}
		if b.heldAt(0) {
			t.Errorf("%s: held although the clock is right again", step)
		}
		if b.alarm != nil {
			t.Errorf("%s: right again, and there is an alarm: %v", step, b.alarm)
		}
	}
	b := newBench(t, "")
	b.hosts(5)
	if b.heldAt(4*time.Minute) || b.heldAt(-4*time.Minute) {
		t.Error("a skew holds signing")
	}
}

// TestMinoritiesHoldNothing has hosts lie by all that they like: whoever is no
// majority of at least three votes cannot stop the server.
func TestMinoritiesHoldNothing(t *testing.T) {
	t.Parallel()
	for n := range 8 {
		for liars := range n + 1 {
			for _, off := range []time.Duration{-56 * 365 * day, -day, day} {
				b := newBench(t, "")
				for i := range n {
					lie := time.Duration(0)
					if i < liars {
						lie = off
					}
					b.host(fmt.Sprint("host-", i), fmt.Sprintf("10.0.0.%d:1000", i), lie)
				}
				if got, want := b.heldAt(0), n >= MinVotes && 2*liars > n; got != want {
					t.Errorf("%d of %d hosts are %s off: held %v, want %v", liars, n, off, got, want)
				}
			}
		}
	}
}

func TestOneVoteAHostAndAddress(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	for i := range 50 {
		b.host(fmt.Sprint("liar-", i), fmt.Sprintf("10.0.0.9:%d", 1000+i), day) // many hosts, one address
		b.host("liar", fmt.Sprintf("10.0.1.%d:1000", i), day)                   // one host, many addresses
	}
	b.hosts(2)
	if b.heldAt(0) {
		t.Error("held by one host, and one address")
	}
	if st := b.Status(); st.Voters != 4 {
		t.Errorf("%d votes, want 4: %v", st.Voters, st)
	}
}

// TestOneVoteANetwork: a machine has all addresses of a /64 of IPv6, so that many hosts
// there have one vote. In a mesh of one or two networks each address has one.
func TestOneVoteANetwork(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	for i := range 50 {
		b.host(fmt.Sprint("liar-", i), fmt.Sprintf("[2001:db8::%x]:1000", i), day)
		b.host(fmt.Sprint("mapped-", i), fmt.Sprintf("[::ffff:10.0.0.9]:%d", 1000+i), day)
		b.host(fmt.Sprint("plain-", i), fmt.Sprintf("10.0.0.9:%d", 1000+i), day)
	}
	b.hosts(3)
	if b.heldAt(0) {
		t.Error("held by two machines")
	}
	if st := b.Status(); st.Voters != 5 {
		t.Errorf("%d votes, want 5: %v", st.Voters, st)
	}
	b = newBench(t, "")
	for i := range 4 {
		b.host(fmt.Sprint("host-", i), fmt.Sprintf("[2001:db8::%x]:1000", i), 0)
	}
	if b.heldAt(0) || !b.heldAt(day) {
		t.Error("the hosts of one network do not agree on the time")
	}
}

func TestVotesEndWithTheirStreams(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	b.hosts(2)
	forget := b.host("wrong", "10.9.9.9:1", day)
	again := b.host("wrong", "10.9.9.9:2", 0) // its newest word counts
	if st := b.Status(); st.Voters != 3 || st.Off.Abs() > time.Minute {
		t.Errorf("%v", st)
	}
	if !b.heldAt(day) {
		t.Error("not held")
	}
	again()
	forget()
	if b.heldAt(day) || len(b.votes) != 2 {
		t.Errorf("held by the votes of streams that have ended: %v", b.votes)
	}
}

// TestPersonAccepts has a person say that the server's clock is right. It holds for
// that difference alone, across a restart, until the clocks agree.
func TestPersonAccepts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "clock.json")
	b := newBench(t, path)
	for i := range 3 {
		b.host(fmt.Sprint("host-", i), fmt.Sprintf("10.0.0.%d:1000", i), day)
	}
	if err := b.Hold(); err == nil || !strings.Contains(err.Error(), "fairlead clock accept") {
		t.Fatalf("hold: %v", err)
	}
	if st := b.Accept(); st.Held != "" || st.Accepted == nil {
		t.Errorf("accepted: %v", st)
	}
	if b.heldAt(0) || !b.heldAt(2*day) {
		t.Error("accepted is another difference than there was")
	}
	b = newBench(t, path)
	for i := range 3 {
		b.host(fmt.Sprint("host-", i), fmt.Sprintf("10.0.0.%d:1000", i), day)
	}
	if b.heldAt(0) {
		t.Error("forgotten by a restart")
	}
	if b.heldAt(day) { // they agree: forgotten
		t.Error("held while all agree")
	}
	if !b.heldAt(0) {
		t.Error("what was accepted once is accepted for ever")
	}
}

// TestAlarms: a clock that is set raises an alarm and holds nothing by itself.
func TestAlarms(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "clock.json")
	b := newBench(t, path)
	for _, step := range []time.Duration{-day, day, 2 * time.Minute} {
		if b.heldAt(step) || b.alarm == nil || (b.alarm.Off-step).Abs() > 5*time.Second {
			t.Errorf("%s: alarm %v", step, b.alarm)
		}
		if b.heldAt(0) || b.alarm != nil {
			t.Errorf("%s and back: alarm %v", step, b.alarm)
		}
	}
	if b.heldAt(20*time.Second) || b.alarm != nil {
		t.Errorf("a small step: alarm %v", b.alarm)
	}
	ahead := b.r
	ahead.wall = ahead.wall.Add(day)
	b.save(ahead)
	b = newBench(t, path)
	if b.alarm == nil || len(b.Remarks()) != 1 {
		t.Fatalf("behind the saved time: %v", b.Remarks())
	}
	if b.Accept(); b.alarm != nil {
		t.Error("accepted, and there is an alarm")
	}
	if b = newBench(t, path); b.alarm != nil {
		t.Errorf("accepted, and after a restart there is an alarm again: %v", b.alarm)
	}
	b.save(ahead)
	b = newBench(t, path)
	b.hosts(3)
	if b.heldAt(0) || b.alarm != nil {
		t.Error("hosts agree, and there is an alarm")
	}
	if err := os.WriteFile(path, []byte("no"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b = newBench(t, path); b.alarm != nil {
		t.Errorf("a broken file: %v", b.alarm)
	}
}

func TestHostTimeIsOfTheMomentItWasSaid(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	// It waited for ten minutes to be read.
	at := time.Now().Add(-10 * time.Minute)
	b.HostTime("web", "10.0.0.1:1", at.Round(0), at)
	if st := b.Status(); st.Voters != 1 || st.Off.Abs() > 10*time.Second {
		t.Errorf("%v", st)
	}
	if got := b.Estimate(b.r.wall); !got.Equal(b.r.wall) {
		t.Errorf("estimate %s", got)
	}
}

// TestOutvotersAreNamed: while signing is on hold, those hosts are named that outvote
// the server, a bounded number of them, and nobody else is; not what everybody may read.
func TestOutvotersAreNamed(t *testing.T) {
	t.Parallel()
	for _, liars := range []int{2, 3, maxVoters, maxVoters + 5} {
		var log strings.Builder
		c, err := New(Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Path: filepath.Join(t.TempDir(), "clock.json")})
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{c, t, read()}
		b.host("honest", "10.1.0.1:1", 0)
		b.host("late", "10.1.0.2:1", -time.Hour) // wrong, and not to that side
		for i := range liars {
			b.host(fmt.Sprint("liar-", i), fmt.Sprintf("10.0.0.%d:1000", i), day+time.Duration(i)*time.Second)
		}
		b.host("beside", "10.0.0.0:1", 0) // at a liar's address: the one closer to the server counts there
		held := b.heldAt(0)
		st := b.Status()
		if held != (liars > 3) || held != (st.Held != "") { // of 2 and n-1
			t.Fatalf("%d liars: held %v", liars, held)
		}
		if !held {
			if len(st.Against) > 0 || st.Outvoted() != "" {
				t.Errorf("%d liars: nothing is on hold, and %s", liars, st.Outvoted())
			}
			continue
		}
		n := min(liars-1, maxVoters)
		if len(st.Against) != n || st.AgainstMore != liars-1-n {
			t.Errorf("%d liars: %+v and %d", liars, st.Against, st.AgainstMore)
		}
		for i, v := range st.Against {
			want := Voter{fmt.Sprint("liar-", liars-1-i), fmt.Sprintf("10.0.0.%d", liars-1-i), v.Off}
			if v != want || v.Off.Round(time.Minute) != day || !strings.Contains(st.Outvoted(), v.Host+" at "+v.Address) || !strings.Contains(log.String(), v.Host) {
				t.Errorf("%d liars: %+v, want %+v; %s; log %s", liars, v, want, st.Outvoted(), log.String())
			}
		}
		if text := strings.Join(st.Remarks(), " ") + st.Held; strings.Contains(text, "liar-") {
			t.Errorf("everybody may read %s", text)
		}
		if !strings.Contains(st.Outvoted(), "fairlead clock accept") || !strings.Contains(st.Outvoted(), "fairlead host remove") {
			t.Errorf("no way out in %q", st.Outvoted())
		}
	}
}

// TestManyAtOneAddressHideNoOutvoter: they have one vote, and one of them is named
// before any second one.
func TestManyAtOneAddressHideNoOutvoter(t *testing.T) {
	t.Parallel()
	b := newBench(t, "")
	for i := range 3 * maxVoters {
		b.host(fmt.Sprint("many-", i), "10.0.0.1:1", 2*day+time.Duration(i)*time.Second)
	}
	b.host("one", "10.0.0.2:1", day)
	b.host("two", "10.0.0.3:1", day)
	st := b.Status()
	if !b.heldAt(0) || len(st.Against) != maxVoters || !strings.Contains(st.Outvoted(), "one at 10.0.0.2 ") || !strings.Contains(st.Outvoted(), "two at 10.0.0.3 ") {
		t.Errorf("%s", st.Outvoted())
	}
}
