package registry

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func every(kind string, step, until int) string {
	var b strings.Builder
	for ms := 0; ms < until; ms += step {
		fmt.Fprintf(&b, "%s%d ", kind, ms)
	}
	return b.String()
}

// kinds are the changes that a letter of a test stands for.
func kinds() map[byte]change {
	return map[byte]change{
		'c': {config: true, files: 1}, 'C': {config: true, files: 10}, 'e': {endpoints: true}, 'h': {health: true},
		'm': {config: true, endpoints: true, files: 1}, 'M': {config: true, endpoints: true, files: 10},
	}
}

// played plays changes, one a word, a letter and milliseconds. It returns what is
// pushed when, a capital letter for what includes configuration, and how long
// each kind of change waited.
func played(t *testing.T, p *pushes, changes string) (out []string, waited map[byte][]int) {
	t.Helper()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := map[int][]byte{}
	last := 0
	for word := range strings.FieldsSeq(changes) {
		var ms int
		if _, err := fmt.Sscan(word[1:], &ms); err != nil {
			t.Fatal(err)
		}
		at[ms] = append(at[ms], word[0])
		last = max(last, ms)
	}
	waiting := map[byte][]int{}
	waited = map[byte][]int{}
	for ms := range last + 11_000 {
		now := start.Add(time.Duration(ms) * time.Millisecond)
		for _, kind := range at[ms] {
			p.note(kinds()[kind], now)
			waiting[kind] = append(waiting[kind], ms)
		}
		due, config := p.due()
		if due.IsZero() || due.After(now) {
			continue
		}
		letter := "f"
		for kind, since := range waiting {
			if kinds()[kind].config && !config {
				continue
			}
			for _, x := range since {
				waited[kind] = append(waited[kind], ms-x)
			}
			delete(waiting, kind)
		}
		if config {
			letter = "C"
		}
		out = append(out, fmt.Sprint(letter, ms))
		p.pushed(config, now)
	}
	for kind, since := range waiting {
		if len(since) > 0 {
			t.Errorf("%c of %v was not pushed", kind, since)
		}
	}
	return out, waited
}

func shipped() *pushes { return newPushes(100*time.Millisecond, 10*time.Second) }

func TestDebounce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, changes, want string }{
		{"config_waits_for_quiet", "c0", "C100"},
		{"config_gathers", "c0 c50 c120", "C220"},
		{"an_edit_behind_another_does_not_wait", "c0 c200 c400 c1050", "C100 C300 C500 C1150"},
		{"an_edit_soon_behind_a_publication_waits_a_little", "c0 c120 c1000", "C100 C300 C1100"},
		{"fifty_files_with_pauses_are_two", "C0 C160 C320 C480 C640", "C100 C1100"},
		{"fifty_files_behind_an_edit_are_two", "c0 C600 C760 C920 C1080 C1240", "C100 C1180 C2180"},
		{"fifty_files_with_a_pause_are_two", every("c", 20, 300) + "c500 c520 c540 c560 c580 c800", "C380 C1380"},
		{"one_edit_behind_many_files", "C0 C50 c400", "C150 C1150"},
		{"config_waits_no_longer_than_the_ceiling", every("c", 50, 12_000), "C10000 C12050"},
		{"health_goes_at_once", "h0 h3 h20", "f5 f25"},
		{"health_in_a_row_goes_at_once_and_then_in_step", every("h", 10, 1000), "f5 f15 f25 f35 f45 f200 f400 f600 f800 f1000"},
		{"health_overtakes_config", "c0 h20", "f25 C100"},
		{"one_endpoint_goes_at_once", "e0", "f5"},
		{"endpoints_apart_go_at_once", "e0 e200", "f5 f205"},
		{"fifty_endpoints_in_a_second_are_two", every("e", 20, 1000), "f5 f1080"},
		{"endpoints_that_change_all_the_time_go_in_step", every("e", 20, 2000), "f5 f1100 f1300 f1500 f1700 f1900 f2100"},
		{"fifty_mixed_files_are_two", "e0 " + every("c", 20, 1000) + "e990 ", "f5 C1080"},
		{"endpoints_with_config_go_with_it", "m0", "C100"},
		{"endpoints_with_many_files_go_with_them", "M0 M150", "C100 C1100"},
		{"endpoints_with_config_do_not_wait_for_long", "m0 " + every("c", 50, 9_000), "f1100 C9050"},
		{"endpoints_do_not_wait_for_config_for_long", "c0 e10 " + every("c", 50, 12_000), "f1100 C10000 C12050"},
	} {
		got, _ := played(t, shipped(), c.changes)
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s: pushed %s, want %s", c.name, g, c.want)
		}
	}
}

// TestEndpointsDoNotWaitForALongDebounce has configuration debounced for long: endpoints do not
// wait for that, neither behind an edit nor behind one another.
func TestEndpointsDoNotWaitForALongDebounce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, changes, want string }{
		{"config_waits", "c0", "C5000"},
		{"one_endpoint_behind_an_edit_goes_at_once", "c0 e1000", "f1005 C5000"},
		{"endpoints_right_behind_an_edit_wait_for_a_moment", "c0 e20", "f120 C5000"},
		{"endpoints_apart_go_at_once", "e0 e200", "f5 f205"},
		{"endpoints_in_a_burst_are_two", "e0 e50 e90", "f5 f205"},
		{"endpoints_do_not_wait_for_edits_without_end", "c0 e10 " + every("c", 50, 8_000), "f1100 C10000"},
		{"endpoints_with_config_do_not_wait_for_long", "m0", "f1100 C5000"},
	} {
		got, _ := played(t, newPushes(5*time.Second, 10*time.Second), c.changes)
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s: pushed %s, want %s", c.name, g, c.want)
		}
	}
}

// TestDebounceOfABusyMesh plays five edits and a hundred changes of endpoints a
// second. A bound of 0.5 s is promised for the way to the proxies; what is left
// of it here is for those who receive it.
func TestDebounceOfABusyMesh(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{100 * time.Millisecond, time.Millisecond} {
		got, waited := played(t, newPushes(after, 10*time.Second), every("c", 200, 60_000)+every("e", 10, 60_000))
		for kind, list := range waited {
			slices.Sort(list)
			if p99 := list[len(list)*99/100]; p99 > 250 {
				t.Errorf("debounce %s: %c waited %d ms at the 99th percentile, want at most 250", after, kind, p99)
			}
		}
		if len(got) > 400 {
			t.Errorf("debounce %s: %d pushes in a minute, want at most 400", after, len(got))
		}
	}
}

// TestACheckoutIsTwoPushes writes many files within a second, with whatever
// pauses, and some others before. The files that come before it can be known to be
// many may go out by themselves; the others make two pushes at most.
func TestACheckoutIsTwoPushes(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 40 {
		var at, before []int
		for range 11 + rnd.IntN(40) {
			at = append(at, 1000+rnd.IntN(1000))
		}
		for range rnd.IntN(4) {
			before = append(before, rnd.IntN(1000))
		}
		slices.Sort(at)
		slices.Sort(before)
		var changes strings.Builder
		for _, ms := range before {
			fmt.Fprintf(&changes, "c%d ", ms)
		}
		for _, ms := range at {
			fmt.Fprintf(&changes, "%c%d ", "cm"[rnd.IntN(2)], ms)
		}
		got, _ := played(t, shipped(), changes.String())
		after := 0
		for _, push := range got {
			var ms int
			if _, err := fmt.Sscan(push[1:], &ms); err != nil {
				t.Fatal(err)
			}
			if ms >= at[checkoutFiles] { // from here on it is one
				after++
			}
			if push[0] != 'C' {
				t.Errorf("seed %d: endpoints go out before the configuration that they came with: %v of %s", seed, got, &changes)
			}
		}
		if after > 2 {
			t.Errorf("seed %d: %v of %s, want at most two pushes after %d ms", seed, got, &changes, at[checkoutFiles])
		}
	}
}

// TestPushesKeepTheirInterval has changes of all kinds without end, at any debounce:
// configuration keeps the interval, and everything together is no more than both of
// them and what may come at once.
func TestPushesKeepTheirInterval(t *testing.T) {
	t.Parallel()
	const seconds = 5
	for _, after := range []time.Duration{time.Nanosecond, 100 * time.Millisecond, 5 * time.Second} {
		for _, longest := range []time.Duration{time.Nanosecond, 10 * time.Second} {
			for _, changes := range []string{"c", "e", "h", "m", "C", "M", "ceh"} {
				var all strings.Builder
				for _, kind := range changes {
					all.WriteString(every(string(kind), 7, 1000*seconds))
				}
				got, _ := played(t, newPushes(after, longest), all.String())
				last := math.MinInt
				for _, push := range got {
					var ms int
					if _, err := fmt.Sscan(push[1:], &ms); err != nil {
						t.Fatal(err)
					}
					if push[0] != 'C' {
						continue
					}
					if interval := int(minInterval / time.Millisecond); last > math.MinInt && ms-last < interval {
						t.Errorf("debounce %s to %s, %s: configuration at %d and %d ms", after, longest, changes, last, ms)
					}
					last = ms
				}
				if most := 3*5*seconds + 2*healthBurst; len(got) > most {
					t.Errorf("debounce %s to %s, %s: %d pushes in %d s, want at most %d", after, longest, changes, len(got), seconds, most)
				}
			}
		}
	}
}
