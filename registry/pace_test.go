package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestPace plays changes at milliseconds and tells what is published when; a
// capital letter is a publication that includes configuration; o is always of one
// file, c each of another.
func TestPace(t *testing.T) {
	t.Parallel()
	every := func(kind string, step, until int) string {
		var b strings.Builder
		for ms := 0; ms < until; ms += step {
			fmt.Fprintf(&b, "%s%d ", kind, ms)
		}
		return b.String()
	}
	for _, c := range []struct{ name, changes, want string }{
		{"config_waits_for_quiet", "c0", "C100"},
		{"config_gathers", "c0 c50 c120", "C220"},
		{"config_in_fits_is_twice_a_second", "c0 c150 c300 c450 c600 c750 c900 c990", "C100 C1090"},
		{"an_edit_on_its_own_does_not_wait", "c0 c1000 c2000", "C100 C1100 C2100"},
		{"an_edit_behind_another_waits_a_little", "c0 c300 c1050", "C100 C1000 C1300"},
		{"one_file_again_and_again_does_not_wait", "o0 o300 o600 c900 o1650", "C100 C400 C700 C1600 C1900"},
		{"config_waits_no_longer_than_the_ceiling", every("c", 50, 12_000), "C10000 C12050"},
		{"health_goes_at_once", "h0 h3 h20", "f5 f25"},
		{"health_overtakes_config", "c0 h20", "f25 C100"},
		{"one_endpoint_goes_at_once", "e0", "f5"},
		{"endpoints_apart_go_at_once", "e0 e200", "f5 f205"},
		{"fifty_endpoints_in_a_second_are_two", every("e", 20, 1000), "f5 f1080"},
		{"a_long_burst_of_endpoints_is_cut", every("e", 20, 4000), "f5 f2020 f4040 "},
		{"fifty_mixed_files_are_two", "e0 " + every("c", 20, 1000) + "e990 ", "f5 C1090"},
		{"endpoints_do_not_wait_for_config_for_long", "c0 e10 " + every("c", 50, 12_000), "f2010 C10000 C12050"},
	} {
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		p := pace{quiet: 100 * time.Millisecond, longest: 10 * time.Second}
		at := map[int][]change{}
		last := 0
		for kind := range strings.FieldsSeq(c.changes) {
			var ms int
			if _, err := fmt.Sscan(kind[1:], &ms); err != nil {
				t.Fatal(err)
			}
			at[ms] = append(at[ms], map[byte]change{
				'c': {mesh.ReachConfig, "f" + kind[1:]}, 'o': {mesh.ReachConfig, "one"}, 'e': {mesh.ReachEndpoints, ""}, 'h': {mesh.ReachHealth, ""},
			}[kind[0]])
			last = max(last, ms)
		}
		var got []string
		for ms := range last + 11_000 {
			now := start.Add(time.Duration(ms) * time.Millisecond)
			for _, c := range at[ms] {
				p.note(c, now)
			}
			if due, config := p.due(); !due.IsZero() && !due.After(now) {
				letter := "f"
				if config {
					letter = "C"
				}
				got = append(got, fmt.Sprint(letter, ms))
				p.published(config)
			}
		}
		if g, w := strings.Join(got, " "), strings.TrimSpace(c.want); g != w {
			t.Errorf("%s: published %s, want %s", c.name, g, w)
		}
	}
}
