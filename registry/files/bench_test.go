package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// thousand is a directory of as many files.
func thousand(b *testing.B) string {
	b.Helper()
	files, _ := numbered(1000, "1")
	dir := b.TempDir()
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

// BenchmarkRename is the time from an atomic rename in a tree of 1,000 files to
// the fragment that has it.
func BenchmarkRename(b *testing.B) {
	dir := thousand(b)
	s, err := New(Config{Roots: []Root{{Path: dir}}, Decoder: &fakeDecoder{}, Logger: discard(), StateDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	out := make(chan *mesh.Fragment)
	wg.Go(func() {
		if err := s.Run(ctx, out); err != nil {
			b.Error(err)
		}
	})
	last := <-out
	path := filepath.Join(dir, "d07", "o0007.yaml")
	i := 0
	for b.Loop() {
		b.StopTimer()
		i++
		tmp := filepath.Join(filepath.Dir(path), ".tmp")
		if err := os.WriteFile(tmp, fmt.Appendf(nil, "o0007 v%d\n", i), 0o600); err != nil {
			b.Fatal(err)
		}
		pause(2 * spacing) // as if alone
		b.StartTimer()
		if err := os.Rename(tmp, path); err != nil {
			b.Fatal(err)
		}
		f := <-out
		for f == last { // sent once more by a scan
			f = <-out
		}
		last = f
	}
}

// BenchmarkScan is one look at 1,000 files of which none changed.
func BenchmarkScan(b *testing.B) {
	dir := thousand(b)
	cfg, err := Config{Roots: []Root{{Path: dir}}, Decoder: &fakeDecoder{}, Logger: discard()}.withDefaults()
	if err != nil {
		b.Fatal(err)
	}
	roots, err := newRoots(cfg)
	if err != nil {
		b.Fatal(err)
	}
	t := newTree(cfg, roots)
	b.ReportAllocs()
	for b.Loop() {
		w := t.walker(roots[0])
		if err := w.root(roots[0]); err != nil {
			b.Fatal(err)
		}
	}
}
