package files

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/race"
)

// TestExcludedLinks has links of a tenant that lead to all of the machine. They
// are reported with their position, cost nothing, and hide nothing.
func TestExcludedLinks(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	huge := t.TempDir()
	for i := range maxBarren {
		check(t, os.Mkdir(filepath.Join(huge, fmt.Sprintf("d%d", i)), 0o755))
	}
	write(t, huge, map[string]string{"d1/x.yaml": "x 1"})
	for i := range 20 {
		check(t, os.Mkdir(filepath.Join(huge, "d2", fmt.Sprintf("d%d", i)), 0o755))
	}
	wide := t.TempDir()
	for i := range 10 {
		for k := range maxEntries/10 + 1 {
			check(t, os.MkdirAll(filepath.Join(wide, strconv.Itoa(i)), 0o755))
			check(t, os.Symlink("x", filepath.Join(wide, strconv.Itoa(i), strconv.Itoa(k))))
		}
	}
	for name, c := range map[string]struct {
		target string
		code   string
		says   string
	}{
		"root":    {"/", "FL0307", `it leads to "/"`},
		"parent":  {"../..", "FL0307", "lies in"},
		"proc":    {"/proc", "FL0307", "the kernel makes up"},
		"sys":     {"/sys", "FL0307", "the kernel makes up"},
		"process": {"/proc/self/root", "FL0307", `it leads to "/`},
		"itself":  {".", "FL0307", "it leads back"},
		"huge":    {huge, "FL0302", "directories without a manifest"},
		"wide":    {wide, "FL0302", "names"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := treeOf(t, map[string]string{"mesh/a.yaml": "a 1", "mesh/tenant/b.yaml": "b 1"})
			link := filepath.Join(dir, "mesh", "tenant", "all")
			check(t, os.Symlink(c.target, link))
			r := start(t, onlyEvents(filepath.Join(dir, "mesh")))
			r.Await("a=1", "b=1")
			r.awaitStatus("reported", func(s *Status) bool {
				for _, f := range s.Faults {
					if f.Origin.Path == link && string(f.Code) == c.code && strings.Contains(f.Message, c.says) {
						return s.State != Unavailable && s.Unwatched == ""
					}
				}
				return false
			})
			if n, ok := r.tree.watch.(*notify); ok {
				if list := n.fsw.WatchList(); len(list) > 2*maxBarren || c.code == "FL0307" && len(list) > 10 {
					t.Errorf("%d directories are watched", len(list))
				}
			}
			// The others are read as ever.
			replace(t, filepath.Join(dir, "mesh", "a.yaml"), "a 2")
			r.Await("a=2", "b=1")
			check(t, os.Remove(link))
			r.awaitStatus("no more", func(s *Status) bool { return len(s.Faults) == 0 && s.State == OK })
		})
	}
}

// TestLinkToManyDirectories follows a link to as many directories as there are
// namespaces in a large mesh.
func TestLinkToManyDirectories(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	outside := t.TempDir()
	var want []string
	for i := range maxBarren + 50 {
		name := fmt.Sprintf("n%d", i)
		write(t, outside, map[string]string{name + "/x.yaml": name + " 1"})
		want = append(want, name+"=1")
	}
	slices.Sort(want)
	dir := treeOf(t, map[string]string{"own.yaml": "own 1"})
	check(t, os.Symlink(outside, filepath.Join(dir, "current")))
	r := start(t, onlyEvents(dir))
	r.Await(append(want, "own=1")...)
}
