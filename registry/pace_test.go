package registry

import (
	"fmt"
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

// paced plays changes, one a word, a letter and milliseconds. It returns what is
// published when, a capital letter for what includes configuration, and how long
// each kind of change waited.
func paced(t *testing.T, p pace, changes string) (published []string, waited map[byte][]int) {
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
		published = append(published, fmt.Sprint(letter, ms))
		p.published(config, now)
	}
	for kind, since := range waiting {
		if len(since) > 0 {
			t.Errorf("%c of %v was not published", kind, since)
		}
	}
	return published, waited
}

func newPace() pace { return pace{quiet: 100 * time.Millisecond, longest: 10 * time.Second} }

func TestPace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, changes, want string }{
		{"config_waits_for_quiet", "c0", "C100"},
		{"config_gathers", "c0 c50 c120", "C220"},
		{"an_edit_behind_another_does_not_wait", "c0 c200 c400 c1050", "C100 C300 C500 C1150"},
		{"an_edit_soon_behind_a_publication_waits_a_little", "c0 c120 c1000", "C100 C300 C1100"},
		{"fifty_files_with_pauses_are_two", "C0 C160 C320 C480 C640", "C100 C1000"},
		{"fifty_files_with_a_pause_are_two", every("c", 20, 300) + "c500 c520 c540 c560 c580 c800", "C380 C1000"},
		{"one_edit_behind_many_files", "C0 C50 c400", "C150 C1000"},
		{"config_waits_no_longer_than_the_ceiling", every("c", 50, 12_000), "C10000 C12050"},
		{"health_goes_at_once", "h0 h3 h20", "f5 f25"},
		{"health_in_a_row_goes_at_once_and_then_in_step", every("h", 10, 1000), "f5 f15 f25 f35 f45 f205 f405 f605 f805 f1005"},
		{"health_overtakes_config", "c0 h20", "f25 C100"},
		{"one_endpoint_goes_at_once", "e0", "f5"},
		{"endpoints_apart_go_at_once", "e0 e200", "f5 f205"},
		{"fifty_endpoints_in_a_second_are_two", every("e", 20, 1000), "f5 f1080"},
		{"endpoints_that_change_all_the_time_go_in_step", every("e", 20, 2000), "f5 f1100 f1300 f1500 f1700 f1900 f2100"},
		{"fifty_mixed_files_are_two", "e0 " + every("c", 20, 1000) + "e990 ", "f5 C1080"},
		{"endpoints_with_config_go_with_it", "m0", "C100"},
		{"endpoints_with_many_files_go_with_them", "M0 M150", "C100 C1000"},
		{"endpoints_with_config_do_not_wait_for_long", "m0 " + every("c", 50, 9_000), "f1100 C9050"},
		{"endpoints_do_not_wait_for_config_for_long", "c0 e10 " + every("c", 50, 12_000), "f1100 C10000 C12050"},
	} {
		got, _ := paced(t, newPace(), c.changes)
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s: published %s, want %s", c.name, g, c.want)
		}
	}
}

// TestPaceOfALongDebounce has configuration debounced for long: endpoints do not
// wait for that, neither behind an edit nor behind one another.
func TestPaceOfALongDebounce(t *testing.T) {
	t.Parallel()
	p := newPace()
	p.quiet = 5 * time.Second
	for _, c := range []struct{ name, changes, want string }{
		{"config_waits", "c0", "C5000"},
		{"one_endpoint_behind_an_edit_goes_at_once", "c0 e1000", "f1005 C5000"},
		{"endpoints_right_behind_an_edit_wait_for_a_moment", "c0 e20", "f120 C5000"},
		{"endpoints_apart_go_at_once", "e0 e200", "f5 f205"},
		{"endpoints_in_a_burst_are_two", "e0 e50 e90", "f5 f205"},
		{"endpoints_do_not_wait_for_edits_without_end", "c0 e10 " + every("c", 50, 8_000), "f1100 C10000"},
		{"endpoints_with_config_do_not_wait_for_long", "m0", "f1100 C5000"},
	} {
		got, _ := paced(t, p, c.changes)
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s: published %s, want %s", c.name, g, c.want)
		}
	}
}

// TestPaceOfABusyMesh plays five edits and a hundred changes of endpoints a
// second. A bound of 0.5 s is promised for the way to the proxies; what is left
// of it here is for those who receive it.
func TestPaceOfABusyMesh(t *testing.T) {
	t.Parallel()
	const debounce = 100 * time.Millisecond
	for name, c := range map[string]struct {
		quiet, cost time.Duration
		most        int // milliseconds
		publishing  int // times in a minute
	}{
		"cheap": {debounce, 0, 250, 400}, "dear": {debounce, 200 * time.Millisecond, 450, 250},
		"cheap-without-debounce": {time.Millisecond, 0, 250, 400}, "dear-without-debounce": {time.Millisecond, 200 * time.Millisecond, 450, 300},
	} {
		p := newPace()
		p.quiet, p.cost = c.quiet, c.cost
		got, waited := paced(t, p, every("c", 200, 60_000)+every("e", 10, 60_000))
		for kind, list := range waited {
			slices.Sort(list)
			if p99 := list[len(list)*99/100]; p99 > c.most {
				t.Errorf("%s: %c waited %d ms at the 99th percentile, want at most %d", name, kind, p99, c.most)
			}
		}
		if len(got) > c.publishing {
			t.Errorf("%s: %d publications in a minute, want at most %d", name, len(got), c.publishing)
		}
	}
}

// TestPaceAfterADearPublication has changes of health behind a publication that
// took long, as the first of a large mesh does: once they are cheap, they do not
// wait for what that one cost.
func TestPaceAfterADearPublication(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := newPace()
	p.published(true, start)
	p.cost = time.Second
	for i, ms := range []int{10_000, 10_200, 10_500} {
		now := start.Add(time.Duration(ms) * time.Millisecond)
		p.note(change{health: true}, now)
		due, _ := p.due()
		if wait := due.Sub(now); wait > apart {
			t.Errorf("change %d waits for %s", i, wait)
		}
		p.published(false, due)
		p.cost = time.Millisecond // what this one took
	}
}
