package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/durable/durabletest"
)

func TestWriteFileIsOldOrNewAtEveryStep(t *testing.T) {
	t.Parallel()
	for steps := 0; ; steps++ {
		dir := t.TempDir()
		path := filepath.Join(dir, "f")
		if err := durable.WriteFile(durable.OS{}, path, []byte("old-old"), 0o600); err != nil {
			t.Fatal(err)
		}
		fsys := &durabletest.FS{Steps: steps}
		err := durable.WriteFile(fsys, path, []byte("new-new"), 0o600)
		if died := fsys.Died(); died != (err != nil) {
			t.Fatalf("step %d: died %v, error %v", steps, died, err)
		}
		got, rerr := durable.ReadFile(path, 100)
		if rerr != nil {
			t.Fatal(rerr)
		}
		if s := string(got); s != "old-old" && s != "new-new" || err == nil && s != "new-new" {
			t.Fatalf("step %d: file is %q", steps, s)
		}
		if err := durable.MakeDir(dir); err != nil {
			t.Fatal(err)
		}
		entries, rerr := os.ReadDir(dir)
		if rerr != nil || len(entries) != 1 {
			t.Fatalf("step %d: sweeping left %v, %v", steps, entries, rerr)
		}
		if err == nil {
			if steps < 4 {
				t.Fatalf("only %d steps seen", steps)
			}
			return
		}
	}
}

func TestModeAndLimit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	for _, mode := range []os.FileMode{0o600, 0o644} {
		if err := durable.WriteFile(durable.OS{}, path, []byte("123"), mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("mode %v, %v: want %v", info.Mode(), err, mode)
		}
	}
	if _, err := durable.ReadFile(path, 2); err == nil {
		t.Error("a file over the limit was read")
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := durable.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := durable.Lock(path); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("second lock: %v, want ErrLocked", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := durable.Lock(path)
	if err != nil {
		t.Fatalf("after the first was given back: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
