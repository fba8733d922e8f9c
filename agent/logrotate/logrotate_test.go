package logrotate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestEveryLineIsInOneFile rotates the log of a busy Envoy many times. Envoy makes its files
// readable for every user (0644); the rotator does not leave them so.
func TestEveryLineIsInOneFile(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			g := startEnvoy(t, version, "")
			const rotations, size = 60, 16 << 10
			r := g.rotator(g.config(size, 2000))
			stop := g.run(r)
			envoytest.Eventually(t, deadline, func() error {
				g.send(500)
				if s := r.Status(); s.Rotations < rotations {
					return fmt.Errorf("%d rotations: %v", s.Rotations, s.Problems)
				}
				return nil
			})
			envoytest.Eventually(t, deadline, func() error { return g.complete(all(t, g.log)) })
			stop()
			narrowModes(t, g.log+"*")
			if s := r.Status(); len(s.Problems) > 0 || len(s.Logs) != 1 || s.Logs[0].Path != g.log {
				t.Errorf("status: %+v", s)
			}
			if n := len(all(t, g.log)); n < rotations {
				t.Errorf("%d files after %d rotations", n, r.Status().Rotations)
			}
		})
	}
}

// TestTwoEnvoysOfOneLog: agents of one host may have Envoys that write to one file. Envoy writes a
// line in two pieces now and then, and the other Envoy's may come between: so bytes are counted.
func TestTwoEnvoysOfOneLog(t *testing.T) {
	t.Parallel()
	g := startEnvoy(t, envoytest.Default, "")
	other := startEnvoy(t, envoytest.Default, g.log)
	other.sent = 1_000_000
	a, b := g.rotator(g.config(8<<10, 2000)), g.rotator(other.config(8<<10, 2000))
	g.run(a)
	other.run(b)
	envoytest.Eventually(t, deadline, func() error {
		g.send(50)
		other.send(50)
		if n := a.Status().Rotations + b.Status().Rotations; n < 20 {
			return fmt.Errorf("%d rotations: %v %v", n, a.Status(), b.Status())
		}
		return nil
	})
	want := 0
	for n := range g.sent {
		want += len(fmt.Sprintf("n=%d \n", n)) + padding
	}
	for n := range other.sent - 1_000_000 {
		want += len(fmt.Sprintf("n=%d \n", 1_000_000+n)) + padding
	}
	envoytest.Eventually(t, deadline, func() error {
		got := 0
		for _, content := range all(t, g.log) {
			got += len(content)
		}
		if got != want {
			return fmt.Errorf("%d bytes in the files, want %d", got, want)
		}
		return nil
	})
}

// TestNextAgentFinishes: an agent that was killed between renaming a log and telling Envoy
// leaves an Envoy that writes to the renamed file.
func TestNextAgentFinishes(t *testing.T) {
	t.Parallel()
	for name, made := range map[string]bool{"before_the_new_file": false, "after_it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startEnvoy(t, envoytest.Default, "")
			g.send(20)
			if err := os.Rename(g.log, g.log+".1"); err != nil {
				t.Fatal(err)
			}
			if made {
				write(t, g.log, "", 0o600)
			}
			g.send(20)
			g.run(g.rotator(g.config(neverDue, 5)))
			envoytest.Eventually(t, deadline, func() error {
				g.send(1)
				if got := g.holds(); !slices.Equal(got, []string{g.log}) {
					return fmt.Errorf("Envoy has %q open", got)
				}
				return nil
			})
			g.send(20)
			envoytest.Eventually(t, deadline, func() error { return g.complete(all(t, g.log)) })
			narrowModes(t, g.log)
		})
	}
}

// TestRemovedLogIsMadeAgain: Envoy would write to a file without a name until the disk is full.
func TestRemovedLogIsMadeAgain(t *testing.T) {
	t.Parallel()
	g := startEnvoy(t, envoytest.Default, "")
	g.run(g.rotator(g.config(neverDue, 5)))
	envoytest.Eventually(t, deadline, func() error { return onlyNarrow(g.log) }) // it has seen the log
	if err := os.Remove(g.log); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, deadline, func() error {
		g.send(1)
		if got := g.holds(); !slices.Equal(got, []string{g.log}) {
			return fmt.Errorf("Envoy has %q open", got)
		}
		return onlyNarrow(g.log)
	})
}

func onlyNarrow(path string) error {
	fi, err := os.Lstat(path)
	if err == nil && fi.Mode().Perm()&^widest != 0 {
		err = fmt.Errorf("%s has the mode %v", path, fi.Mode())
	}
	return err
}

// TestOnlyWhatEnvoyWrites: no other file is renamed, and nobody else's rights change.
func TestOnlyWhatEnvoyWrites(t *testing.T) {
	t.Parallel()
	g := startEnvoy(t, envoytest.Default, "")
	other, victim := filepath.Join(g.dir, "other.log"), filepath.Join(g.dir, "victim")
	write(t, other, strings.Repeat("y", 1<<20), 0o644)
	write(t, victim, strings.Repeat("z", 1<<20), 0o644)
	untouched := func() {
		t.Helper()
		for _, path := range []string{other, victim} {
			if fi, err := os.Lstat(path); err != nil || fi.Mode() != 0o644 || fi.Size() != 1<<20 {
				t.Errorf("%s was changed: %v, %v", path, fi, err)
			}
		}
		if n, err := filepath.Glob(filepath.Join(g.dir, "*.1")); err != nil || len(n) > 0 {
			t.Errorf("rotated: %q, %v", n, err)
		}
	}
	r := g.rotator(g.config(4<<10, 5))
	reopened := 0
	ask := r.c.Reopen
	r.c.Reopen = func(ctx context.Context) error {
		reopened++
		return ask(ctx)
	}
	// A symbolic link takes the place of the log: Envoy would open what it points to.
	if err := errors.Join(os.Rename(g.log, g.log+".moved"), os.Symlink(victim, g.log)); err != nil {
		t.Fatal(err)
	}
	r.birth, r.logs = "one", map[string]*accessLog{}
	moved := mustStat(t, g.log+".moved")
	r.logs[g.log] = &accessLog{path: g.log, id: moved}
	g.send(50)
	r.step(t.Context(), time.Now())
	if got := r.Status().Problems; reopened != 0 || len(got) != 1 || !strings.Contains(got[0], "remove it") {
		t.Errorf("asked %d times, problems %q", reopened, got)
	}
	untouched()
	// Without it, all is well.
	if err := os.Remove(g.log); err != nil {
		t.Fatal(err)
	}
	r.mayScan = time.Time{}
	r.step(t.Context(), time.Now())
	if got := r.Status().Problems; reopened != 1 || len(got) > 0 {
		t.Errorf("asked %d times, problems %q", reopened, got)
	}
	untouched()
}

// TestNotALog: what is in the agent's directories, or has another name, too, is left alone.
func TestNotALog(t *testing.T) {
	t.Parallel()
	g := startEnvoy(t, envoytest.Default, "")
	g.send(50)
	envoytest.Eventually(t, deadline, func() error { return g.complete(all(t, g.log)) })
	c := g.config(4<<10, 5)
	c.Private = append(c.Private, g.dir)
	r := g.rotator(c)
	r.step(t.Context(), time.Now())
	if s := r.Status(); len(s.Logs) != 0 || s.Rotations != 0 {
		t.Errorf("a file in a private directory: %+v", s)
	}
	link := filepath.Join(g.dir, "link")
	if err := os.Link(g.log, link); err != nil {
		t.Fatal(err)
	}
	r = g.rotator(g.config(4<<10, 5))
	r.step(t.Context(), time.Now())
	if s := r.Status(); s.Rotations != 0 || len(s.Problems) != 1 || !strings.Contains(s.Problems[0], errNotALog.Error()) {
		t.Errorf("a file with two names: %+v", s)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	r.step(t.Context(), time.Now())
	if s := r.Status(); s.Rotations != 1 || len(s.Problems) != 0 {
		t.Errorf("with one name: %+v", s)
	}
}

// TestProblemsAreNamed: an Envoy that cannot be looked at, and one that does not answer.
func TestProblemsAreNamed(t *testing.T) {
	t.Parallel()
	g := startEnvoy(t, envoytest.Default, "")
	g.send(50)
	envoytest.Eventually(t, deadline, func() error { return g.complete(all(t, g.log)) })
	c := g.config(4<<10, 5)
	c.Process = func() (int, string) { return math.MaxInt32, "gone" }
	r := g.rotator(c)
	r.step(t.Context(), time.Now())
	if s := r.Status(); len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "--access-log-files 0") {
		t.Errorf("without /proc: %+v", s)
	}
	c = g.config(4<<10, 5)
	answers := errors.New("no answer")
	working := c.Reopen
	c.Reopen = func(ctx context.Context) error {
		if answers != nil {
			return answers
		}
		return working(ctx)
	}
	r = g.rotator(c)
	for range 2 { // it stays a problem
		r.step(t.Context(), time.Now())
		if s := r.Status(); s.Rotations != 1 || len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "no answer") {
			t.Errorf("without an answer: %+v", s)
		}
	}
	if n := strings.Count(g.logged.String(), "no answer"); n != 1 {
		t.Errorf("the problem is in the log %d times", n)
	}
	answers = nil
	r.failedUntil = time.Time{}
	r.step(t.Context(), time.Now())
	if s := r.Status(); len(s.Problems) != 0 {
		t.Errorf("with an answer: %+v", s)
	}
}

// TestShift: files are kept in order and up to their number; a gap of a crash is filled.
func TestShift(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, after string }{
		"none":        {"0", "1"},
		"some":        {"0 1 2", "1 2 3"},
		"full":        {"0 1 2 3", "1 2 3"},
		"gap":         {"0 2 3", "1 2 3"},
		"fewer_files": {"0 1 2 3 4 5 7", "1 2 3 7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := resolved(t.TempDir())
			path := filepath.Join(dir, "a.log")
			for n := range strings.FieldsSeq(c.before) {
				at := path + "." + n
				if n == "0" {
					at = path
				}
				write(t, at, n, 0o644)
			}
			p, err := openPlace(path)
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			if err := p.rotate(mustStat(t, path), 3); err != nil {
				t.Fatal(err)
			}
			var after []string
			for n := range 10 {
				if _, err := os.Lstat(p.path + "." + strconv.Itoa(n)); err == nil {
					after = append(after, strconv.Itoa(n))
				}
			}
			if got := strings.Join(after, " "); got != c.after {
				t.Errorf("files: %s, want %s", got, c.after)
			}
			if b, err := os.ReadFile(path + ".1"); err != nil || string(b) != "0" {
				t.Errorf("the newest has %q, %v", b, err)
			}
			narrowModes(t, path+".[1-3]")
		})
	}
}

// TestDirectoriesAreNotFollowed: the way to a log has no symbolic links.
func TestDirectoriesAreNotFollowed(t *testing.T) {
	t.Parallel()
	dir := resolved(t.TempDir())
	dest, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(dest, 0o750), os.Symlink(dest, link)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dest, "a.log"), "", 0o600)
	if p, err := openPlace(filepath.Join(dest, "a.log")); err != nil {
		t.Error(err)
	} else {
		p.close()
	}
	if p, err := openPlace(filepath.Join(link, "a.log")); err == nil {
		p.close()
		t.Error("a symbolic link was followed")
	}
}

// TestFullDisk: rotated files go, the oldest first; then the log itself; Envoy goes on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t) // before anything is mounted
	dir := filepath.Join(resolved(t.TempDir()), "small")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		if errors.Is(err, syscall.EPERM) {
			envoytest.Missing(t, "mounting a small file system needs root")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "access.log")
	g := startEnvoy(t, envoytest.Default, path)
	for n := 1; n <= 3; n++ {
		write(t, fmt.Sprintf("%s.%d", path, n), strings.Repeat("x", 8<<10), 0o600)
	}
	g.send(120)
	r := g.rotator(g.config(1<<30, 5)) // on this file system the limit is a fraction of 1 MiB
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	envoytest.Eventually(t, deadline, func() error { // up to the last byte
		if _, err := filler.Write(make([]byte, 4<<10)); !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("there is still room: %w", err)
		}
		return nil
	})
	for n := 3; n >= 2; n-- {
		r.step(t.Context(), time.Now())
		if _, err := os.Lstat(fmt.Sprintf("%s.%d", path, n)); err == nil {
			t.Errorf("access.log.%d is still there", n)
		}
		if _, err := os.Lstat(fmt.Sprintf("%s.%d", path, n-1)); err != nil {
			t.Errorf("a newer one went first: %v", err)
		}
	}
	stop := g.run(r)
	envoytest.Eventually(t, deadline, func() error {
		g.send(1)
		if s := r.Status(); s.RemovedEarly < 3 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	stop()
	if !strings.Contains(g.logged.String(), "the oldest rotated file was removed") {
		t.Error("the log does not say so")
	}
}

// TestAnotherFileStays: what took the name of a log, or of a rotated one, is not renamed and not
// replaced.
func TestAnotherFileStays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(resolved(t.TempDir()), "a.log")
	write(t, path, "new", 0o600)
	write(t, path+".held", "held", 0o600)
	write(t, path+".1", "one", 0o600)
	p, err := openPlace(path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if err := p.rotate(mustStat(t, path+".held"), 5); !errors.Is(err, errReplaced) {
		t.Errorf("rotated: %v", err)
	}
	if err := p.rename(p.base, p.old(1)); !errors.Is(err, errReplaced) {
		t.Errorf("replaced: %v", err)
	}
	for name, content := range map[string]string{path: "new", path + ".1": "one"} {
		if b, err := os.ReadFile(name); err != nil || string(b) != content {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}
