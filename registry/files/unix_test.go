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

// TestBoundDirectoryNamesNothingOfAHost, a unix socket or an address that each host has for itself,
// nor does a last good version that was kept when it still could.
func TestBoundDirectoryNamesNothingOfAHost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		address string
		allow   func(*Root)
	}{
		"unix_socket":   {"unix:///srv/a.sock", func(r *Root) { r.UnixSockets = true }},
		"loopback":      {"127.0.0.1", func(r *Root) { r.LocalAddresses = true }},
		"metadata_name": {"metadata.google.internal", func(r *Root) { r.LocalAddresses = true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testBoundDirectory(t, c.address, c.allow)
		})
	}
}

func testBoundDirectory(t *testing.T, forbidden string, allow func(*Root)) {
	t.Helper()
	entry := func(name, address string) string {
		return strings.NewReplacer("NAME", name, "ADDRESS", address).Replace(unixEntry)
	}
	dir := treeOf(t, map[string]string{"a.yaml": entry("a", forbidden) + entry("b", "10.0.0.1")})
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
	run(Root{Path: dir}, "a="+forbidden+" b=10.0.0.1 ").Stop()
	allowed := Root{Path: dir, Namespaces: []string{"shop"}}
	allow(&allowed)
	r := run(allowed, "a="+forbidden+" b=10.0.0.1 ")
	// From here on it is a broken object that has a last good version.
	replace(t, path, entry("a", "unix://")+entry("b", "10.0.0.2"))
	workloads(r, "a="+forbidden+" b=10.0.0.2 ")
	r.Stop()
	r = run(Root{Path: dir, Namespaces: []string{"shop"}}, "b=10.0.0.2 ")
	// A version without one is kept as ever.
	replace(t, path, entry("a", "10.0.0.3"))
	workloads(r, "a=10.0.0.3 ")
	replace(t, path, entry("a", forbidden))
	r.awaitStatus("refusing", func(s *Status) bool {
		return slices.ContainsFunc(s.Faults, func(f manifest.Fault) bool { return strings.Contains(f.String(), "spec.address: not in force") })
	})
	workloads(r, "a=10.0.0.3 ")
}
