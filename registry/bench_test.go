package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/mesh"
)

// hosts is the file of a service and its ten endpoints, routes that of its routes.
func hosts(service, revision int) string {
	var b strings.Builder
	name := fmt.Sprintf("svc-%05d", service)
	fmt.Fprintf(&b, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: team-%02[2]d}
spec:
  hosts: [%[1]s.team-%02[2]d.mesh.internal]
  addresses: [10.%[3]d.%[4]d.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 8080, name: http, protocol: HTTP}
  workloadSelector:
    labels: {app: %[1]s}
`, name, service%10, service/250, service%250)
	for i := range 10 {
		version := "v1"
		if i == 9 {
			version = fmt.Sprintf("r%d", revision)
		}
		fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: %[1]s-%[3]d, namespace: team-%02[2]d}
spec:
  address: 10.%[4]d.%[5]d.%[3]d
  labels: {app: %[1]s, version: %[6]s}
  serviceAccount: %[1]s
`, name, service%10, i, 100+service/250, service%250, version)
	}
	return b.String()
}

func routes(service, revision int) string {
	name, ns := fmt.Sprintf("svc-%05d", service), service%10
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: team-%02[2]d}
spec:
  hosts: [%[1]s.team-%02[2]d.mesh.internal]
  http:
  - match: [{uri: {prefix: /api}}]
    route:
    - destination: {host: %[1]s.team-%02[2]d.mesh.internal}
    headers: {request: {set: {x-revision: r%[3]d}}}
    timeout: 5s
    retries: {attempts: 3}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: team-%02[2]d}
spec:
  host: %[1]s.team-%02[2]d.mesh.internal
  trafficPolicy:
    connectionPool: {tcp: {maxConnections: 100}}
`, name, ns, revision)
}

type benchMesh struct {
	b   *testing.B
	dir string
	r   *registry.Registry
	src *files.Source
	end func()
}

func startMesh(b *testing.B, services int) *benchMesh {
	b.Helper()
	m := &benchMesh{b: b, dir: b.TempDir()}
	for i := range services {
		m.write(m.path(i, "hosts"), hosts(i, 0))
		m.write(m.path(i, "routes"), routes(i, 0))
	}
	var err error
	log := slog.New(slog.DiscardHandler)
	m.src, err = files.New(files.Config{Roots: []files.Root{{Path: m.dir}}, Logger: log, StateDir: b.TempDir(), AwaitSettled: true, MaxFiles: 1_000_000})
	if err != nil {
		b.Fatal(err)
	}
	m.r, err = registry.New(registry.Config{
		Logger: log, Sources: []registry.Source{m.src}, DebounceAfter: time.Nanosecond,
		Fallback: &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{RootNamespace: "istio-system"}},
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.r.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	m.end = func() { cancel(); wg.Wait() }
	return m
}

func (m *benchMesh) path(service int, what string) string {
	return filepath.Join(m.dir, fmt.Sprintf("team-%02d", service%10), fmt.Sprintf("svc-%05d-%s.yaml", service, what))
}

func (m *benchMesh) write(path, content string) {
	m.b.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		m.b.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		m.b.Fatal(err)
	}
}

// quiet lets what is still going on come to its end.
func quiet(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	<-t.C
}

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
			m := startMesh(b, services)
			defer m.end()
			bell, cancel := m.r.Subscribe()
			defer cancel()
			<-bell
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
						case <-bell:
						default:
						}
						b.StartTimer()
						if err := os.Rename(tmp, path); err != nil {
							b.Fatal(err)
						}
						<-bell
					}
				})
			}
		})
	}
}
