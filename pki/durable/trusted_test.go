package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReadTrusted reads what nobody else can change, and refuses everything else.
func TestReadTrusted(t *testing.T) {
	t.Parallel()
	const another = 65533
	for name, c := range map[string]struct {
		change func(dir, path string) error
		want   string // part of the error; empty if it is read
		root   bool   // the case needs root
	}{
		"own":             {func(_, _ string) error { return nil }, "", false},
		"readable":        {func(_, path string) error { return os.Chmod(path, 0o644) }, "", false},
		"of_group":        {func(_, path string) error { return os.Chmod(path, 0o664) }, "has the mode 0664", false},
		"of_all":          {func(_, path string) error { return os.Chmod(path, 0o602) }, "has the mode 0602", false},
		"of_another":      {func(_, path string) error { return os.Chown(path, another, -1) }, "is of user 65533", true},
		"directory":       {func(dir, _ string) error { return os.Chmod(dir, 0o777) }, "the directory", false},
		"sticky":          {func(dir, _ string) error { return os.Chmod(dir, 0o777|fs.ModeSticky) }, "", false},
		"above":           {func(dir, _ string) error { return os.Chmod(filepath.Dir(dir), 0o770) }, "the directory", false},
		"directory_other": {func(dir, _ string) error { return os.Chown(dir, another, -1) }, "is of user 65533", true},
		"long":            {func(_, path string) error { return os.WriteFile(path, make([]byte, 100), 0o600) }, "longer than 64 bytes", false},
		"pipe":            {func(_, path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) }, "not a regular file", false},
		"missing":         {func(_, path string) error { return os.Remove(path) }, "no such file", false},
		"link": {func(dir, path string) error {
			return errors.Join(os.Rename(path, filepath.Join(dir, "real")), os.Symlink("real", path))
		}, "", false},
		"link_to_another": {func(dir, path string) error {
			open := filepath.Join(filepath.Dir(dir), "open")
			return errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.Rename(path, filepath.Join(open, "real")), os.Symlink(filepath.Join(open, "real"), path))
		}, "the directory", false},
		"link_in_another": {func(dir, path string) error {
			target := filepath.Join(filepath.Dir(dir), "real")
			return errors.Join(os.Rename(path, target), os.Symlink(target, path), os.Chmod(dir, 0o777))
		}, "the directory", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.root && os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			dir := filepath.Join(t.TempDir(), "dir")
			path := filepath.Join(dir, "file")
			if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(path, []byte("content"), 0o600), c.change(dir, path)); err != nil {
				t.Fatal(err)
			}
			got, err := ReadTrusted(path, 64)
			switch {
			case c.want == "" && (err != nil || string(got) != "content"):
				t.Errorf("%q %v", got, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || len(got) != 0):
				t.Errorf("%q %v", got, err)
			case strings.HasPrefix(c.want, "has") || strings.HasPrefix(c.want, "is of") || strings.HasPrefix(c.want, "the"):
				if !errors.Is(err, ErrUntrusted) {
					t.Errorf("%v", err)
				}
			}
		})
	}
}
