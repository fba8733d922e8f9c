package cache

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/internal/smallmesh"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // the tests allocate much and keep little: collecting would be a third of what they do
	goleak.VerifyTestMain(m)
}

// eventually waits until a condition holds, with a deadline for a busy machine.
func eventually(t *testing.T, claim string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not in time: %s", claim)
		}
	}
}

func newRandom(t *testing.T, seed uint64) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(seed, 11))
}

// scramble changes a mesh in one of several ways.
func scramble(rnd *rand.Rand, o *smallmesh.Objects, step int) {
	i := rnd.IntN(len(o.Services))
	host := string(o.Services[i].Hostname)
	switch rnd.IntN(7) {
	case 0:
		o.Service(fmt.Sprintf("new%d", step), 8080)
	case 1:
		if len(o.Services) > 25 {
			o.Services = slices.Delete(o.Services, i, i+1)
		}
	case 2:
		o.Workload(fmt.Sprintf("more%d", step), fmt.Sprintf("10.98.%d.%d", step/250, step%250), map[string]string{"app": "s0003"})
	case 3:
		j := rnd.IntN(len(o.Workloads))
		if o.Workloads[j].Name > "s0010" || o.Workloads[j].Name < "s" {
			o.Workloads = slices.Delete(o.Workloads, j, j+1)
		}
	case 4, 5:
		o.Route(host, fmt.Sprint("/v", step))
	default:
		o.Workloads = slices.Clone(o.Workloads) // nothing
	}
}
