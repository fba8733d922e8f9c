package registry

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// of is a source with those workloads of the namespace a.
func of(numbers ...int) *mesh.Fragment {
	slices.Sort(numbers)
	f := &mesh.Fragment{}
	for _, i := range numbers {
		f.Workloads = append(f.Workloads, workload("a", i, "x"))
	}
	return f
}

// upTo are the numbers from from to to, without to.
func upTo(from, to int) []int {
	var list []int
	for i := from; i < to; i++ {
		list = append(list, i)
	}
	return list
}

// guarded is a source whose readings the guard decides about.
type guarded struct {
	limits
	window   *window
	now      time.Time
	services *mesh.Fragment // or nil
	snapshot *mesh.Snapshot
	force    *mesh.Fragment
	held     holds
	events   []lossEvent
}

func newGuarded(services *mesh.Fragment, bound ...string) *guarded {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &guarded{
		limits: limits{share: 0.3, floor: 5, confirmAfter: 10 * time.Second, bound: bound}, services: services,
		window: newWindow(DefaultRemovalWindow, bound, now), now: now,
	}
}

// read gives the guard a reading some time after the one before, and returns how many
// objects are in force and how many are held.
func (g *guarded) read(after time.Duration, next *mesh.Fragment) (force, held int) {
	g.now = g.now.Add(after)
	r := reading{limits: g.limits, prev: g.force, next: next, held: g.held, snapshot: g.snapshot, window: g.window, now: g.now}
	prev, before := g.force, g.held
	g.force, g.held = r.decide()
	d := mesh.Compare(prev, g.force)
	if prev == nil {
		g.window.first(d)
	} else {
		g.note(d, before)
		g.window.accepted(d, before, g.snapshot, g.now)
	}
	if g.services != nil {
		g.snapshot = mesh.NewSnapshot(g.snapshot, fallback(), []*mesh.Fragment{g.services, g.force})
	}
	return g.force.Count(""), len(g.held)
}

// A loss in small steps is held like one in a single step, and so is one that ends with
// nothing.
func TestLossInSmallStepsIsHeld(t *testing.T) {
	t.Parallel()
	for _, every := range []time.Duration{0, 10 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
		g := newGuarded(nil)
		g.read(0, of(upTo(0, 20)...))
		for i := 1; i <= 20; i++ {
			if force, held := g.read(every, of(upTo(i, 20)...)); force != 20-min(i, 6) || held != i-min(i, 6) {
				t.Fatalf("every %v: without %d of 20: %d in force, %d held", every, i, force, held)
			}
		}
		if force, held := g.read(24*time.Hour, of()); force != held || held != 14 || !g.held.byPerson() {
			t.Errorf("every %v: nothing is left: %d in force, %d held", every, force, held)
		}
	}
}

// The same of the endpoints of a service in a large source, whether it selects them or they
// are written in it.
func TestServiceThatShrinksInSmallStepsIsHeld(t *testing.T) {
	t.Parallel()
	services := &mesh.Fragment{Services: []*mesh.Service{service("a", "x", "x")}}
	rest := workloads("b", 0, 200, "y")
	for name, fragment := range map[string]func(from int) *mesh.Fragment{
		"selected": func(from int) *mesh.Fragment {
			return &mesh.Fragment{Workloads: append(workloads("a", from, 20, "x"), rest...)}
		},
		"inline": func(from int) *mesh.Fragment {
			return &mesh.Fragment{Services: []*mesh.Service{inlineService("a", "s", from, 20)}, Workloads: rest}
		},
	} {
		g := newGuarded(services)
		g.read(0, fragment(0))
		for i := 1; i <= 12; i++ {
			g.read(500*time.Millisecond, fragment(i))
			left := len(g.force.Workloads) - len(rest)
			for _, svc := range g.force.Services {
				left = len(svc.Inline)
			}
			if left != 20-min(i, 6) || i > 6 && len(g.held) == 0 {
				t.Errorf("%s: without %d of 20: %d in force, %d held", name, i, left, len(g.held))
			}
		}
		for _, h := range g.held {
			if h.reason != ServiceShrank {
				t.Errorf("%s: %s", name, h.reason)
			}
		}
		if g.read(11*time.Second, fragment(12)); name == "selected" && len(g.held) > 0 {
			t.Errorf("%s: the second reading: %d held", name, len(g.held))
		}
	}
}

// A namespace that the source is bound to and that becomes empty in small steps waits for a
// person.
func TestNamespaceThatEmptiesInSmallStepsIsHeld(t *testing.T) {
	t.Parallel()
	g := newGuarded(nil, "b")
	both := func(b int) *mesh.Fragment {
		return &mesh.Fragment{Workloads: append(workloads("a", 0, 100, "x"), workloads("b", b, 6, "x")...)}
	}
	g.read(0, both(0))
	for i := range 5 {
		if _, held := g.read(15*time.Second, both(i+1)); held != 0 {
			t.Fatalf("without %d: %d held", i+1, held)
		}
	}
	if _, held := g.read(15*time.Second, both(6)); held != 1 || !g.held.byPerson() {
		t.Errorf("the namespace is empty: %d held", held)
	}
}

// Instances that are replaced are no loss, however the old and the new ones follow one another.
func TestRollingReplacementIsNotHeld(t *testing.T) {
	t.Parallel()
	services := &mesh.Fragment{Services: []*mesh.Service{service("a", "x", "x")}}
	for name, order := range map[string][2]bool{"new_first": {true, false}, "old_first": {false, true}, "together": {true, true}} {
		for _, batch := range []int{1, 2, 4, 5} {
			g := newGuarded(services)
			numbers := upTo(0, 20)
			g.read(0, of(numbers...))
			for round := range 3 { // three deployments, one after the other
				for i := 0; i < 20; i += batch {
					for _, add := range order {
						for j := i; j < i+batch; j++ {
							was, is := round*20+j, round*20+20+j
							if add {
								numbers = append(numbers, is)
							}
							if !add || order[0] == order[1] {
								numbers = slices.DeleteFunc(numbers, func(n int) bool { return n == was })
							}
						}
						if order[0] == order[1] {
							slices.Sort(numbers)
							numbers = slices.Compact(numbers)
						}
						if _, held := g.read(2*time.Second, of(slices.Clone(numbers)...)); held > 0 {
							t.Fatalf("%s, %d at a time, round %d, at %d: %d held", name, batch, round, i, held)
						}
					}
				}
			}
		}
	}
}

// Fewer instances than before need no person, at once or one by one, and count once only.
func TestScaleInNeedsNoPerson(t *testing.T) {
	t.Parallel()
	services := &mesh.Fragment{Services: []*mesh.Service{service("a", "x", "x")}}
	g := newGuarded(services)
	g.read(0, of(upTo(0, 20)...))
	g.read(time.Second, of(upTo(12, 20)...))
	if len(g.held) != 12 || g.held.byPerson() {
		t.Fatalf("20 to 8: %d held", len(g.held))
	}
	if force, held := g.read(10*time.Second, of(upTo(12, 20)...)); force != 8 || held != 0 {
		t.Fatalf("the second reading: %d in force, %d held", force, held)
	}
	if force, held := g.read(time.Second, of(upTo(13, 20)...)); force != 7 || held != 0 {
		t.Errorf("one more: %d in force, %d held: what was confirmed counts again", force, held)
	}

	g = newGuarded(services)
	g.read(0, of(upTo(0, 20)...))
	for i := range 12 {
		g.read(3*time.Second, of(upTo(i+1, 20)...))
		for _, h := range g.held {
			if g.now.Sub(h.since) > 12*time.Second || h.reason.byPerson() {
				t.Fatalf("held for %v: %s", g.now.Sub(h.since), h.reason)
			}
		}
	}
	if force, held := g.read(10*time.Second, of(upTo(12, 20)...)); force != 8 || held != 0 {
		t.Errorf("one by one: %d in force, %d held", force, held)
	}
}

// What goes as slowly as a fleet that shrinks is not held.
func TestSlowLossIsNotHeld(t *testing.T) {
	t.Parallel()
	g := newGuarded(nil)
	g.read(0, of(upTo(0, 60)...))
	for i := range 40 {
		if _, held := g.read(DefaultRemovalWindow/4, of(upTo(i+1, 60)...)); held > 0 {
			t.Fatalf("without %d: %d held", i+1, held)
		}
	}
}

// A service that comes and goes with its instances, or instances that change their labels and
// come and go, lose nothing by that, however often.
func TestFlappingServiceIsNotHeld(t *testing.T) {
	t.Parallel()
	rest := workloads("b", 0, 20, "y")
	there := &mesh.Fragment{Services: []*mesh.Service{service("a", "x", "x")}, Workloads: append(workloads("a", 0, 2, "x"), rest...)}
	relabeled := &mesh.Fragment{Services: there.Services, Workloads: append(workloads("a", 0, 2, "z"), rest...)}
	gone := &mesh.Fragment{Workloads: rest}
	away := &mesh.Fragment{Services: there.Services, Workloads: rest}
	for name, readings := range map[string][]*mesh.Fragment{
		"with its instances": {there, gone}, "alone": {there, away}, "labels": {there, relabeled, away}, "labels back": {relabeled, there, away},
	} {
		g := newGuarded(&mesh.Fragment{})
		for i := range 300 {
			if _, held := g.read(30*time.Millisecond, readings[i%len(readings)]); held > 0 {
				t.Fatalf("%s: reading %d: %d held", name, i, held)
			}
		}
	}
}

// A window has no more than what changed in it, whatever the number of changes.
func TestWindowIsBounded(t *testing.T) {
	t.Parallel()
	g := newGuarded(&mesh.Fragment{Services: []*mesh.Service{service("a", "x", "x")}}, "a")
	g.read(0, of(upTo(0, 40)...))
	for i := range 2000 {
		g.read(200*time.Millisecond, of(upTo(i%2, 40)...))
	}
	for _, x := range []tally{g.window.source, g.window.namespaces["a"], g.window.services[idOf(g.services.Services[0])]} {
		if n := len(x.marks); n < windowSlots || n > windowSlots+1 {
			t.Errorf("%d marks", n)
		}
	}
	g.read(DefaultRemovalWindow+time.Minute, of(upTo(0, 40)...))
	g.read(DefaultRemovalWindow+time.Minute, of(append(upTo(0, 40), 99)...))
	if g.window.forget(g.now.Add(2 * DefaultRemovalWindow)); len(g.window.services)+len(g.window.source.marks) > 0 {
		t.Errorf("it has %d services and %d marks", len(g.window.services), len(g.window.source.marks))
	}
}

// lossEvent is an object that came or went, for the definition by brute force.
type lossEvent struct {
	slot      int64
	key       mesh.Key
	app       string
	by        int
	confirmed bool
}

// note puts down what came and went.
func (g *guarded) note(d *mesh.Difference, before holds) {
	for _, x := range d.Workloads() {
		e := lossEvent{slot: g.window.at(g.now), by: 1}
		switch {
		case x.Old == nil:
			e.key, e.app = x.New.Key, x.New.Labels["app"]
		case x.New == nil:
			e.key, e.app, e.by = x.Old.Key, x.Old.Labels["app"], -1
			_, e.confirmed = before[e.key]
		default:
			continue
		}
		g.events = append(g.events, e)
	}
}

// lostBy is how many of those that match were lost since the window began.
func (g *guarded) lostBy(match func(lossEvent) bool) int {
	sum := 0
	for _, e := range g.events {
		if e.slot >= g.window.begin(g.now) && !e.confirmed && match(e) {
			sum += e.by
		}
	}
	return max(0, -sum)
}

// TestGuardKeepsItsPromise plays random histories. No loss that was not confirmed is larger
// than allowed, at any pace, and nothing else is held.
func TestGuardKeepsItsPromise(t *testing.T) {
	t.Parallel()
	histories := 150
	if testing.Short() {
		histories = 60
	}
	heldInAll, passedInAll := 0, 0
	for seed := range histories {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		services := &mesh.Fragment{Services: []*mesh.Service{service("a", "s0", "s0"), service("a", "s1", "s1"), service("b", "s2", "s2")}}
		g := newGuarded(services, "b")
		in := map[int]bool{}
		for i := range 10 + r.IntN(60) {
			in[i] = true
		}
		fragment := func() *mesh.Fragment {
			f := &mesh.Fragment{}
			for i := range 200 {
				if in[i] {
					n := i * 7 % 3
					f.Workloads = append(f.Workloads, workload([]string{"a", "a", "b"}[n], i, fmt.Sprint("s", n)))
				}
			}
			return f.Sorted()
		}
		g.read(0, fragment())
		pace := []time.Duration{time.Second, 5 * time.Second, 40 * time.Second}[r.IntN(3)]
		for range 60 {
			for range r.IntN(3) {
				delete(in, r.IntN(70))
			}
			if r.IntN(3) == 0 {
				in[r.IntN(200)] = true
			}
			g.step(t, seed, rand.N(pace), fragment(), &heldInAll, &passedInAll)
		}
	}
	if heldInAll == 0 || passedInAll == 0 {
		t.Errorf("%d removals held, %d not: the histories show nothing", heldInAll, passedInAll)
	}
}

// step plays one reading and compares what the guard decided with the definition.
func (g *guarded) step(t *testing.T, seed int, after time.Duration, next *mesh.Fragment, heldInAll, passedInAll *int) {
	t.Helper()
	at := g.now.Add(after)
	g.now = at // the definition looks from here
	all := func(lossEvent) bool { return true }
	before, heldBefore := g.force, g.held
	removed := mesh.Compare(before, next).Removed()
	lost, total := g.lostBy(all), before.Count("")
	if got := g.window.source.lost(g.window.begin(at)); got != lost || g.window.source.now != total {
		t.Fatalf("history %d: %d lost of %d, want %d of %d", seed, got, g.window.source.now, lost, total)
	}
	if b := g.window.namespaces["b"]; b.now != before.Count("b") || b.lost(g.window.begin(at)) != g.lostBy(func(e lossEvent) bool { return e.key.Namespace == "b" }) {
		t.Fatalf("history %d: namespace b: %+v", seed, b)
	}
	tooMany := g.tooMany(len(removed)+lost, total+lost)
	for _, svc := range g.snapshot.Services {
		lost := g.lostBy(func(e lossEvent) bool { return e.app == svc.Selector["app"] })
		if got := g.window.lostOf(svc, at); got != lost {
			t.Fatalf("history %d: service %s lost %d, want %d", seed, svc.Name, got, lost)
		}
		gone := 0
		for _, x := range removed {
			if w, ok := slices.BinarySearchFunc(g.snapshot.Workloads, x.Key, func(w *mesh.Workload, k mesh.Key) int { return w.Compare(k) }); ok && g.snapshot.Workloads[w].Labels["app"] == svc.Selector["app"] {
				gone++
			}
		}
		tooMany = tooMany || g.tooMany(gone+lost, len(g.snapshot.EndpointsOf(svc))+lost)
	}
	emptied := next.Empty() || next.Count("b") == 0 && before.Count("b") > 0

	g.read(0, next)
	passed := 0
	for _, x := range mesh.Compare(before, g.force).Removed() {
		if _, confirmed := heldBefore[x.Key]; !confirmed {
			passed++
		}
	}
	*heldInAll += len(g.held)
	*passedInAll += passed
	if passed > 0 && g.tooMany(passed+lost, total+lost) {
		t.Fatalf("history %d: %d went beside %d that were lost before, of %d", seed, passed, lost, total+lost)
	}
	if !tooMany && !emptied && len(g.held) > 0 {
		t.Fatalf("history %d: %d are held although %d and %d of %d are not too many", seed, len(g.held), len(removed), lost, total+lost)
	}
}
