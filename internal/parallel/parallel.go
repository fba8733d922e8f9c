// Package parallel lets more tests of a package run at a time than the machine has
// cores, where tests wait for most of their time: for a limit, a deadline, a process.
package parallel

import (
	"flag"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/internal/race"
)

// atATime is how many tests run at a time.
const atATime = 8

// Waiting is for the TestMain of a package whose tests wait. It acts in the short tier
// alone: the tests of the others compute more. What a person says with -parallel stands.
func Waiting() {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said || !testing.Short() || race.Enabled {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(atATime)); err != nil {
		panic(err)
	}
}
