// Package race tells tests whether they run under the race detector, which makes
// them five to ten times as slow. It finds something only where goroutines share
// memory: a test of one goroutine proves nothing there that it does not prove
// without, in the tier that runs every test.
package race

import "testing"

// SkipSequential ends a test of one goroutine that takes long under the race
// detector.
func SkipSequential(tb testing.TB) {
	tb.Helper()
	if Enabled {
		tb.Skip("one goroutine: runs without the race detector")
	}
}

// SkipLongWait ends, in the short tier, a test that has to wait for seconds on end: for a
// deadline or a pause of the product. It runs in the tier with every test, and under the race
// detector.
func SkipLongWait(tb testing.TB) {
	tb.Helper()
	if testing.Short() && !Enabled {
		tb.Skip("it waits for seconds: runs without -short")
	}
}
