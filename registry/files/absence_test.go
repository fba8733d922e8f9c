package files

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/race"
)

func unavailable(s *Status) bool { return s.State == Unavailable }

func available(s *Status) bool { return s.State == OK }

func TestRootVanishes(t *testing.T) {
	t.Parallel()
	top := treeOf(t, map[string]string{"root/a.yaml": "a 1", "root/b.yaml": "b 1"})
	dir, away := filepath.Join(top, "root"), filepath.Join(top, "away")
	r := start(t, atDir(dir))
	r.Await("a=1", "b=1")

	check(t, os.Rename(dir, away))
	st := r.awaitStatus("unavailable", unavailable)
	if !strings.Contains(st.Reason, dir) || !r.hasFault("its last state stays in force") {
		t.Errorf("the reason is missing: %+v", st)
	}
	r.stays(stillForLoss + stillFor)
	check(t, os.Rename(away, dir))
	r.awaitStatus("ok", available)

	check(t, os.RemoveAll(dir)) // the files go first, one by one
	r.awaitStatus("unavailable", unavailable)
	r.stays(stillForLoss + stillFor)
	r.Always("a=1", "b=1")
	write(t, dir, map[string]string{"a.yaml": "a 2", "b.yaml": "b 2"})
	r.Await("a=2", "b=2")
	r.awaitStatus("ok", available)
	if n := strings.Count(r.logs.String(), "source is unavailable"); n != 2 {
		t.Errorf("the log says %d times that the source is unavailable, want 2", n)
	}
}

func TestRootIsMissingAtStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "root")
	r := start(t, Config{Roots: []Root{{Path: dir}}, ScanInterval: 50 * time.Millisecond})
	r.awaitStatus("unavailable", unavailable)
	pause(startFor + stillFor)
	if len(r.allSent()) != 0 || r.Status().Delivered {
		t.Error("a root that was never seen was delivered")
	}
	write(t, dir, map[string]string{"a.yaml": "a 1"})
	r.Await("a=1")
}

// TestFirstFragmentIsWhole: a file that is being written when the server starts
// is waited for, but not for ever.
func TestFirstFragmentIsWhole(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"old.yaml": "old 1", "a.yaml": ""})
	long := time.Now().Add(-time.Hour)
	check(t, os.Chtimes(filepath.Join(dir, "old.yaml"), long, long))
	r := start(t, atDir(dir))
	write(t, dir, map[string]string{"a.yaml": "a 1"})
	r.Await("old=1", "a=1")
	if n := len(r.allSent()); n != 1 {
		t.Errorf("%d fragments, want 1", n)
	}

	dir = treeOf(t, map[string]string{"old.yaml": "old 1", "a.yaml": "a"})
	r = start(t, atDir(dir))
	tick := time.NewTicker(stillFor / 10)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	var writer beat
	for i := 0; !r.hasFault("a.yaml: warning [FL0304]: has been changing for"); i++ {
		write(t, dir, map[string]string{"a.yaml": strings.Repeat("x", i%90)})
		writer.now()
		<-tick.C
		if time.Now().After(deadline) {
			t.Fatalf("it is not reported: %v", r.Status().Faults)
		}
	}
	for r.Last() == nil { // the status has the fault a moment before the fragment is sent
		<-tick.C
		if time.Now().After(deadline) {
			t.Fatal("the fault is reported, and nothing is sent")
		}
	}
	if got := objects(r.Last()); !slices.Equal(got, []string{"old=1"}) && writer.stall < stillFor {
		t.Errorf("got %v", got)
	}
}

func TestEmptyRootIsDelivered(t *testing.T) {
	t.Parallel()
	r := start(t, atDir(t.TempDir()))
	r.Await()
	r.awaitStatus("ok", func(s *Status) bool { return s.State == OK && s.Delivered })
}

func TestRootIsAFile(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1"})
	r := start(t, atDir(filepath.Join(dir, "a.yaml")))
	r.awaitStatus("unavailable", func(s *Status) bool { return strings.Contains(s.Reason, "not a directory") })
}

// asOthers runs the test itself in a process that may not read everything, if
// this one may.
func asOthers(t *testing.T) (done bool) {
	t.Helper()
	probe := filepath.Join(t.TempDir(), "probe")
	check(t, os.WriteFile(probe, nil, 0o000))
	if f, err := os.Open(probe); err != nil {
		return false
	} else if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Getenv("FAIRLEAD_TEST_INNER") != "" {
		envoytest.Missing(t, "this process may read everything, and setpriv cannot change that: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), setpriv, "--bounding-set=-dac_override,-dac_read_search",
		os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "FAIRLEAD_TEST_INNER=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
	return true
}

func TestUnreadable(t *testing.T) {
	t.Parallel()
	if asOthers(t) {
		return
	}
	dir := treeOf(t, map[string]string{"a.yaml": "a 1", "b.yaml": "b 1", "sub/c.yaml": "c 1", "sub/d/e.yaml": "e 1"})
	r := start(t, Config{Roots: []Root{{Path: dir}}, ScanInterval: 300 * time.Millisecond})
	r.Await("a=1", "b=1", "c=1", "e=1")
	sub := filepath.Join(dir, "sub")

	check(t, os.Chmod(sub, 0))
	r.awaitStatus("partial", func(s *Status) bool { return s.State == Partial })
	check(t, os.Chmod(filepath.Join(dir, "b.yaml"), 0))
	r.stays(stillForLoss + 2*stillFor)
	if !r.hasFault("sub: error [FL0302]") || !r.hasFault("b.yaml: error [FL0302]") {
		t.Errorf("faults: %v", r.Status().Faults)
	}
	write(t, dir, map[string]string{"a.yaml": "a 2"}) // a bad file never stops a good one
	r.Await("a=2", "b=1", "c=1", "e=1")
	check(t, os.Chmod(sub, 0o700))
	check(t, os.Chmod(filepath.Join(dir, "b.yaml"), 0o600))
	r.awaitStatus("ok", available)
	check(t, os.Remove(filepath.Join(sub, "c.yaml")))
	r.Await("a=2", "b=1", "e=1")

	check(t, os.Chmod(dir, 0))
	r.awaitStatus("unavailable", unavailable)
	r.stays(stillForLoss + stillFor)
	check(t, os.Chmod(dir, 0o700))
	r.awaitStatus("ok", available)
}

func TestDanglingLinksRemoveNothing(t *testing.T) {
	t.Parallel()
	outside := treeOf(t, map[string]string{"disk/x/a.yaml": "a 1", "disk/b.yaml": "b 1"})
	dir := treeOf(t, map[string]string{"c.yaml": "c 1"})
	check(t, os.Symlink(filepath.Join(outside, "disk", "x"), filepath.Join(dir, "x")))
	check(t, os.Symlink(filepath.Join(outside, "disk", "b.yaml"), filepath.Join(dir, "b.yaml")))
	r := start(t, atDir(dir))
	r.Await("a=1", "b=1", "c=1")
	check(t, os.Rename(filepath.Join(outside, "disk"), filepath.Join(outside, "away")))
	r.awaitStatus("partial", func(s *Status) bool { return s.State == Partial })
	r.stays(stillForLoss + stillFor)
	check(t, os.Rename(filepath.Join(outside, "away"), filepath.Join(outside, "disk")))
	r.awaitStatus("ok", available)
	check(t, os.Remove(filepath.Join(dir, "b.yaml"))) // the link itself
	r.Await("a=1", "c=1")
}

func TestStrangeFiles(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1", "big.yaml": "b " + strings.Repeat("x", 200)})
	check(t, unix.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600))
	check(t, os.MkdirAll(filepath.Join(dir, "dir.yaml"), 0o700))
	write(t, dir, map[string]string{"dir.yaml/c.yaml": "c 1"})
	r := start(t, Config{Roots: []Root{{Path: dir}}, MaxFileSize: 100})
	r.Await("a=1", "c=1")
	r.awaitStatus("partial", func(*Status) bool {
		return r.hasFault("pipe.yaml: error [FL0302] cannot be read") || r.hasFault("not a regular file") && r.hasFault("too large")
	})
	replace(t, filepath.Join(dir, "big.yaml"), "b 1")
	r.Await("a=1", "b=1", "c=1")
}

func TestTooManyFiles(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	dir := treeOf(t, map[string]string{"a.yaml": "a 1", "b.yaml": "b 1"})
	r := start(t, Config{Roots: []Root{{Path: dir}}, MaxFiles: 2})
	r.Await("a=1", "b=1")
	write(t, dir, map[string]string{"c.yaml": "c 1"})
	r.awaitStatus("unavailable", func(s *Status) bool { return strings.Contains(s.Reason, "more than 2 files") })
	r.stays(stillForLoss)
	check(t, os.Remove(filepath.Join(dir, "a.yaml")))
	r.Await("b=1", "c=1")
}

func TestOtherMount(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"own.yaml": "own 1"})
	below := filepath.Join(dir, "disk")
	mount := func(at string) {
		t.Helper()
		check(t, os.MkdirAll(at, 0o755))
		err := unix.Mount("fairlead-test", at, "tmpfs", 0, "size=1m")
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			envoytest.Missing(t, "this user may not mount a file system")
		}
		check(t, err)
	}
	unmount := func(at string) { check(t, unix.Unmount(at, unix.MNT_DETACH)) }
	mount(below)
	t.Cleanup(func() { _ = unix.Unmount(below, unix.MNT_DETACH) })
	write(t, below, map[string]string{"a.yaml": "a 1", "b.yaml": "b 1"})
	whole := start(t, Config{Roots: []Root{{Path: dir}}, ScanInterval: 100 * time.Millisecond})
	root := start(t, Config{Roots: []Root{{Path: below}}, ScanInterval: 100 * time.Millisecond})
	whole.Await("own=1", "a=1", "b=1")
	root.Await("a=1", "b=1")

	held, err := os.Open(filepath.Join(below, "a.yaml")) // or the next disk would get its number
	check(t, err)
	defer held.Close()
	unmount(below) // an empty directory, on another device
	whole.awaitStatus("partial", func(s *Status) bool { return s.State == Partial })
	root.awaitStatus("unavailable", func(s *Status) bool { return strings.Contains(s.Reason, "another file system") })
	root.stays(stillForLoss + stillFor)
	whole.stays(stillFor)

	mount(below) // yet another device; it lacks a file at first
	write(t, below, map[string]string{"a.yaml": "a 2"})
	root.stays(stillForLoss)
	write(t, below, map[string]string{"b.yaml": "b 2"})
	root.Await("a=2", "b=2")
	whole.Await("own=1", "a=2", "b=2")
	check(t, os.Remove(filepath.Join(below, "b.yaml"))) // in good standing again
	root.Await("a=2")
	whole.Await("own=1", "a=2")
	root.Stop()
	whole.Stop()
	unmount(below)
}

// deafWatcher is the system's watcher, but it grants no watch, or loses what it
// hears.
type deafWatcher struct {
	watcher
	full, loses bool
}

func (w *deafWatcher) add(dir string) error {
	if w.full {
		return errWatchLimit
	}
	return w.watcher.add(dir)
}

func (w *deafWatcher) take() batch {
	b := w.watcher.take()
	if w.loses {
		return batch{lost: true}
	}
	return b
}

func deaf(w deafWatcher) func(string) (watcher, error) {
	return func(scratch string) (watcher, error) {
		system, err := newSystemWatcher(scratch)
		w.watcher = system
		return &w, err
	}
}

func TestWithoutEvents(t *testing.T) {
	t.Parallel()
	for name, newWatcher := range map[string]func(string) (watcher, error){
		"no_watches":  deaf(deafWatcher{full: true}),
		"no_inotify":  func(string) (watcher, error) { return nil, errors.New("too many open files") },
		"events_lost": deaf(deafWatcher{loses: true}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := treeOf(t, map[string]string{"a.yaml": "a 1"})
			cfg := Config{Roots: []Root{{Path: dir}}, ScanInterval: 100 * time.Millisecond, newWatcher: newWatcher}
			if name == "events_lost" {
				cfg.ScanInterval = time.Hour
			}
			r := start(t, cfg)
			r.Await("a=1")
			replace(t, filepath.Join(dir, "a.yaml"), "a 2")
			write(t, dir, map[string]string{"sub/b.yaml": "b 1"})
			r.Await("a=2", "b=1")
			check(t, os.RemoveAll(filepath.Join(dir, "sub")))
			r.Await("a=2")
			st := r.Status()
			if reported := st.Unwatched != ""; reported != (name != "events_lost") {
				t.Errorf("Unwatched: %q", st.Unwatched)
			}
			if lost := st.Counters.Overflows > 0; lost != (name == "events_lost") {
				t.Errorf("%d overflows", st.Counters.Overflows)
			}
		})
	}
}

// TestSecondReading: the registry lets a removal go when two readings agree.
func TestSecondReading(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1"})
	r := start(t, Config{Roots: []Root{{Path: dir}}, ScanInterval: 50 * time.Millisecond})
	r.Await("a=1")
	r.awaitStatus("read twice", func(*Status) bool { return r.Again() >= 2 })
	check(t, os.Rename(dir, dir+".away"))
	r.awaitStatus("unavailable", unavailable)
	before := r.Again()
	r.stays(500 * time.Millisecond)
	if n := r.Again(); n > before+1 {
		t.Errorf("an unavailable source was confirmed %d times", n-before)
	}
	if !slices.Equal(objects(r.Last()), []string{"a=1"}) {
		t.Error("lost")
	}
}

// TestWithoutMark: where nothing can be written, a renamed file waits like a
// written one.
func TestWithoutMark(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1"})
	cfg := onlyEvents(dir)
	cfg.newWatcher = func(string) (watcher, error) { return newSystemWatcher(filepath.Join(dir, "missing")) }
	r := start(t, cfg)
	r.Await("a=1")
	replace(t, filepath.Join(dir, "a.yaml"), "a 2")
	r.Await("a=2")
	if r.lastReadAtOnce(filepath.Join(dir, "a.yaml")) {
		t.Error("it was accepted without knowing that it is whole")
	}
}

// TestDirectoryInPlaceOfAFile: the file is gone, so its objects leave, whether it was seen to go or not.
func TestDirectoryInPlaceOfAFile(t *testing.T) {
	t.Parallel()
	for name, watcher := range map[string]func(string) (watcher, error){"events": nil, "scans": deaf(deafWatcher{full: true})} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := treeOf(t, map[string]string{"a.yaml": "a 1", "b.yaml": "b 1"})
			cfg := Config{Roots: []Root{{Path: dir}}, ScanInterval: 100 * time.Millisecond}
			if cfg.newWatcher = watcher; watcher == nil {
				cfg = onlyEvents(dir)
			}
			r := start(t, cfg)
			r.Await("a=1", "b=1")
			check(t, os.Remove(filepath.Join(dir, "a.yaml")))
			check(t, os.Mkdir(filepath.Join(dir, "a.yaml"), 0o700))
			r.Await("b=1")
			write(t, filepath.Join(dir, "a.yaml"), map[string]string{"c.yaml": "c 1"})
			r.Await("b=1", "c=1")
			check(t, os.RemoveAll(filepath.Join(dir, "a.yaml")))
			r.Await("b=1")
			write(t, dir, map[string]string{"a.yaml": "a 2"})
			r.Await("a=2", "b=1")
		})
	}
}
