//go:build !fairlead_clocktest

package wallclock

import "time"

// Now is the time that this machine's wall clock shows, without a monotonic
// reading.
func Now() time.Time { return time.Now().Round(0) }
