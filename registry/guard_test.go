package registry

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// guardCase plays readings of one source, one a line, and says after each how
// many workloads are in force and how many are held.
type guardCase struct {
	name   string
	limits limits
	steps  []guardStep
}

type guardStep struct {
	after       time.Duration
	next        *mesh.Fragment
	force, held int
	why         Reason
}

// all is a source with n workloads of the namespace a.
func all(n int) *mesh.Fragment { return &mesh.Fragment{Workloads: workloads("a", 0, n, "x")} }

// withB adds five workloads of the namespace b.
func withB(n int) *mesh.Fragment {
	return &mesh.Fragment{Workloads: append(workloads("a", 0, n, "x"), workloads("b", 0, 5, "x")...)}
}

func TestGuard(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(shrinkingCases(), emptyingCases()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.play(t)
		})
	}
}

func (c guardCase) play(t *testing.T) {
	t.Helper()
	l := c.limits
	l.floor, l.confirmAfter = 5, 10*time.Second
	if l.share == 0 {
		l.share = 0.3
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var prev *mesh.Fragment
	var held holds
	w := newWindow(DefaultRemovalWindow, l.bound, now)
	for i, s := range c.steps {
		now = now.Add(s.after)
		r := reading{limits: l, prev: prev, next: s.next, held: held, window: w, now: now}
		before, heldBefore := prev, held
		prev, held = r.decide()
		if d := mesh.Compare(before, prev); before == nil {
			w.first(d)
		} else {
			w.accepted(d, heldBefore, nil, now)
		}
		if got := prev.Count(""); got != s.force || len(held) != s.held {
			t.Fatalf("reading %d: %d in force and %d held, want %d and %d", i, got, len(held), s.force, s.held)
		}
		for key, h := range held {
			if h.reason != s.why || h.origin == nil {
				t.Fatalf("reading %d: %s is held for %q, want %q", i, key, h.reason, s.why)
			}
		}
		if held == nil && prev != s.next {
			t.Errorf("reading %d: nothing is held, but the fragment is another one", i)
		}
	}
}

// windowOf is the window of a source that has had prev from the beginning.
func windowOf(l limits, prev *mesh.Fragment, now time.Time) *window {
	w := newWindow(DefaultRemovalWindow, l.bound, now)
	w.first(mesh.Compare(nil, prev.Sorted()))
	return w
}

func shrinkingCases() []guardCase {
	return []guardCase{
		{"a_few_go_at_once", limits{}, []guardStep{{0, all(100), 100, 0, ""}, {0, all(71), 71, 0, ""}}},
		{"exactly_the_share_goes_at_once", limits{}, []guardStep{{0, all(100), 100, 0, ""}, {0, all(70), 70, 0, ""}}},
		{"below_the_floor_goes_at_once", limits{}, []guardStep{{0, all(6), 6, 0, ""}, {0, all(2), 2, 0, ""}}},
		{"small_sources_may_empty", limits{}, []guardStep{{0, all(4), 4, 0, ""}, {0, all(0), 0, 0, ""}}},
		{"many_wait_for_a_second_reading", limits{}, []guardStep{
			{0, all(100), 100, 0, ""},
			{0, all(69), 100, 31, SourceShrank},
			{9 * time.Second, all(69), 100, 31, SourceShrank},
			{time.Second, all(69), 69, 0, ""},
		}},
		{"additions_pass_a_held_removal", limits{}, []guardStep{
			{0, all(100), 100, 0, ""},
			{0, &mesh.Fragment{Workloads: workloads("a", 50, 120, "x")}, 120, 50, SourceShrank},
		}},
		{"what_comes_back_is_held_no_more", limits{}, []guardStep{
			{0, all(100), 100, 0, ""}, {0, all(50), 100, 50, SourceShrank}, {time.Minute, all(100), 100, 0, ""},
		}},
		{"a_source_on_the_move_starts_again", limits{}, []guardStep{
			{0, all(100), 100, 0, ""},
			{0, all(20), 100, 80, SourceShrank},
			{15 * time.Second, all(60), 100, 40, SourceShrank},
			{9 * time.Second, all(60), 100, 40, SourceShrank},
			{time.Second, all(60), 60, 0, ""},
		}},
		{"one_more_does_not_start_again", limits{}, []guardStep{
			{0, all(100), 100, 0, ""},
			{0, all(60), 100, 40, SourceShrank},
			{5 * time.Second, all(59), 100, 41, SourceShrank},
			{5 * time.Second, all(59), 59, 0, ""},
		}},
		{"many_more_wait_by_themselves", limits{}, []guardStep{
			{0, all(100), 100, 0, ""},
			{0, all(60), 100, 40, SourceShrank},
			{10 * time.Second, all(20), 60, 40, SourceShrank},
			{10 * time.Second, all(20), 20, 0, ""},
		}},
		{"a_share_of_one_switches_it_off", limits{share: 1}, []guardStep{
			{0, all(100), 100, 0, ""}, {0, all(1), 1, 0, ""},
		}},
	}
}

func emptyingCases() []guardCase {
	return []guardCase{
		{"empty_waits_for_a_person", limits{}, []guardStep{
			{0, all(5), 5, 0, ""}, {0, all(0), 5, 5, SourceEmpty}, {24 * time.Hour, all(0), 5, 5, SourceEmpty},
		}},
		{"empty_ends_by_itself_if_told_so", limits{emptyAfter: time.Hour}, []guardStep{
			{0, all(5), 5, 0, ""}, {0, all(0), 5, 5, SourceEmpty}, {59 * time.Minute, all(0), 5, 5, SourceEmpty}, {time.Minute, all(0), 0, 0, ""},
		}},
		{"held_and_then_empty_waits_for_a_person", limits{}, []guardStep{
			{0, all(100), 100, 0, ""},
			{0, all(50), 100, 50, SourceShrank},
			{20 * time.Second, all(0), 100, 100, SourceEmpty},
			{20 * time.Second, all(0), 100, 100, SourceEmpty},
			{0, all(40), 100, 60, SourceShrank},
			{10 * time.Second, all(40), 40, 0, ""},
		}},
		{"a_bound_namespace_becomes_empty", limits{bound: []string{"b"}}, []guardStep{
			{0, withB(100), 105, 0, ""},
			{0, all(99), 104, 5, NamespaceEmpty},
			{time.Hour, all(99), 104, 5, NamespaceEmpty},
		}},
		{"another_namespace_may", limits{}, []guardStep{
			{0, withB(100), 105, 0, ""},
			{0, all(100), 100, 0, ""},
		}},
		{"emptiness_counts_from_when_it_began", limits{emptyAfter: time.Hour}, []guardStep{
			{0, all(100), 100, 0, ""},
			{0, all(50), 100, 50, SourceShrank},
			{5 * time.Second, all(0), 100, 100, SourceEmpty},
			{time.Hour - time.Second, all(0), 100, 100, SourceEmpty},
			{time.Second, all(0), 0, 0, ""},
		}},
	}
}

func TestGuardOfEndpoints(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := limits{share: 0.3, floor: 5, confirmAfter: 10 * time.Second}
	big := append(workloads("a", 0, 90, "big"), workloads("a", 90, 100, "small")...)
	prev := &mesh.Fragment{Workloads: big}
	services := &mesh.Fragment{Services: []*mesh.Service{service("a", "big", "big"), service("a", "small", "small")}}
	snapshot := mesh.NewSnapshot(nil, fallback(), []*mesh.Fragment{prev, services})

	next := &mesh.Fragment{Workloads: append(append(workloads("a", 0, 85, "big"), prev.Workloads[90:94]...), workload("a", 200, "big"))}
	w := windowOf(l, prev, start)
	r := reading{limits: l, prev: prev, next: next, snapshot: snapshot, window: w, now: start}
	got, held := r.decide()
	if len(held) != 6 || got.Count("") != 85+10+1 {
		t.Fatalf("held %d, in force %d: want the six of the small service held, the five of the big one gone", len(held), got.Count(""))
	}
	for key, h := range held {
		if h.reason != ServiceShrank {
			t.Errorf("%s: %q", key, h.reason)
		}
	}
	w.accepted(mesh.Compare(prev, got), nil, snapshot, start)
	r = reading{limits: l, prev: got, next: next, held: held, snapshot: snapshot, window: w, now: start.Add(10 * time.Second)}
	if got, held = r.decide(); len(held) != 0 || got != next {
		t.Errorf("after the second reading: held %d", len(held))
	}
}

func TestGuardOfInlineEndpoints(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := limits{share: 0.3, floor: 5, confirmAfter: 10 * time.Second}
	fragment := func(n int) *mesh.Fragment {
		return &mesh.Fragment{Services: []*mesh.Service{inlineService("a", "s", 0, n)}, VirtualServices: []*mesh.VirtualService{virtualService("v", strconv.Itoa(n))}}
	}
	first := fragment(10)
	for _, c := range []struct {
		name   string
		second *mesh.Fragment
		third  *mesh.Fragment
		after  time.Duration
		counts string
	}{
		{"few_go_at_once", fragment(7), fragment(7), 0, "7 7"},
		{"many_wait", fragment(5), fragment(5), 9 * time.Second, "10 10"},
		{"many_wait_for_agreement", fragment(5), fragment(5), 10 * time.Second, "10 5"},
		{"others_do_not_agree", fragment(5), fragment(4), 10 * time.Second, "10 10"},
		{"they_come_back", fragment(5), fragment(8), time.Second, "10 8"},
	} {
		w := windowOf(l, first, start)
		r := reading{limits: l, prev: first, next: c.second, window: w, now: start}
		a, held := r.decide()
		w.accepted(mesh.Compare(first, a), nil, nil, start)
		r = reading{limits: l, prev: a, next: c.third, held: held, window: w, now: start.Add(c.after)}
		b, _ := r.decide()
		if got := fmt.Sprint(len(a.Services[0].Inline), len(b.Services[0].Inline)); got != c.counts {
			t.Errorf("%s: %s endpoints, want %s", c.name, got, c.counts)
		}
		if a.VirtualServices[0] != c.second.VirtualServices[0] {
			t.Errorf("%s: another object waits too", c.name)
		}
	}
}
