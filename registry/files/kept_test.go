package files

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/mesh"
)

func keptNames(s *Status) []string {
	var list []string
	for _, k := range s.Kept {
		list = append(list, k.Key.Name)
	}
	return list
}

func TestUnparsableFile(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1\nb 1", "z.yaml": "z 1"})
	r := start(t, atDir(dir))
	r.Await("a=1", "b=1", "z=1")
	replace(t, filepath.Join(dir, "a.yaml"), "a 2\n!!")
	r.awaitStatus("keeping", func(s *Status) bool { return slices.Equal(keptNames(s), []string{"a", "b"}) })
	r.Await("a=1", "b=1", "z=1")
	if !r.hasFault("a.yaml:2:1: error []: not YAML") || !r.hasFault("the last good version (from "+filepath.Join(dir, "a.yaml:1:1")) {
		t.Errorf("faults: %v", r.Status().Faults)
	}
	// a turns up in another file, and that one counts, also once it is gone.
	write(t, dir, map[string]string{"c.yaml": "a 3"})
	r.Await("a=3", "b=1", "z=1")
	check(t, os.Remove(filepath.Join(dir, "c.yaml")))
	r.Await("b=1", "z=1")
	replace(t, filepath.Join(dir, "a.yaml"), "a 4\nb 4")
	r.Await("a=4", "b=4", "z=1")
	st := r.awaitStatus("fixed", func(s *Status) bool { return len(s.Kept) == 0 && len(s.Faults) == 0 })
	if st.State != OK {
		t.Errorf("state %v", st.State)
	}
	// A broken file that is deleted takes what it kept with it.
	replace(t, filepath.Join(dir, "a.yaml"), "!!")
	r.awaitStatus("keeping", func(s *Status) bool { return len(s.Kept) == 2 })
	check(t, os.Remove(filepath.Join(dir, "a.yaml")))
	r.Await("z=1")
	r.Always("z=1")
}

func TestBrokenObject(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1\nb 1\nc 1\nnew !"})
	r := start(t, atDir(dir))
	r.Await("a=1", "b=1", "c=1")
	replace(t, filepath.Join(dir, "a.yaml"), "a 2\nb !\nc 2\nd 2")
	r.Await("a=2", "b=1", "c=2", "d=2")
	replace(t, filepath.Join(dir, "a.yaml"), "a 3\nb !\n!\nd 3") // whose name is unknown: c, perhaps
	r.Await("a=3", "b=1", "c=2", "d=3")
	first := r.awaitStatus("keeping", func(s *Status) bool { return len(s.Kept) == 2 })
	replace(t, filepath.Join(dir, "a.yaml"), "a 4\nb !\nd 3")
	r.Await("a=4", "b=1", "d=3")
	second := r.awaitStatus("keeping", func(s *Status) bool { return len(s.Kept) == 1 })
	if !first.Kept[0].Since.Equal(second.Kept[0].Since) {
		t.Error("b is kept since another time")
	}
	if !r.hasFault("a.yaml:2:1: warning [FL0303] VirtualService default/b: the last good version") {
		t.Errorf("faults: %v", second.Faults)
	}
	if log := r.logs.String(); !strings.Contains(log, `level=WARN msg="invalid objects: their last good versions stay in force"`) {
		t.Errorf("the log does not say what stands:\n%s", log)
	}
	replace(t, filepath.Join(dir, "a.yaml"), "a 4\nd 3") // taken out, not broken
	r.Await("a=4", "d=3")
}

func TestDefinedTwice(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"b.yaml": "x 2\ny 2\ny 3", "c.yaml": "x 3"})
	r := start(t, atDir(dir))
	r.Await("x=2", "y=2")
	a, b, c := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.yaml")
	if !r.hasFault(c+":1:1: error [FL0301] VirtualService default/x: defined twice, at "+b+":1:1 and at "+c+":1:1: the first by path, "+b+":1:1, is in force") ||
		!r.hasFault(b+":3:1: error [FL0301] VirtualService default/y: defined twice, at "+b+":2:1 and at "+b+":3:1") {
		t.Errorf("faults: %v", r.Status().Faults)
	}
	replace(t, a, "x 1")
	r.Await("x=1", "y=2")
	replace(t, a, "x !") // broken: another one is not
	r.Await("x=2", "y=2")
	if !r.hasFault("the first by path is broken, that in " + b + " is in force") {
		t.Errorf("faults: %v", r.Status().Faults)
	}
	check(t, os.Remove(b))
	r.Await("x=3")
	// The same file by two paths is no conflict.
	check(t, os.Remove(a))
	check(t, os.Symlink(c, filepath.Join(dir, "d.yaml")))
	r.awaitStatus("clean", func(s *Status) bool { return s.Files == 2 && len(s.Faults) == 0 })
}

func TestTwoDirectories(t *testing.T) {
	t.Parallel()
	one, two := treeOf(t, map[string]string{"a.yaml": "x 1\nprod/p 1"}), treeOf(t, map[string]string{"a.yaml": "x 2\nprod/p 2"})
	r := start(t, Config{Roots: []Root{{Path: one, Namespaces: []string{"only"}}, {Path: two}}})
	r.Await("only/x=1", "x=2", "prod/p=1")
	// One directory away: the other goes on.
	check(t, os.Rename(one, one+".away"))
	r.awaitStatus("unavailable", unavailable)
	replace(t, filepath.Join(two, "a.yaml"), "x 3")
	r.Await("only/x=1", "x=3", "prod/p=1")
	check(t, os.Rename(one+".away", one))
	r.awaitStatus("ok", available)
	r.Always("only/x=1", "prod/p=1")
}

func TestMeshConfig(t *testing.T) {
	t.Parallel()
	top := treeOf(t, map[string]string{"root/a.yaml": "a 1", "root/mesh.yaml": "one.example"})
	path := filepath.Join(top, "root", "mesh.yaml") // which the directory leaves alone
	cfg := Config{Roots: []Root{{Path: filepath.Join(top, "root")}}, MeshConfigFile: path, StateDir: t.TempDir()}
	r := start(t, cfg)
	r.Await("a=1", "mesh=one.example")
	write(t, top, map[string]string{"root/mesh.yaml": "two.example"})
	r.Await("a=1", "mesh=two.example")
	for i, broken := range []string{"!!", "", " \n"} {
		replace(t, path, broken)
		r.awaitStatus("faulty", func(s *Status) bool { return len(s.Kept) == 1 && len(s.Faults) == 2 })
		value := strconv.Itoa(i)
		write(t, top, map[string]string{"root/a.yaml": "a " + value})
		r.Await("a="+value, "mesh=two.example")
	}
	r.Stop()
	r = start(t, cfg) // still broken
	r.Await("a=2", "mesh=two.example")
	check(t, os.Remove(path))
	r.awaitStatus("unavailable", unavailable)
	r.stays(stillForLoss + stillFor)
	replace(t, path, "three.example")
	r.Await("a=2", "mesh=three.example")
}

func TestBrokenMeshConfigAtStartIsNotTheDefault(t *testing.T) {
	t.Parallel()
	path := filepath.Join(treeOf(t, map[string]string{"mesh.yaml": "!!"}), "mesh.yaml")
	r := start(t, Config{MeshConfigFile: path})
	pause(startFor + stillFor)
	if len(r.allSent()) != 0 {
		t.Errorf("sent %v", objects(r.Last()))
	}
	replace(t, path, "one.example")
	r.Await("mesh=one.example")
}

func TestRestart(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"broken.yaml": "a 1\nb 1", "object.yaml": "c 1\nd 1", "gone.yaml": "e 1", "same.yaml": "f 1"})
	cfg := Config{Roots: []Root{{Path: dir}}, StateDir: t.TempDir()}
	r := start(t, cfg)
	r.Await("a=1", "b=1", "c=1", "d=1", "e=1", "f=1")
	replace(t, filepath.Join(dir, "object.yaml"), "c !\nd 2")
	replace(t, filepath.Join(dir, "gone.yaml"), "!!")
	r.Await("a=1", "b=1", "c=1", "d=2", "e=1", "f=1")
	kept := r.awaitStatus("keeping", func(s *Status) bool { return slices.Equal(keptNames(s), []string{"e", "c"}) }).Kept
	since := kept[1].Since
	r.Stop()

	replace(t, filepath.Join(dir, "broken.yaml"), "!!") // while nobody looks
	check(t, os.Remove(filepath.Join(dir, "gone.yaml")))
	r = start(t, cfg)
	r.Await("a=1", "b=1", "c=1", "d=2", "f=1")
	st := r.awaitStatus("keeping", func(s *Status) bool { return slices.Equal(keptNames(s), []string{"a", "b", "c"}) })
	if !st.Kept[2].Since.Equal(since) {
		t.Errorf("c is kept since %v, was %v", st.Kept[2].Since, since)
	}
	r.Always("a=1", "b=1", "c=1", "d=2", "f=1") // the very first fragment included
	r.Stop()

	// The whole directory is away when the server starts.
	check(t, os.Rename(dir, dir+".away"))
	r = start(t, cfg)
	r.Await("a=1", "b=1", "c=1", "d=2", "f=1")
	r.awaitStatus("unavailable", func(s *Status) bool { return s.State == Unavailable && s.Delivered })
	check(t, os.Rename(dir+".away", dir))
	replace(t, filepath.Join(dir, "broken.yaml"), "a 2")
	r.Await("a=2", "c=1", "d=2", "f=1")
	r.Stop()

	// Another directory under the same state has nothing of this one.
	r = start(t, Config{Roots: []Root{{Path: treeOf(t, map[string]string{"x.yaml": "x 1"})}}, StateDir: cfg.StateDir})
	r.Await("x=1")
}

// TestLossWhileAway: what was lost while the server was away is handed out as a
// loss, after what there was before, so that the guard against removals sees it.
func TestLossWhileAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose func(path string) error
		left []string
	}{
		"emptied": {func(path string) error { return os.WriteFile(path, []byte("# none\n"), 0o600) }, []string{"d=1"}},
		"cut":     {func(path string) error { return os.WriteFile(path, []byte("a 1"), 0o600) }, []string{"a=1", "d=1"}},
		"removed": {os.Remove, []string{"d=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := []string{"a=1", "b=1", "c=1", "d=1"}
			dir := treeOf(t, map[string]string{"all.yaml": "a 1\nb 1\nc 1", "same.yaml": "d 1"})
			cfg := Config{Roots: []Root{{Path: dir}}, StateDir: t.TempDir()}
			r := start(t, cfg)
			r.Await(all...)
			r.Stop()
			check(t, c.lose(filepath.Join(dir, "all.yaml")))
			awaitRest(t, filepath.Join(dir, "all.yaml"))
			r = start(t, cfg)
			r.Await(c.left...)
			if first := objects(r.allSent()[0]); !slices.Equal(first, all) {
				t.Errorf("the first fragment has %v, want %v", first, all)
			}
		})
	}
}

// TestHeldLossIsNotForgotten: while the receiver holds a removal back, a restart
// shows again what there was before; once it is let go, it does not.
func TestHeldLossIsNotForgotten(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"all.yaml": "a 1\nb 1", "same.yaml": "d 1"})
	cfg := Config{Roots: []Root{{Path: dir}}, StateDir: t.TempDir(), AwaitDecision: true}
	settle := func(r *running, held int) {
		sent := r.allSent()
		r.Decided(sent[len(sent)-1], held)
	}
	all := []string{"a=1", "b=1", "d=1"}
	r := start(t, cfg)
	r.Await(all...)
	settle(r, 0)
	r.Stop()
	check(t, os.Remove(filepath.Join(dir, "all.yaml")))
	for range 2 {
		r = start(t, cfg)
		r.Await("d=1")
		if first := objects(r.allSent()[0]); !slices.Equal(first, all) {
			t.Errorf("the first fragment has %v, want %v", first, all)
		}
		settle(r, 2)
		r.Stop()
	}
	r = start(t, cfg)
	r.Await("d=1")
	settle(r, 0)
	r.Stop()
	r = start(t, cfg)
	r.Await("d=1")
	if first := objects(r.allSent()[0]); !slices.Equal(first, []string{"d=1"}) {
		t.Errorf("after it was let go the first fragment has %v", first)
	}
}

// awaitRest waits until a file, if it is there, is old enough to be accepted at
// once by a server that starts.
func awaitRest(t *testing.T, path string) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		st, err := statFile(path)
		if isAbsent(err) || err == nil && atRest(sigOf(&st), time.Now()) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come to rest: %v", path, err)
		}
	}
}

// TestRestartUnchanged: nothing changed, so nothing is decoded twice and
// nothing is written.
func TestRestartUnchanged(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1", "b.yaml": "b !\nc 1"})
	cfg := Config{Roots: []Root{{Path: dir}}, StateDir: t.TempDir()}
	r := start(t, cfg)
	r.Await("a=1", "c=1")
	r.Stop()
	before := modTimes(t, cfg.StateDir)
	r = start(t, cfg)
	r.Await("a=1", "c=1")
	r.stays(2 * stillFor)
	r.Stop()
	if n := r.decoder.decodes.Load(); n != 2 {
		t.Errorf("%d decodings for two files", n)
	}
	if after := modTimes(t, cfg.StateDir); !slices.Equal(before, after) {
		t.Errorf("the state was written again: %v, was %v", after, before)
	}
}

func modTimes(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	check(t, filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
		if err == nil && !fi.IsDir() {
			list = append(list, path+" "+fi.ModTime().String())
			if fi.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", path, fi.Mode())
			}
		}
		return err
	}))
	return list
}

func TestDamagedState(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1", "b.yaml": "b 1"})
	cfg := Config{Roots: []Root{{Path: dir}}, StateDir: t.TempDir()}
	r := start(t, cfg)
	r.Await("a=1", "b=1")
	r.Stop()
	s := lastgood.NewStore(filepath.Join(cfg.StateDir, "files", "files"))
	path := s.Path(dir, "a.yaml")
	if path == s.Path(dir, "b.yaml") {
		t.Skip("both files are in one shard, by chance of the directory's name")
	}
	data, err := os.ReadFile(path)
	check(t, err)
	data[len(data)/2] ^= 1
	check(t, os.WriteFile(path, data, 0o600))
	check(t, os.WriteFile(filepath.Join(s.Dir(), ".tmp-1"), nil, 0o600)) // of a crash
	replace(t, filepath.Join(dir, "a.yaml"), "!!")
	replace(t, filepath.Join(dir, "b.yaml"), "!!")
	// Nobody knows what a.yaml had: hosts keep what they have, also after another start.
	for range 2 {
		r = start(t, cfg)
		r.awaitStatus("not delivered", func(st *Status) bool {
			return st.State == Starting && strings.Contains(st.Reason, "a.yaml has an error") && strings.Contains(st.Reason, "fairlead release files")
		})
		r.stays(startFor)
		if len(r.allSent()) > 0 {
			t.Errorf("%v was delivered", objects(r.Last()))
		}
		r.Stop()
	}
	r = start(t, cfg)
	r.awaitStatus("not delivered", func(st *Status) bool { return strings.Contains(st.Reason, "a.yaml has an error") })
	if !r.Release() {
		t.Error("there is nothing to release")
	}
	r.Await("b=1")
	if !r.hasFault("error [FL0305]: last good versions are lost") || !strings.Contains(r.logs.String(), "state directory is damaged") {
		t.Errorf("not reported: %v", r.Status().Faults)
	}
	if _, err := os.Stat(filepath.Join(s.Dir(), ".tmp-1")); err == nil {
		t.Error("left over file is still there")
	}
}

func TestStateCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1"})
	cfg := Config{Roots: []Root{{Path: dir}}, StateDir: t.TempDir()}
	r := start(t, cfg)
	r.Await("a=1")
	stateDir := filepath.Join(cfg.StateDir, "files", "files")
	check(t, os.Rename(stateDir, stateDir+".away")) // also root is refused this way
	replace(t, filepath.Join(dir, "a.yaml"), "a 2")
	r.Await("a=2")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for reason := ""; reason == ""; _, reason = r.persister.Trouble() {
		<-tick.C
	}
	check(t, os.Rename(stateDir+".away", stateDir))
	r.Stop() // writes what waits
	list, err := lastgood.NewStore(stateDir).Load()
	if err != nil || len(list) != 1 || string(list[0].Contents[0]) != "a 2" {
		t.Errorf("saved %v, %v", list, err)
	}
}

func TestStateDirIsRefused(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"file": "x"})
	s, err := New(Config{
		Roots: []Root{{Path: dir}}, Decoder: &fakeDecoder{}, Logger: discard(), StateDir: filepath.Join(dir, "file"),
	})
	check(t, err)
	if err := s.Run(t.Context(), make(chan *mesh.Fragment)); err == nil || !strings.Contains(err.Error(), "state directory") {
		t.Errorf("Run: %v", err)
	}
}
