package relay

import (
	"slices"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/xds/stream"
)

// TestTrialFindsWhatIsRefused has an Envoy that refuses some changes, whatever is
// beside them.
func TestTrialFindsWhatIsRefused(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 9; n++ {
		for bad := range 1 << n {
			tr := &trial{bad: -1, tried: n}
			var want, got []string
			for i := range n {
				name := strconv.Itoa(i)
				tr.changes = append(tr.changes, change{name: name, to: &stream.Resource{Name: name}})
				if bad>>i&1 == 1 {
					want = append(want, name)
				}
			}
			rounds, over := 0, false
			for !over && rounds < 100 {
				refused := slices.ContainsFunc(tr.changes[:tr.tried], func(ch change) bool { return slices.Contains(want, ch.name) })
				var culprit *change
				if culprit, over = tr.step(refused); culprit != nil {
					got = append(got, culprit.name)
				}
				rounds++
			}
			slices.Sort(got)
			if !over || !slices.Equal(got, want) {
				t.Fatalf("of %d changes %q are bad, and %q are blamed after %d rounds", n, want, got, rounds)
			}
		}
	}
}
