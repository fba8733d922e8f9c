// Package parallel lets more tests of a package run at a time than the machine has
// cores, where tests wait for most of their time: for a limit, a deadline, a process.
package parallel

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/internal/race"
)

// How many tests run at a time: of Go alone, and of those that start Envoys.
const (
	atATime    = 8
	withEnvoys = 4
)

// Waiting is for the TestMain of a package whose tests wait. It acts in the short tier
// alone: the tests of the others compute more. What a person says with -parallel stands.
func Waiting() {
	flag.Parse()
	if testing.Short() && !race.Enabled {
		set(atATime)
	}
}

// WaitingForEnvoys is for the TestMain of a package whose tests wait for what real Envoys do
// in time: a timeout of 15 s, a report every 5 s. They do not run in the short tier.
func WaitingForEnvoys() {
	flag.Parse()
	if !testing.Short() {
		set(withEnvoys)
	}
}

func set(n int) {
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said || n <= runtime.GOMAXPROCS(0) {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err)
	}
}
