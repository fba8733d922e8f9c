package relay

import (
	"slices"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/xds/stream"
)

// TestBisectionFindsRejected has an Envoy that rejects some changes, whatever else is offered
// with them.
func TestBisectionFindsRejected(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 9; n++ {
		for bad := range 1 << n {
			tr := &bisection{bad: -1, attempted: n}
			var want, got []string
			for i := range n {
				name := strconv.Itoa(i)
				tr.candidates = append(tr.candidates, change{name: name, to: &stream.Resource{Name: name}})
				if bad>>i&1 == 1 {
					want = append(want, name)
				}
			}
			rounds, done := 0, false
			for !done && rounds < 100 {
				nacked := slices.ContainsFunc(tr.candidates[:tr.attempted], func(ch change) bool { return slices.Contains(want, ch.name) })
				var rejected *change
				if rejected, done = tr.step(nacked); rejected != nil {
					got = append(got, rejected.name)
				}
				rounds++
			}
			slices.Sort(got)
			if !done || !slices.Equal(got, want) {
				t.Fatalf("of %d changes %q are bad, and %q are blamed after %d rounds", n, want, got, rounds)
			}
		}
	}
}
