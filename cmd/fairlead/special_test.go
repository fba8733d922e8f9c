package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestNoCommandWaitsForAPipe puts into a directory what is no file, and what never
// ends. A command that reads it blocks until the test's deadline.
func TestNoCommandWaitsForAPipe(t *testing.T) {
	t.Parallel()
	special := map[string]func(path string) error{
		"pipe":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"device": func(path string) error { return os.Symlink("/dev/zero", path) },
	}
	for name, put := range special {
		for _, command := range [][]string{
			{"validate", "DIR"},
			{"analyze", "DIR"},
			{"render", "--config-dir", "DIR", "--workload", "shop/web"},
			{"apply", write(t, "# nothing\n"), "--config-dir", "DIR"},
		} {
			t.Run(name+"_"+command[0], func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				path := filepath.Join(dir, "a.yaml")
				if err := put(path); err != nil {
					t.Fatal(err)
				}
				args := make([]string, len(command))
				for i, a := range command {
					args[i] = strings.ReplaceAll(a, "DIR", dir)
				}
				code, out, errs := cli(t, args...)
				if code != exitFailed || !strings.Contains(errs, path) || !strings.Contains(errs, "not a regular file") {
					t.Errorf("exit %d\n%s%s", code, out, errs)
				}
			})
		}
	}
}

// TestAPipeCanBeNamed: a shell's <(…) is a pipe, and larger than any file may be
// is no reason to read it all.
func TestAPipeCanBeNamed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(misspelt)
			_ = f.Close()
		}
		written <- err
	}()
	code, out, _ := cli(t, "validate", path)
	if err := <-written; err != nil || code != exitInvalid || !strings.Contains(out, ":9:7: error") {
		t.Errorf("validate of a pipe: %d %v\n%s", code, err, out)
	}
	if code, out, _ = cli(t, "validate", "/dev/zero"); code != exitInvalid || !strings.Contains(out, "at most") {
		t.Errorf("what never ends is read up to %d bytes: %d %.300s", manifest.MaxFileSize, code, out)
	}
}
