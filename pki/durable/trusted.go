package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrUntrusted is the error for a file that another user can write or replace.
var ErrUntrusted = errors.New("another user can change it")

// ReadTrusted reads a file that tells a privileged process what to do, of at most limit bytes. It
// fails with [ErrUntrusted] unless only root and the user of this process can write the file, and
// the directories that it is in, those of a symbolic link included.
func ReadTrusted(path string, limit int64) ([]byte, error) {
	untrusted := func(of, why string) error {
		return fmt.Errorf("reading %q: %w: %s %s: it has to be of root, and writable for its owner only (chown root, chmod go-w)", path, ErrUntrusted, of, why)
	}
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	for _, at := range []string{path, target} {
		if at, err = filepath.Abs(at); err != nil {
			return nil, fmt.Errorf("reading %q: %w", path, err)
		}
		for dir := at; dir != filepath.Dir(dir); {
			dir = filepath.Dir(dir)
			info, err := os.Lstat(dir)
			if err != nil {
				return nil, fmt.Errorf("reading %q: %w", path, err)
			}
			if why := changeable(info); why != "" {
				return nil, untrusted(fmt.Sprintf("the directory %q", dir), why)
			}
		}
	}
	f, err := os.OpenFile(target, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	info, err := f.Stat()
	var data []byte
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("not a regular file")
	default:
		if why := changeable(info); why != "" {
			return nil, errors.Join(untrusted("the file", why), f.Close())
		}
		data, err = io.ReadAll(io.LimitReader(f, limit+1))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("reading %q: longer than %d bytes", path, limit)
	}
	return data, nil
}

// changeable says why another user can change a file, or what is in a directory, or is empty. The
// group's bits cover those of access control lists, too.
func changeable(info fs.FileInfo) string {
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return "has an unknown owner"
	case !ownUser(owner.Uid):
		return fmt.Sprintf("is of user %d", owner.Uid)
	case info.Mode()&fs.ModeSymlink != 0, info.IsDir() && info.Mode()&fs.ModeSticky != 0: // others cannot replace what is not theirs
		return ""
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Sprintf("has the mode %#o", info.Mode().Perm())
	default:
		return ""
	}
}
