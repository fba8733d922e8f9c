package files

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/sourcetest"
)

// TestSource holds directories to the contract of all sources.
func TestSource(t *testing.T) {
	t.Parallel()
	sourcetest.Run(t, func(tb testing.TB) *sourcetest.Place {
		tb.Helper()
		dir := filepath.Join(tb.TempDir(), "mesh")
		if err := os.Mkdir(dir, 0o750); err != nil {
			tb.Fatal(err)
		}
		move := func(from, to string) func(testing.TB) {
			return func(tb testing.TB) {
				tb.Helper()
				if err := os.Rename(from, to); err != nil {
					tb.Fatal(err)
				}
			}
		}
		return &sourcetest.Place{
			New: func(tb testing.TB) registry.Source {
				tb.Helper()
				s, err := New(Config{
					Roots: []Root{{Path: dir}}, Logger: slog.New(slog.DiscardHandler), StateDir: tb.TempDir(), ScanInterval: 100 * time.Millisecond,
				})
				if err != nil {
					tb.Fatal(err)
				}
				return s
			},
			Put: func(tb testing.TB, objects map[string]string) {
				tb.Helper()
				putWorkloads(tb, dir, objects)
			},
			Read: func(f *mesh.Fragment) map[string]string {
				out := map[string]string{}
				for _, w := range f.Workloads {
					out[w.Name] = w.Labels["content"]
				}
				return out
			},
			Away: move(dir, dir+".away"), Back: move(dir+".away", dir), Again: time.Second,
		}
	})
}

// putWorkloads makes the manifests of a directory exactly those, one a file.
func putWorkloads(tb testing.TB, dir string, objects map[string]string) {
	tb.Helper()
	have, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, path := range have {
		if name := filepath.Base(path[:len(path)-len(".yaml")]); objects[name] == "" {
			if err := os.Remove(path); err != nil {
				tb.Fatal(err)
			}
		}
	}
	for name, content := range objects {
		path := filepath.Join(dir, name+".yaml")
		text := fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: %s\n  namespace: default\n"+
			"  labels:\n    content: %q\nspec:\n  address: 10.0.0.1\n", name, content)
		if was, err := os.ReadFile(path); err == nil && string(was) == text {
			continue
		}
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			tb.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			tb.Fatal(err)
		}
	}
}
