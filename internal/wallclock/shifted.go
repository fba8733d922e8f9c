//go:build fairlead_clocktest

package wallclock

import (
	"os"
	"strings"
	"time"
)

// Now is the time that this machine's wall clock shows, shifted by the duration in
// the file that FAIRLEAD_TEST_CLOCK names: a test writes it to set the clock of one
// process. A file that is not there shifts nothing.
func Now() time.Time {
	now := time.Now().Round(0)
	text, err := os.ReadFile(os.Getenv("FAIRLEAD_TEST_CLOCK"))
	if err != nil {
		return now
	}
	by, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return now
	}
	return now.Add(by)
}
