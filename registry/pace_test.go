package registry

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestPace plays changes at milliseconds and tells what is published when; a
// capital letter is a publication that includes configuration.
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
		at := map[int][]mesh.Reach{}
		last := 0
		for change := range strings.FieldsSeq(c.changes) {
			var ms int
			if _, err := fmt.Sscan(change[1:], &ms); err != nil {
				t.Fatal(err)
			}
			at[ms] = append(at[ms], map[byte]mesh.Reach{'c': mesh.ReachConfig, 'e': mesh.ReachEndpoints, 'h': mesh.ReachHealth}[change[0]])
			last = max(last, ms)
		}
		var got []string
		for ms := range last + 11_000 {
			now := start.Add(time.Duration(ms) * time.Millisecond)
			for _, reach := range at[ms] {
				p.note(reach, now)
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
