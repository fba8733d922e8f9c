package files

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestFiftyFiles: what is written within a second arrives together.
func TestFiftyFiles(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(t *testing.T, path, content string){
		"in_place": func(t *testing.T, path, content string) {
			t.Helper()
			write(t, filepath.Dir(path), map[string]string{filepath.Base(path): content})
		},
		"by_rename": replace,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := treeOf(t, map[string]string{"a.yaml": "a 1"})
			r := start(t, atDir(dir))
			r.await("a=1")
			var want []string
			tick := time.NewTicker(18 * time.Millisecond)
			defer tick.Stop()
			for i := range 50 {
				put(t, filepath.Join(dir, fmt.Sprintf("n%02d.yaml", i)), fmt.Sprintf("n%02d 1", i))
				want = append(want, fmt.Sprintf("n%02d=1", i))
				<-tick.C
			}
			r.await(append(want, "a=1")...)
			// Files that are renamed go at once, but so close together that the
			// registry's quiet time of 100 ms makes one of them; the others wait
			// for one another.
			r.mu.Lock()
			times := slices.Clone(r.times[1:])
			r.mu.Unlock()
			pushes := 1
			for i := range times[1:] {
				gap := times[i+1].Sub(times[i])
				if gap < spacing-10*time.Millisecond {
					t.Errorf("fragments %v apart", gap)
				}
				if gap > 100*time.Millisecond {
					pushes++
				}
			}
			if name == "in_place" && len(times) > 2 {
				t.Errorf("%d fragments, want at most 2", len(times))
			}
			if pushes > 2 {
				t.Errorf("%d pushes, want at most 2", pushes)
			}
		})
	}
}

// TestLatency asserts only that a rename in a large tree does not wait for the
// file to come to rest; the figure is the benchmark's.
func TestLatency(t *testing.T) {
	t.Parallel()
	files, want := numbered(1000, "1")
	dir := treeOf(t, files)
	r := start(t, atDir(dir))
	r.await(want...)
	began := time.Now()
	replace(t, filepath.Join(dir, "d07", "o0007.yaml"), "o0007 2")
	want[7] = "o0007=2"
	r.await(want...)
	if took := time.Since(began); took >= stillFor {
		t.Errorf("took %v", took)
	}
}
