package meshgen

import (
	"os"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/internal/race"
)

// Seeds are the seeds of a test: few in the short tier, one under the race detector,
// otherwise more. FAIRLEAD_NETS_SEEDS=N makes it N seeds, and FAIRLEAD_NETS_SEED=N makes it
// seed N only.
func Seeds(tb testing.TB, short, full int) []uint64 {
	tb.Helper()
	number := func(name string) (uint64, bool) {
		text := os.Getenv(name)
		if text == "" {
			return 0, false
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
		return n, true
	}
	if seed, ok := number("FAIRLEAD_NETS_SEED"); ok {
		return []uint64{seed}
	}
	n := uint64(full)
	if testing.Short() {
		n = uint64(short)
		if race.Enabled {
			n = 1
		}
	}
	if more, ok := number("FAIRLEAD_NETS_SEEDS"); ok {
		n = more
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(i)
	}
	return out
}
