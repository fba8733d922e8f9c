package files

import (
	"fmt"
	"path/filepath"
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
			r.Await("a=1")
			var want []string
			tick := time.NewTicker(18 * time.Millisecond)
			defer tick.Stop()
			began, stalls := time.Now(), 0
			for i := range 50 {
				at := time.Now()
				put(t, filepath.Join(dir, fmt.Sprintf("n%02d.yaml", i)), fmt.Sprintf("n%02d 1", i))
				want = append(want, fmt.Sprintf("n%02d=1", i))
				<-tick.C
				if time.Since(at) > stillFor/2 { // of this process, on a busy machine
					stalls++
				}
			}
			r.Await(append(want, "a=1")...)
			// Files that are written wait for one another. Those that are renamed
			// do not, but are so paced that the registry, which waits for a quiet
			// time of 100 ms, makes one push of them.
			most := 2 + stalls
			if name == "by_rename" {
				most = int(time.Since(began)/spacing) + 2
			}
			if n := len(r.allSent()) - 1; n > most {
				t.Errorf("%d fragments, want at most %d", n, most)
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
	r.Await(want...)
	path := filepath.Join(dir, "d07", "o0007.yaml")
	replace(t, path, "o0007 2\n")
	want[7] = "o0007=2"
	r.Await(want...)
	r.readAtOnce(path)
	if st := r.Status(); st.Counters.Decodes != 1001 {
		t.Errorf("%d files were decoded, want 1001", st.Counters.Decodes)
	}
}
