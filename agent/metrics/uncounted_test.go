package metrics

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestUncountedIsNeverTooMuch: while requests and connections come and go, are reported at once,
// late or never, while Envoy and the agent restart and listeners are reported otherwise, never more
// is published than was lost; and in the end, once it is quiet, exactly what was lost, if nothing
// has happened that makes a difference unknowable.
func TestUncountedIsNeverTooMuch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                        string
		restarts, kills, flips, all bool
	}{
		{name: "one Envoy", all: true},
		{name: "restarts of Envoy", restarts: true},
		{name: "agents that were killed", kills: true},
		{name: "listeners that are reported otherwise", flips: true},
		{name: "everything", restarts: true, kills: true, flips: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			found := int64(0)
			seeds := uint64(300)
			if testing.Short() {
				seeds = 30
			}
			for seed := range seeds {
				p := newPlayed(seed, seed%2 == 0)
				p.changes = c.flips
				lossy := func() bool { return p.rnd.IntN(3) == 0 }
				last := p.published()
				check := func(what string, step int) {
					now := p.published()
					for i := range sides {
						for q := range quantities {
							if now[i][q] < last[i][q] {
								t.Fatalf("seed %d, step %d, %s: what is published fell from %v to %v", seed, step, what, last, now)
							}
						}
					}
					last = now
					if p.tooMany() {
						t.Fatalf("seed %d, step %d, %s: %v were published, %v were lost", seed, step, what, p.published(), p.lost)
					}
				}
				for step := range 150 {
					switch n := p.rnd.IntN(40); {
					case n == 0 && c.restarts:
						p.restart()
					case n == 1:
						p.handOver(true)
					case n == 2 && c.kills:
						p.handOver(false)
					case n == 3 && c.flips:
						p.flip()
					case n == 4 && c.flips:
						p.remove()
					case n < 8:
						p.now = p.now.Add(time.Minute)
					default:
						p.act(p.rnd.IntN(20), lossy())
					}
					p.read(lossy())
					check("read", step)
				}
				p.now = p.now.Add(time.Hour)
				p.deliver()
				for m, n := range p.open { // the rest ends
					delete(p.open, m)
					for range n {
						p.report(m, managersOf()[m], requestsEnded, true, 0)
					}
				}
				for range 3 {
					p.now = p.now.Add(time.Minute)
					p.u.settle(p.now, &totals{at: p.now, of: p.run, reported: p.u.reported, taken: maps.Clone(p.all), active: map[manager]uint64{}})
					check("quiet", 0)
				}
				if c.all && p.published() != p.lost {
					t.Errorf("seed %d: %v were published, %v were lost", seed, p.published(), p.lost)
				}
				for _, side := range p.published() {
					found += side[requestsEnded] + side[connectionsBegun]
				}
			}
			if found == 0 {
				t.Error("nothing was ever published")
			}
		})
	}
}

// TestHistoryIsBounded: however often the page is read, few readings are kept, and the one that is
// needed is among them.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	for _, every := range []time.Duration{time.Millisecond, time.Second, 7 * time.Second, time.Minute} {
		u := newUncounted(newStore(1))
		u.reporting = &reporting{side: managersOf(), interval: time.Minute}
		wait := connectionDelay + u.reporting.interval
		now := time.Unix(1e9, 0)
		for i := range 5000 {
			now = now.Add(every)
			u.remember(checkpoint{at: now})
			if n := len(u.history); n > 40 {
				t.Fatalf("every %s: %d readings are kept", every, n)
			}
			if time.Duration(i)*every < 2*wait {
				continue
			}
			if u.before(now.Add(-wait)) == nil {
				t.Fatalf("every %s: no reading is old enough", every)
			}
		}
	}
}

// settled is an uncounted whose Envoy has one listener of a kind, after a reading of no traffic.
func settled(t *testing.T, tcp bool) (u *uncounted, m manager, read func(after time.Duration, taken, active uint64) amounts) {
	t.Helper()
	m = manager{tcp, "x"}
	now := time.Unix(1e9, 0)
	p := &played{u: newUncounted(newStore(10))}
	u = p.u
	u.reporting = &reporting{side: map[manager]reporter{m: source}}
	u.follow(Process{PID: 1, Since: now})
	read = func(after time.Duration, taken, active uint64) amounts {
		now = now.Add(after)
		u.settle(now, &totals{at: now, of: u.envoy, reported: u.reported, taken: map[manager]uint64{m: taken}, active: map[manager]uint64{m: active}})
		return p.published()
	}
	read(0, 0, 0)
	return u, m, read
}

// TestManagersThatReturn: totals of a listener that was removed and is back count from 0.
func TestManagersThatReturn(t *testing.T) {
	t.Parallel()
	u, _, read := settled(t, false)
	u.report(source, requestsEnded, 5)
	if got := read(time.Second, 6, 0); got[0][requestsEnded] != 1 {
		t.Fatal(got)
	}
	u.report(source, requestsEnded, 1)
	if got := read(time.Second, 2, 0); got[0][requestsEnded] != 2 {
		t.Errorf("%v, want one more", got)
	}
}

// TestTotalsOfAnotherEnvoy: totals that were read before Envoy was replaced say nothing of the next.
func TestTotalsOfAnotherEnvoy(t *testing.T) {
	t.Parallel()
	u, m, read := settled(t, false)
	u.follow(Process{PID: 2, Since: time.Unix(1e9+1, 0)})
	u.settle(time.Unix(1e9+2, 0), &totals{of: Process{PID: 1, Since: time.Unix(1e9, 0)}, taken: map[manager]uint64{m: 7}})
	if got := read(time.Minute, 0, 0); got != (amounts{}) {
		t.Error(got)
	}
}

// TestConnectionsBeyondTheLimit: connections that are not followed count when they end, and are not
// missing until then.
func TestConnectionsBeyondTheLimit(t *testing.T) {
	t.Parallel()
	u, _, read := settled(t, true)
	read(time.Minute, 3, 0)
	u.unfollowed = true
	read(time.Minute, 3, 0)
	if got := read(time.Minute, 3, 0); got != (amounts{}) {
		t.Errorf("%v connections are missing that are open", got)
	}
	if read(time.Minute, 5, 0); read(time.Minute, 5, 0)[0][connectionsBegun] != 2 {
		t.Error("two connections were lost after it, and are not published")
	}
}

// TestReadingsAfterAKill: after an agent was killed, the first two readings say from where on requests
// are compared; what comes between the parts of the first counts as reported to nobody.
func TestReadingsAfterAKill(t *testing.T) {
	t.Parallel()
	m := manager{false, "x"}
	p := &played{u: newUncounted(newStore(10))}
	p.u.reporting = &reporting{side: map[manager]reporter{m: source}}
	run := Process{PID: 1, Since: time.Unix(1e9, 0), Adopted: true}
	p.u.follow(run)
	read := func(taken uint64) amounts {
		p.u.settle(time.Unix(1e9, 0), &totals{of: run, reported: p.u.reported, taken: map[manager]uint64{m: taken}})
		return p.published()
	}
	read(10)
	// Three requests ended after that total was read, and before the series were: they are the base of
	// the series, and not reported.
	if read(13); read(13) != (amounts{}) {
		t.Fatal(p.published())
	}
	if got := read(14); got[0][requestsEnded] != 1 {
		t.Error(got)
	}
}

// TestListenersChange: while a listener drains that was reported in another way, nothing is compared;
// a new one changes nothing.
func TestListenersChange(t *testing.T) {
	t.Parallel()
	r := &rig{}
	listener := func(name, prefix string, side reporter) string {
		return strings.ReplaceAll(httpListener(name, 1, "direct_response: {status: 200}", httpLog(40, 10, side), ""), "stat_prefix: "+name+";", "stat_prefix: \""+prefix+";\"")
	}
	none := func(text string) string { return strings.ReplaceAll(text, "requests_total", "others") }
	was := listener("a", "inbound_fd00::1_80", destination) + listener("b", "b", source)
	for name, c := range map[string]struct {
		text   string
		unseen uint64 // changes between
		pauses bool
	}{
		"the same":        {was, 0, false},
		"another between": {was, 1, true},
		"one more":        {was + listener("c", "c", source), 0, false},
		"one is back":     {was + listener("c", "gone", source), 0, true},
		"one less":        {listener("b", "b", source), 0, true},
		"not counted":     {none(listener("a", "inbound_fd00::1_80", destination)) + listener("b", "b", source), 0, true},
		"the other side":  {listener("a", "inbound_fd00::1_80", source) + listener("b", "b", source), 0, true},
		"the same prefix": {was + none(listener("c", "b", source)), 0, true},
		"slower reports":  {was + tcpListener("t", 1, "x", source, ""), 0, true},
	} {
		u := newUncounted(newStore(10))
		see := func(listeners string, number uint64) {
			r.knows(t, "listeners:\n"+listeners)
			next, err := reportingOf(r.listeners.Bodies())
			if err != nil {
				t.Fatal(err)
			}
			u.configured(time.Unix(1e9, 0), number, next)
		}
		pauses := func() bool { return u.changing || !u.until.IsZero() }
		see(was, 1)
		if pauses() || u.reporting.side[manager{false, "inbound_fd00__1_80"}] != destination {
			t.Fatalf("the first listeners: %v, %v", pauses(), u.reporting.side)
		}
		u.last[manager{false, "gone"}] = 7 // of a listener that was removed and may still drain
		see(c.text, 2+c.unseen)
		if side := u.reporting.side[manager{false, "b"}]; (side == "") != (name == "the same prefix") {
			t.Errorf("%s: requests of b are reported by %q", name, side)
		}
		if pauses() != c.pauses {
			t.Errorf("%s: changing %v, until %s, want a pause: %v", name, u.changing, u.until, c.pauses)
		}
	}
}

// TestStateOfTheComparison: all of it is handed over to the next agent.
func TestStateOfTheComparison(t *testing.T) {
	t.Parallel()
	some := amounts{{1, 2}, {3, 4}}
	was := &uncounted{
		envoy: Process{PID: 1, Birth: "b"}, sum: some, reported: some, base: some, lost: some,
		last: map[manager]uint64{{true, "x"}: 5}, skip: 1, until: time.Unix(1e9, 0).UTC(), changing: true,
		reporting: &reporting{side: map[manager]reporter{{false, "y"}: source}, interval: time.Second},
	}
	j, err := json.Marshal(was.state("b"))
	if err != nil {
		t.Fatal(err)
	}
	saved := &stateUncounted{}
	if err := json.Unmarshal(j, saved); err != nil {
		t.Fatal(err)
	}
	for v, i := reflect.ValueOf(*saved), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not saved", v.Type().Field(i).Name)
		}
	}
	is := newUncounted(newStore(1))
	is.saved = saved
	is.follow(Process{PID: 1, Birth: "b", Adopted: true})
	if diff := cmp.Diff(saved, is.state("b")); diff != "" {
		t.Error(diff)
	}
}

// TestHostileState: a file cannot make differences that never were, or end the comparison.
func TestHostileState(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]stateUncounted{
		"negative": {Reported: amounts{{-5}}}, "far": {Until: time.Unix(1<<40, 0)}, "many": {Skip: 1 << 40}, "before": {Skip: -1},
	} {
		s.Envoy = "b"
		u := newUncounted(newStore(1))
		u.saved = &s
		u.follow(Process{PID: 1, Birth: "b", Adopted: true})
		if u.reported != (amounts{}) || u.skip < 0 || u.skip > maxSkip || time.Until(u.until) > maxPause {
			t.Errorf("%s: %+v", name, u)
		}
	}
}
