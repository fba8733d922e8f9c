package proxy

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDirectoriesWithoutOpenat2: kernels before 5.6 have no openat2. The same directory is found step
// by step, and a symbolic link is not followed, because it could lead out of another process's root.
func TestDirectoriesWithoutOpenat2(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run", "agent")
	if err := os.MkdirAll(run, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(run, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	want, ok := identify(run)
	if !ok {
		t.Fatal("the directory is not identified")
	}
	root, err := unix.Open("/", openPath, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(root) }()
	fd, err := openBeneath(root, run)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := identifyOpen(fd); !ok || got != want {
		t.Errorf("found %v, want %v", got, want)
	}
	if got, ok := identifyIn(os.Getpid(), run); !ok || got != want {
		t.Errorf("with openat2: found %v, want %v", got, want)
	}
	for _, path := range []string{filepath.Join(dir, "link"), filepath.Join(dir, "link", "x"), filepath.Join(dir, "none")} {
		if fd, err := openBeneath(root, path); err == nil {
			_ = unix.Close(fd)
			t.Errorf("%s was opened", path)
		}
	}
}
