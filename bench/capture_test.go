package bench

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
)

// path is a way from a program on one host to a program on another.
type path struct {
	name string
	// base is the name of the path that it is compared with, or empty.
	base string
	// make makes it.
	make func(b *testing.B) *travelled
}

// Names of paths that others are compared with.
const (
	direct        = "direct"
	byListener    = "by a listener, mTLS"
	captured      = "captured, mTLS"
	plainListener = "by a listener, plaintext"
)

// paths are the ways, and what was tried to make them cheaper.
func paths() []path {
	capturing := meshOf(capturedServices, "", "")
	return []path{
		{name: direct, make: newDirect},
		{name: captured, make: capturing},
		{name: "captured, mTLS, another mesh (idle control)", base: captured, make: capturing},
		{name: "captured, plaintext", base: captured, make: meshOf(capturedServices, noMTLS, "")},
		{name: byListener, base: captured, make: meshOf(listenerServices, "", "")},
		{name: plainListener, base: byListener, make: meshOf(listenerServices, noMTLS, "")},
		{name: "captured, mTLS, two workers", base: captured, make: meshOf(capturedServices, "", "defaultConfig: {concurrency: 2}\n")},
		{name: "captured, mTLS, HTTP/2 between Envoys", base: captured, make: meshOf(capturedServices, "", "defaultConfig: {concurrency: 1}\nh2UpgradePolicy: UPGRADE\n")},
		{name: "by a listener, mTLS, Envoys with nothing but a router", base: byListener, make: staticOf("")},
		{name: "the same, buffers of 32 KiB", base: byListener, make: staticOf("per_connection_buffer_limit_bytes: 32768")},
	}
}

// turn is what one turn of a path took.
type turn struct {
	// cpu is that of all Envoys, in microseconds a request.
	cpu float64
	// p50 and p99 are milliseconds.
	p50, p99 float64
}

// travelledCosts are all turns of a path, with connections that are kept and with new ones, and the
// turns of its base beside them.
type travelledCosts struct{ kept, keptBase, fresh, freshBase []turn }

// captureSize is how much is measured.
type captureSize struct{ starts, rounds, kept, fresh int }

// BenchmarkCapture measures what a request costs, and writes the page to the file that BENCH_CAPTURE
// names. BENCH_ONLY=try is a fraction of it, to see whether it works.
func BenchmarkCapture(b *testing.B) {
	envoytest.Binary(b)
	s := captureSize{starts: 3, rounds: 6, kept: 800, fresh: 200}
	if os.Getenv("BENCH_ONLY") == "try" {
		s = captureSize{starts: 1, rounds: 2, kept: 400, fresh: 80}
	}
	r := &captureReport{size: s, began: time.Now(), load: []string{loadAverage(b)}, costs: make([]travelledCosts, len(paths()))}
	for i := range s.starts {
		b.Run(strconv.Itoa(i), func(b *testing.B) { captureStart(b, r) })
	}
	if b.Failed() {
		return
	}
	r.load = append(r.load, loadAverage(b))
	text := r.markdown()
	b.Log("\n" + text)
	if path := os.Getenv("BENCH_CAPTURE"); path != "" {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
}

// captureStart starts everything, and measures some rounds.
func captureStart(b *testing.B, r *captureReport) {
	b.Helper()
	all := paths()
	at := map[string]*travelled{}
	for _, p := range all {
		t := p.make(b)
		envoytest.Eventually(b, envoytest.Patience, func() error { return t.works(p.name) })
		t.go1(b, r.size.kept, true) // caches get warm
		at[p.name] = t
	}
	for round := range r.size.rounds {
		for i := range all {
			i = (i + round) % len(all)
			own, c := at[all[i].name], &r.costs[i]
			base := at[all[i].base]
			for _, kept := range []bool{true, false} {
				n := r.size.fresh
				if kept {
					n = r.size.kept
				}
				var a, z turn
				if first := (i+round)%2 == 0; base != nil && first {
					z = base.go1(b, n, kept)
					a = own.go1(b, n, kept)
				} else {
					a = own.go1(b, n, kept)
					if base != nil {
						z = base.go1(b, n, kept)
					}
				}
				if kept {
					c.kept, c.keptBase = append(c.kept, a), append(c.keptBase, z)
				} else {
					c.fresh, c.freshBase = append(c.fresh, a), append(c.freshBase, z)
				}
			}
		}
	}
}

// meshOf makes meshes with services, a manifest more, and a MeshConfig.
func meshOf(services, manifest, config string) func(b *testing.B) *travelled {
	if config == "" {
		config = "defaultConfig: {concurrency: 1}\n"
	}
	return func(b *testing.B) *travelled {
		b.Helper()
		return newTravelled(b, services+manifest, config)
	}
}

// staticOf makes paths through Envoys without a control plane.
func staticOf(buffers string) func(b *testing.B) *travelled {
	return func(b *testing.B) *travelled {
		b.Helper()
		return newStatic(b, buffers)
	}
}

// callers are the program's user, of whom capture knows, and another one.
const (
	declared   = hosttest.AppUser
	undeclared = hosttest.OtherUser
)
