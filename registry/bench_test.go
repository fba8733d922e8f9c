package registry_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// BenchmarkDecision is the time from the rename of a file to the snapshot that
// has it, without debounce: what the decision to push costs.
func BenchmarkDecision(b *testing.B) {
	sizes := []int{100, 1000}
	if os.Getenv("FAIRLEAD_BENCH_LARGE") != "" {
		sizes = append(sizes, 10_000)
	}
	for _, services := range sizes {
		b.Run(fmt.Sprintf("endpoints=%d", 10*services), func(b *testing.B) {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			m := startMesh(b, services, time.Nanosecond)
			defer m.end()
			changed, cancel := m.r.Subscribe()
			defer cancel()
			<-changed
			quiet(2 * time.Second) // the state directory
			runtime.GC()
			runtime.ReadMemStats(&after)
			resident := float64(after.HeapAlloc-before.HeapAlloc) / float64(services*13)
			for _, what := range []string{"routes", "hosts"} {
				b.Run(what, func(b *testing.B) {
					b.ReportAllocs()
					b.ReportMetric(resident, "resident-B/object")
					i := 0
					for b.Loop() {
						b.StopTimer()
						i++
						path, content := m.path(i*7%services, what), routes(i*7%services, i)
						if what == "hosts" {
							content = hosts(i*7%services, i)
						}
						tmp := filepath.Join(m.dir, ".tmp")
						m.write(tmp, content)
						quiet(300 * time.Millisecond)
						select {
						case <-changed:
						default:
						}
						b.StartTimer()
						if err := os.Rename(tmp, path); err != nil {
							b.Fatal(err)
						}
						<-changed
					}
				})
			}
		})
	}
}
