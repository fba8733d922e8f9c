package files

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

func TestFirstReading(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{
		"a.yaml": "a 1", "sub/deep/b.yml": "prod/b 1\nc 1", "empty.yaml": "",
		".hidden.yaml": "x 1", ".git/x.yaml": "x 1", "a.yaml~": "x 1", "a.yaml.bak": "x 1", "#a.yaml#": "x 1",
		"a.yaml.swp": "x 1", "b.json": "x 1", "4913": "x 1", ".#a.yaml": "x 1", "a.yaml.tmp": "x 1", "#b.yaml": "x 1",
	})
	r := start(t, atDir(dir))
	r.Await("a=1", "prod/b=1", "c=1")
	st := r.awaitStatus("ok", func(s *Status) bool { return s.State == OK && s.Delivered })
	if st.Files != 3 || st.Objects != 3 || len(st.Faults) != 0 {
		t.Errorf("status: %+v", st)
	}
}

func TestInPlaceWrite(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1", "b.yaml": "b 1"})
	r := start(t, atDir(dir))
	before := r.Await("a=1", "b=1")
	began := time.Now()
	write(t, dir, map[string]string{"a.yaml": "a 2"})
	after := r.Await("a=2", "b=1")
	if took := time.Since(began); took < stillFor {
		t.Errorf("accepted after %v", took)
	}
	if before.VirtualServices[1] != after.VirtualServices[1] {
		t.Error("b did not change and is another pointer")
	}
	if before.VirtualServices[0] == after.VirtualServices[0] {
		t.Error("a changed and is the same pointer")
	}
	if n := r.decoder.decodes.Load(); n != 3 {
		t.Errorf("%d files were decoded, want 3", n)
	}
}

func TestTouchIsNoChange(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1"})
	r := start(t, atDir(dir))
	r.Await("a=1")
	now := time.Now()
	check(t, os.Chtimes(filepath.Join(dir, "a.yaml"), now, now))
	check(t, os.Chmod(filepath.Join(dir, "a.yaml"), 0o644))
	r.stays(2 * stillFor)
	if n := r.decoder.decodes.Load(); n != 1 {
		t.Errorf("%d files were decoded, want 1", n)
	}
}

func TestTornWrites(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1\nb 1\n"})
	r := start(t, atDir(dir))
	r.Await("a=1", "b=1")
	var writer beat
	f, err := os.Create(filepath.Join(dir, "a.yaml")) // empty now
	check(t, err)
	writer.now()
	pause(stillForLoss / 2)
	_, err = f.WriteString("a 2\n")
	check(t, err)
	writer.now()
	pause(stillForLoss / 2) // longer than an in-place write needs, but b is missing
	_, err = f.WriteString("b 2\n")
	check(t, err)
	writer.now()
	check(t, f.Close())
	r.Await("a=2", "b=2")
	for _, f := range r.allSent() {
		if len(f.VirtualServices) != 2 && writer.stall < stillForLoss {
			t.Errorf("half a write was accepted: %v", objects(f))
		}
	}
	// It is intended, so it is accepted after a second.
	began := time.Now()
	write(t, dir, map[string]string{"a.yaml": "a 3\n"})
	r.Await("a=3")
	if took := time.Since(began); took < stillForLoss {
		t.Errorf("a loss was accepted after %v", took)
	}
}

func TestSlowWriterOfSmallPieces(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"other.yaml": "other 1"})
	r := start(t, atDir(dir))
	r.Await("other=1")
	f, err := os.Create(filepath.Join(dir, "a.yaml"))
	check(t, err)
	text := "a 12345678901234567890"
	var writer beat
	for i := range text {
		_, err := f.WriteString(text[i : i+1])
		check(t, err)
		writer.now()
		pause(stillFor / 4)
	}
	check(t, f.Close())
	r.Await("other=1", "a=12345678901234567890")
	if list := r.allSent(); len(list) != 2 && writer.stall < stillFor {
		t.Errorf("%d fragments, want 2: a part of a write was accepted, and the writer never paused for more than %v", len(list), writer.stall)
	}
	if r.lastReadAtOnce(filepath.Join(dir, "a.yaml")) {
		t.Error("a file that was being written was not waited for")
	}
}

func TestRenameIsAcceptedAtOnce(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1\nb 1"})
	r := start(t, atDir(dir))
	r.Await("a=1", "b=1")
	outside := filepath.Join(t.TempDir(), "new")
	check(t, os.WriteFile(outside, []byte("a 2"), 0o600))
	check(t, os.Rename(outside, filepath.Join(dir, "a.yaml"))) // loses b, and means it
	r.Await("a=2")
	r.readAtOnce(filepath.Join(dir, "a.yaml"))
	check(t, os.Rename(filepath.Join(dir, "a.yaml"), filepath.Join(dir, "z.yaml")))
	r.awaitStatus("renamed", func(s *Status) bool {
		return s.Files == 1 && r.Last().VirtualServices[0].Origin.Path == filepath.Join(dir, "z.yaml")
	})
	r.readAtOnce(filepath.Join(dir, "z.yaml"))
	const gone = `msg="file deleted, its objects are in other files"`
	if log := r.logs.String(); !strings.Contains(log, gone) || strings.Contains(log, `msg="file deleted"`) {
		t.Error("a rename is logged like a loss")
	}
	for i, f := range r.allSent() {
		if len(f.VirtualServices) == 0 {
			t.Errorf("fragment %d lacks a", i)
		}
	}
}

// TestDeletedTreeIsOneLogLine deletes many files, some of them with objects that a new file has.
func TestDeletedTreeIsOneLogLine(t *testing.T) {
	t.Parallel()
	const lost, moved = 400, 30
	files := map[string]string{"stays.yaml": "stays 1"}
	all := []string{"stays=1"}
	var movedText []string
	for i := range lost {
		files[fmt.Sprintf("old/l%d.yaml", i)] = fmt.Sprintf("l%d 1\nk%d 1", i, i)
		all = append(all, fmt.Sprintf("l%d=1", i), fmt.Sprintf("k%d=1", i))
	}
	for i := range moved {
		files[fmt.Sprintf("old/m%d.yaml", i)] = fmt.Sprintf("m%d 1", i)
		movedText = append(movedText, fmt.Sprintf("m%d 1", i))
		all = append(all, fmt.Sprintf("m%d=1", i))
	}
	dir := treeOf(t, files)
	r := start(t, atDir(dir))
	r.Await(all...)
	after := []string{"stays=1"}
	for i := range moved {
		after = append(after, fmt.Sprintf("m%d=1", i))
	}
	outside := filepath.Join(t.TempDir(), "new")
	check(t, os.WriteFile(outside, []byte(strings.Join(movedText, "\n")), 0o600))
	check(t, os.Rename(outside, filepath.Join(dir, "new.yaml")))
	check(t, os.RemoveAll(filepath.Join(dir, "old")))
	r.Await(after...)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		log := r.logs.String()
		if !strings.Contains(log, `msg="files deleted" `) || !strings.Contains(log, `msg="files deleted, their objects are in other files" `) {
			return fmt.Errorf("no lines for the files that were deleted: %s", log)
		}
		return nil
	})
	count := map[string]int{}
	for line := range strings.Lines(r.logs.String()) {
		if !strings.Contains(line, " deleted") {
			continue
		}
		if len(line) > 2000 {
			t.Errorf("a line of %d bytes", len(line))
		}
		n := 1
		for field := range strings.FieldsSeq(line) {
			if value, ok := strings.CutPrefix(field, "count="); ok {
				n, _ = strconv.Atoi(value)
			}
		}
		count["lines"]++
		count["files"] += n
	}
	if count["files"] != lost+moved || count["lines"] > 4 { // two, unless this process stood still meanwhile
		t.Errorf("%d lines for %d of %d files", count["lines"], count["files"], lost+moved)
	}
}

// TestWhatAppearsComplete distinguishes a file that appeared complete from one that is being written.
func TestWhatAppearsComplete(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		come  func(t *testing.T, path, outside string)
		whole bool
	}{
		"renamed_from_elsewhere": {func(t *testing.T, path, outside string) {
			t.Helper()
			check(t, os.WriteFile(outside, []byte("a 2"), 0o600))
			check(t, os.Rename(outside, path))
		}, true},
		"renamed_and_mode_changed": {func(t *testing.T, path, outside string) {
			t.Helper()
			check(t, os.WriteFile(outside, []byte("a 2"), 0o600))
			check(t, os.Rename(outside, path))
			check(t, os.Chmod(path, 0o640))
		}, true},
		"hard_link": {func(t *testing.T, path, outside string) {
			t.Helper()
			check(t, os.WriteFile(outside, []byte("a 2"), 0o600))
			check(t, os.Remove(path))
			check(t, os.Link(outside, path))
		}, true},
		"created": {func(t *testing.T, path, _ string) {
			t.Helper()
			check(t, os.Remove(path))
			check(t, os.WriteFile(path, []byte("a 2"), 0o600))
		}, false},
		"created_mode_changed_and_written_late": {func(t *testing.T, path, _ string) {
			t.Helper()
			check(t, os.Remove(path))
			f, err := os.Create(path)
			check(t, err)
			check(t, f.Chmod(0o640)) // its change time is past its modification time
			pause(stillFor / 4)
			_, err = f.WriteString("a ")
			check(t, err)
			pause(stillFor / 4)
			_, err = f.WriteString("2")
			check(t, err)
			check(t, f.Close())
		}, false},
		"copied_with_its_times": {func(t *testing.T, path, _ string) {
			t.Helper()
			check(t, os.Remove(path))
			check(t, os.WriteFile(path, []byte("a 2"), 0o600))
			check(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
		}, false},
		"empty": {func(t *testing.T, path, outside string) {
			t.Helper()
			check(t, os.WriteFile(outside, nil, 0o600))
			check(t, os.Rename(outside, path))
			pause(stillFor / 2)
			check(t, os.WriteFile(path, []byte("a 2"), 0o600))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := treeOf(t, map[string]string{"a.yaml": "a 1"})
			path := filepath.Join(dir, "a.yaml")
			r := start(t, onlyEvents(dir))
			r.Await("a=1")
			c.come(t, path, filepath.Join(t.TempDir(), "new"))
			r.Await("a=2")
			if list := r.allSent(); len(list) != 2 {
				t.Errorf("%d fragments, want 2", len(list))
			}
			if got := r.lastReadAtOnce(path); got != c.whole {
				t.Errorf("read at once: %v, want %v", got, c.whole)
			}
		})
	}
}

func TestEditors(t *testing.T) {
	t.Parallel()
	edits := map[string]func(t *testing.T, path, content string){
		"vim_backup_by_rename": func(t *testing.T, path, content string) {
			t.Helper()
			check(t, os.WriteFile(filepath.Join(filepath.Dir(path), "4913"), nil, 0o600))
			check(t, os.Remove(filepath.Join(filepath.Dir(path), "4913")))
			check(t, os.Rename(path, path+"~"))
			f, err := os.Create(path)
			check(t, err)
			pause(stillFor / 2)
			_, err = f.WriteString(content)
			check(t, err)
			check(t, f.Close())
			check(t, os.Remove(path+"~"))
		},
		"vim_backup_by_copy": func(t *testing.T, path, content string) {
			t.Helper()
			old, err := os.ReadFile(path)
			check(t, err)
			check(t, os.WriteFile(path+"~", old, 0o600))
			check(t, os.WriteFile(path, []byte(content), 0o600))
			check(t, os.Remove(path+"~"))
		},
		"emacs": func(t *testing.T, path, content string) {
			t.Helper()
			dir, base := filepath.Split(path)
			check(t, os.Symlink("me@host.1:2", dir+".#"+base))
			check(t, os.WriteFile(dir+"#"+base+"#", []byte(content[:1]), 0o600))
			check(t, os.Rename(path, path+"~"))
			check(t, os.WriteFile(path, []byte(content), 0o600))
			check(t, os.Remove(dir+"#"+base+"#"))
			check(t, os.Remove(dir+".#"+base))
		},
		"rename_over": replace,
		"sed_in_place": func(t *testing.T, path, content string) {
			t.Helper()
			tmp := filepath.Join(filepath.Dir(path), "sedAbCdEf")
			check(t, os.WriteFile(tmp, []byte(content), 0o600))
			check(t, os.Rename(tmp, path))
		},
		"unlink_and_create": func(t *testing.T, path, content string) {
			t.Helper()
			check(t, os.Remove(path))
			pause(stillFor * 2)
			check(t, os.WriteFile(path, []byte(content), 0o600))
		},
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := treeOf(t, map[string]string{"a.yaml": "a 1", "b.yaml": "b 1"})
			r := start(t, atDir(dir))
			r.Await("a=1", "b=1")
			edit(t, filepath.Join(dir, "a.yaml"), "a 2")
			r.Await("a=2", "b=1")
			r.stays(2 * stillFor)
			if n := len(r.allSent()); n != 2 {
				t.Errorf("%d fragments, want 2", n)
			}
			r.Always("b=1")
		})
	}
}

// TestConfigMap swaps a tree as Kubernetes does: every file is a link through
// ..data, and that link is renamed over.
func TestConfigMap(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"..v1/a.yaml": "a 1", "..v1/b.yaml": "b 1"})
	check(t, os.Symlink("..v1", filepath.Join(dir, "..data")))
	for _, name := range []string{"a.yaml", "b.yaml"} {
		check(t, os.Symlink("..data/"+name, filepath.Join(dir, name)))
	}
	r := start(t, onlyEvents(dir))
	r.Await("a=1", "b=1")
	write(t, dir, map[string]string{"..v2/a.yaml": "a 2", "..v2/b.yaml": "b 2"})
	check(t, os.Symlink("..v2", filepath.Join(dir, "..data_tmp")))
	check(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	check(t, os.RemoveAll(filepath.Join(dir, "..v1")))
	r.Await("a=2", "b=2")
	r.readAtOnce(filepath.Join(dir, "a.yaml"))
	r.readAtOnce(filepath.Join(dir, "b.yaml"))
	if list := r.allSent(); len(list) != 2 {
		t.Errorf("%d fragments, want 2: the swap was seen in parts", len(list))
	}
	// The new target is watched as the old one was.
	replace(t, filepath.Join(dir, "..v2", "a.yaml"), "a 3")
	r.Await("a=3", "b=2")
}

func TestRootIsSymlink(t *testing.T) {
	t.Parallel()
	top := treeOf(t, map[string]string{"v1/a.yaml": "a 1", "v1/sub/b.yaml": "b 1", "v2/a.yaml": "a 2", "v2/sub/b.yaml": "b 2"})
	link := filepath.Join(top, "current")
	check(t, os.Symlink("v1", link))
	r := start(t, onlyEvents(link))
	r.Await("a=1", "b=1")
	check(t, os.Symlink("v2", link+".tmp"))
	check(t, os.Rename(link+".tmp", link))
	r.Await("a=2", "b=2")
	r.readAtOnce(filepath.Join(link, "sub", "b.yaml"))
	// ln -sfn removes and makes the link anew: the root is away for a moment.
	check(t, os.Remove(link))
	r.awaitStatus("unavailable", func(s *Status) bool { return s.State == Unavailable })
	check(t, os.Symlink("v1", link))
	r.Await("a=1", "b=1")
	write(t, top, map[string]string{"v1/sub/b.yaml": "b 3"})
	r.Await("a=1", "b=3")
	r.awaitStatus("ok", func(s *Status) bool { return s.State == OK })
	if list := r.allSent(); len(list) > 5 {
		t.Errorf("%d fragments", len(list))
	}
}

func TestLinkedDirectory(t *testing.T) {
	t.Parallel()
	outside := treeOf(t, map[string]string{"v1/a.yaml": "a 1", "v2/a.yaml": "a 2", "v2/new.yaml": "n 2", "f.yaml": "f 1"})
	dir := filepath.Join(treeOf(t, map[string]string{"root/own.yaml": "own 1"}), "root")
	check(t, os.Symlink(filepath.Join(outside, "v1"), filepath.Join(dir, "apps")))
	check(t, os.Symlink(filepath.Join(outside, "f.yaml"), filepath.Join(dir, "linked.yaml")))
	check(t, os.Symlink("..", filepath.Join(dir, "loop")))
	check(t, os.MkdirAll(filepath.Join(dir, "x", "y"), 0o755))
	check(t, os.Symlink(dir, filepath.Join(dir, "x", "y", "back")))
	check(t, os.Symlink("self", filepath.Join(dir, "self")))
	r := start(t, onlyEvents(filepath.Join(dir, ".")))
	r.Await("own=1", "a=1", "f=1")
	replace(t, filepath.Join(outside, "f.yaml"), "f 2")
	r.Await("own=1", "a=1", "f=2")
	check(t, os.Symlink(filepath.Join(outside, "v2"), filepath.Join(dir, ".tmp")))
	check(t, os.Rename(filepath.Join(dir, ".tmp"), filepath.Join(dir, "apps")))
	r.Await("own=1", "a=2", "n=2", "f=2")
	r.Always("own=1")
}

func TestSubtree(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1"})
	away := t.TempDir()
	r := start(t, onlyEvents(dir))
	r.Await("a=1")
	sub := filepath.Join(dir, "sub")

	write(t, dir, map[string]string{"sub/x/b.yaml": "b 1", "sub/x/c.yaml": "c 1"})
	r.Await("a=1", "b=1", "c=1")

	check(t, os.Rename(sub, filepath.Join(away, "sub")))
	pause(stillFor / 2)
	check(t, os.Rename(filepath.Join(away, "sub"), sub)) // back before it counts
	r.stays(stillForLoss + stillFor)

	check(t, os.Rename(sub, filepath.Join(away, "sub")))
	r.Await("a=1")
	write(t, away, map[string]string{"sub/x/b.yaml": "b 2"})
	check(t, os.Rename(filepath.Join(away, "sub"), sub))
	r.Await("a=1", "b=2", "c=1")
	r.readAtOnce(filepath.Join(sub, "x", "b.yaml"))
	replace(t, filepath.Join(sub, "x", "c.yaml"), "c 2") // watched again
	r.Await("a=1", "b=2", "c=2")

	check(t, os.Rename(sub, filepath.Join(dir, "renamed"))) // within the tree
	r.awaitStatus("renamed", func(s *Status) bool {
		return r.Last().VirtualServices[1].Origin.Path == filepath.Join(dir, "renamed", "x", "b.yaml")
	})
	replace(t, filepath.Join(dir, "renamed", "x", "c.yaml"), "c 3")
	r.Await("a=1", "b=2", "c=3")
	check(t, os.RemoveAll(filepath.Join(dir, "renamed")))
	r.Await("a=1")
	r.Always("a=1")
}

func TestGitCheckout(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		envoytest.Missing(t, "git is not installed")
	}
	files, first := numbered(1000, "1")
	dir := treeOf(t, files)
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "gc.auto=0"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q", "-b", "one")
	git("add", ".")
	git("commit", "-q", "-m", "one")
	git("checkout", "-q", "-b", "two")
	files, second := numbered(990, "2") // ten files are gone
	for i := range 20 {
		check(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("d%02d", i))))
	}
	write(t, dir, files)
	git("add", "-A", ".")
	git("commit", "-q", "-m", "two")
	git("checkout", "-q", "one")

	r := start(t, atDir(dir))
	r.Await(first...)
	git("checkout", "-q", "two")
	r.Await(second...)
	git("checkout", "-q", "one")
	r.Await(first...)
	for i, f := range r.allSent() {
		if n := len(f.VirtualServices); n < len(second) {
			t.Errorf("fragment %d has %d objects: one was lost that was only rewritten", i, n)
		}
	}
}
