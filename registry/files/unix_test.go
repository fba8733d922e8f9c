package files

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/manifest"
)

const unixEntry = `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: NAME, namespace: shop}
spec: {address: "ADDRESS"}
---
`

// TestBoundDirectoryNamesNoUnixSocket, nor does a last good version that was kept
// when it still could.
func TestBoundDirectoryNamesNoUnixSocket(t *testing.T) {
	t.Parallel()
	entry := func(name, address string) string {
		return strings.NewReplacer("NAME", name, "ADDRESS", address).Replace(unixEntry)
	}
	dir := treeOf(t, map[string]string{"a.yaml": entry("a", "unix:///srv/a.sock") + entry("b", "10.0.0.1")})
	path := filepath.Join(dir, "a.yaml")
	cfg := Config{Roots: []Root{{Path: dir}}, StateDir: t.TempDir()}
	workloads := func(r *running, want string) {
		t.Helper()
		envoytest.Eventually(t, patience, func() error {
			f := r.Last()
			if f == nil {
				return errors.New("nothing was sent")
			}
			var list []string
			for _, w := range f.Workloads {
				list = append(list, fmt.Sprintf("%s=%s ", w.Name, w.Address))
			}
			if got := strings.Join(list, ""); got != want {
				return fmt.Errorf("workloads are %q, want %q", got, want)
			}
			return nil
		})
	}
	run := func(root Root, want string) *running {
		t.Helper()
		cfg.Roots = []Root{root}
		r := startReal(t, cfg)
		workloads(r, want)
		return r
	}
	run(Root{Path: dir}, "a=unix:///srv/a.sock b=10.0.0.1 ").Stop()
	r := run(Root{Path: dir, Namespaces: []string{"shop"}, UnixSockets: true}, "a=unix:///srv/a.sock b=10.0.0.1 ")
	// From here on it is a broken object that has a last good version.
	replace(t, path, entry("a", "unix://")+entry("b", "10.0.0.2"))
	workloads(r, "a=unix:///srv/a.sock b=10.0.0.2 ")
	r.Stop()
	r = run(Root{Path: dir, Namespaces: []string{"shop"}}, "b=10.0.0.2 ")
	// A version without one is kept as ever.
	replace(t, path, entry("a", "10.0.0.3"))
	workloads(r, "a=10.0.0.3 ")
	replace(t, path, entry("a", "unix:///srv/a.sock"))
	r.awaitStatus("refusing", func(s *Status) bool {
		return slices.ContainsFunc(s.Faults, func(f manifest.Fault) bool { return strings.Contains(f.String(), "spec.address: not in force") })
	})
	workloads(r, "a=10.0.0.3 ")
}
