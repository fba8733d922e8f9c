package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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

type realMesh struct {
	tb  testing.TB
	dir string
	r   *registry.Registry
	src *files.Source
	end func()
	// debounce is that of configuration.
	debounce time.Duration
}

// startMesh writes a mesh and runs a registry on it.
func startMesh(tb testing.TB, services int, debounce time.Duration) *realMesh {
	tb.Helper()
	m := &realMesh{tb: tb, dir: tb.TempDir(), debounce: debounce}
	for i := range services {
		m.write(m.path(i, "hosts"), hosts(i, 0))
		m.write(m.path(i, "routes"), routes(i, 0))
	}
	m.start()
	return m
}

func (m *realMesh) start() {
	var err error
	log := slog.New(slog.DiscardHandler)
	m.src, err = files.New(files.Config{
		Roots: []files.Root{{Path: m.dir}}, Logger: log, StateDir: m.tb.TempDir(), AwaitDecision: true, MaxFiles: 1_000_000,
		ScanInterval: time.Hour,
	})
	if err != nil {
		m.tb.Fatal(err)
	}
	m.r, err = registry.New(registry.Config{
		Logger: log, Sources: []registry.Source{m.src}, DebounceAfter: m.debounce,
		Fallback: &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{RootNamespace: "istio-system"}},
	})
	if err != nil {
		m.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.tb.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.r.Run(ctx); err != nil {
			m.tb.Error(err)
		}
	})
	m.end = func() { cancel(); wg.Wait() }
}

func (m *realMesh) path(service int, what string) string {
	return filepath.Join(m.dir, fmt.Sprintf("team-%02d", service%10), fmt.Sprintf("svc-%05d-%s.yaml", service, what))
}

func (m *realMesh) write(path, content string) {
	m.tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		m.tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		m.tb.Fatal(err)
	}
}

// rename puts a file in place as a whole.
func (m *realMesh) rename(path, content string) {
	m.tb.Helper()
	tmp := filepath.Join(m.dir, ".tmp")
	m.write(tmp, content)
	if err := os.Rename(tmp, path); err != nil {
		m.tb.Fatal(err)
	}
}

// quiet lets what is still going on come to its end.
func quiet(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	<-t.C
}
