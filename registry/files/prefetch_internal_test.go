package files

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestSpread: everything is done once, and of what is large never two at a time.
func TestSpread(t *testing.T) {
	t.Parallel()
	const n = 500
	var (
		done    [n]atomic.Int32
		large   atomic.Int32
		workers sync.WaitGroup
	)
	size := func(i int) int64 {
		if i%3 == 0 {
			return largeText
		}
		return 10
	}
	spread(&workers, n, size, func(i int) {
		done[i].Add(1)
		if i%3 == 0 {
			if large.Add(1) > 1 {
				t.Error("two large texts at a time")
			}
			defer large.Add(-1)
		}
	})
	workers.Wait()
	for i := range done {
		if c := done[i].Load(); c != 1 {
			t.Errorf("%d was done %d times", i, c)
		}
	}
	spread(&workers, 0, size, func(int) { t.Error("there is nothing to do") })
	workers.Wait()
}
