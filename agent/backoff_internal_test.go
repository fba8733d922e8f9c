package agent

import (
	"slices"
	"testing"
	"time"
)

// TestTimedOutTriesAreSpread: tries that timed out together are not repeated together.
func TestTimedOutTriesAreSpread(t *testing.T) {
	t.Parallel()
	var waits []time.Duration
	for range 1000 {
		b := newBackOff(200*time.Millisecond, 5*time.Second)
		waits = append(waits, b.next(10*time.Second))
	}
	slices.Sort(waits)
	for i := range 4 { // of the four quarters of five seconds
		at := time.Duration(i) * 1250 * time.Millisecond
		from, _ := slices.BinarySearch(waits, at)
		to, _ := slices.BinarySearch(waits, at+1250*time.Millisecond)
		if to-from > 400 {
			t.Errorf("%d of 1,000 come between %s and %s later", to-from, at, at+1250*time.Millisecond)
		}
	}
	b := newBackOff(200*time.Millisecond, 5*time.Second)
	if got := b.next(0); got > 250*time.Millisecond {
		t.Errorf("after a try that failed at once, the next one comes %s later", got)
	}
}
