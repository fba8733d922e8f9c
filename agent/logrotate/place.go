package logrotate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// widest is what others than the owner may do with a log at most.
const widest = 0o640

// usual is the mode of what the agent makes.
const usual = 0o600

// place is a file's name in its directory, which is open: nobody can put another directory, or a
// symbolic link, under a later step.
type place struct {
	dir  int // an O_PATH descriptor
	path string
	base string
}

// openPlace opens the directory of a path, and follows no symbolic link. The path is absolute and
// clean, as the kernel gives it.
func openPlace(path string) (*place, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dir, err := unix.Open("/", flags, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the directory of %q: %w", path, err)
	}
	for name := range strings.SplitSeq(filepath.Dir(path), "/") {
		if name == "" {
			continue
		}
		next, err := unix.Openat(dir, name, flags, 0)
		_ = unix.Close(dir)
		if err != nil {
			return nil, fmt.Errorf("opening the directory of %q, without following symbolic links: %w", path, err)
		}
		dir = next
	}
	return &place{dir: dir, path: path, base: filepath.Base(path)}, nil
}

func (p *place) close() { _ = unix.Close(p.dir) }

// old is the name of the file that was rotated n times; 0 is the one that Envoy writes.
func (p *place) old(n int) string {
	if n == 0 {
		return p.base
	}
	return p.base + "." + strconv.Itoa(n)
}

// errNotALog means that something stands where a log would be: nothing is done with it.
var errNotALog = errors.New("it is not a regular file of the agent's user with one name: it is left alone")

// errReplaced means that the file at a log's name is not the one that Envoy writes any more.
var errReplaced = errors.New("another file took the name of the log")

// errNotRegular means that Envoy must not be asked to open what stands where its log was.
var errNotRegular = errors.New("something else took the place of the log: remove it. Until then Envoy goes on in the file that it has open")

// stat looks at a name in the directory; nil means that there is nothing. What is no log of ours
// is an error.
func (p *place) stat(name string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(p.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // there is nothing
	case err != nil:
		return nil, p.explain("looking at", name, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Uid != uint32(os.Geteuid()):
		return nil, p.explain("looking at", name, errNotALog)
	}
	return &st, nil
}

// explain says what to do about an error.
func (p *place) explain(doing, name string, err error) error {
	path := filepath.Join(filepath.Dir(p.path), name)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%s %q: %w: give the agent's user the right to write in the directory, or leave the files to the host's logrotate with --access-log-files 0", doing, path, err)
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s %q: %w: the file is a mount point or on another file system: mount its directory instead, or leave the files to the host's logrotate with --access-log-files 0", doing, path, err)
	default:
		return fmt.Errorf("%s %q: %w", doing, path, err)
	}
}

// narrow takes away the rights of other users at a log.
func (p *place) narrow(name string, id fileID) error {
	st, err := p.stat(name)
	if err != nil || st == nil || idOf(st) != id || st.Mode&0o7777&^widest == 0 {
		return err
	}
	fd, err := unix.Openat(p.dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return p.explain("opening", name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Fstat(fd, st); err != nil || idOf(st) != id {
		return nil // another one by now
	}
	if err := unix.Fchmod(fd, st.Mode&widest); err != nil {
		return p.explain("taking away the rights of other users at", name, err)
	}
	return nil
}

// shift makes room for a file that is rotated: FILE.1 becomes FILE.2, up to the last, which is
// replaced. It stops at a gap. What more than the last there is, of a time with another setting,
// is removed.
func (p *place) shift(last int) error {
	free := last + 1
	for n := last; n >= 1; n-- {
		st, err := p.stat(p.old(n))
		if err != nil {
			return err
		}
		if st == nil {
			free = n
			continue
		}
		if err := p.narrow(p.old(n), idOf(st)); err != nil {
			return err
		}
	}
	if free > last {
		if _, err := p.remove(last); err != nil {
			return err
		}
		free = last
	}
	for n := free - 1; n >= 1; n-- {
		if err := p.rename(p.old(n), p.old(n+1)); err != nil {
			return err
		}
	}
	p.removeFrom(last + 1)
	return nil
}

// removeFrom removes rotated files from a number on, up to the first that is missing or somebody
// else's.
func (p *place) removeFrom(n int) {
	for removed := true; removed; n++ {
		var err error
		removed, err = p.remove(n)
		removed = removed && err == nil
	}
}

// rename gives a file a name that no other has. An agent whose Envoy writes the same log may
// rotate it at the same time: then this is errReplaced.
func (p *place) rename(from, to string) error {
	err := unix.Renameat2(p.dir, from, p.dir, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // not every file system has it
		err = unix.Renameat(p.dir, from, p.dir, to)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist):
		return errReplaced
	default:
		return p.explain("renaming", from, err)
	}
}

// remove removes a rotated file; false means that there is none.
func (p *place) remove(n int) (bool, error) {
	if st, err := p.stat(p.old(n)); err != nil || st == nil {
		return false, err
	}
	if err := unix.Unlinkat(p.dir, p.old(n), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, p.explain("removing", p.old(n), err)
	}
	return true, nil
}

// removeOldest removes the oldest of the rotated files; false means that there is none.
func (p *place) removeOldest(last int) (bool, error) {
	for n := last; n >= 1; n-- {
		if removed, err := p.remove(n); err != nil || removed {
			return removed, err
		}
	}
	return false, nil
}

// rotate renames a log that has this identity, and makes a new one in its place. After an error
// the log has its name.
func (p *place) rotate(id fileID, last int) error {
	st, err := p.stat(p.base)
	if err != nil {
		return err
	}
	if st == nil || idOf(st) != id {
		return errReplaced
	}
	if err := p.narrow(p.base, id); err != nil {
		return err
	}
	if err := p.shift(last); err != nil {
		return err
	}
	if err := p.rename(p.base, p.old(1)); err != nil {
		return err
	}
	back := func(err error) error { return errors.Join(err, p.rename(p.old(1), p.base)) }
	if now, err := p.stat(p.old(1)); err != nil || now == nil || idOf(now) != id {
		return back(errors.Join(err, errReplaced))
	}
	if err := p.create(st.Mode & widest); err != nil && !errors.Is(err, errReplaced) {
		return back(err)
	}
	return nil
}

// create makes the file that Envoy is going to open. Envoy itself would make it readable for
// every user, where the umask does not prevent that.
func (p *place) create(mode uint32) error {
	fd, err := unix.Openat(p.dir, p.base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if errors.Is(err, fs.ErrExist) {
		return errReplaced
	}
	if err != nil {
		return p.explain("making", p.base, err)
	}
	_ = unix.Close(fd)
	return nil
}

// prepare makes sure that Envoy can open its log here, and opens no other file: an Envoy that
// fails to open a log drops its lines.
func (p *place) prepare() error {
	var st unix.Stat_t
	err := unix.Fstatat(p.dir, p.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p.create(usual)
	case err != nil:
		return p.explain("looking at", p.base, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return p.explain("looking at", p.base, errNotRegular)
	}
	fd, err := unix.Openat(p.dir, p.base, unix.O_WRONLY|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return p.explain("opening", p.base, err)
	}
	_ = unix.Close(fd)
	return nil
}

// room is the size of the file system of the directory and what is free in it, in bytes.
func (p *place) room() (total, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(p.dir, &st); err != nil {
		return 0, 0, p.explain("asking for the free space at", p.base, err)
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}

// rotatedName reports whether a path is one that a rotated file has, and of which log.
func rotatedName(path string) (of string, ok bool) {
	i := strings.LastIndexByte(path, '.')
	if i < 0 {
		return "", false
	}
	n, err := strconv.Atoi(path[i+1:])
	return path[:i], err == nil && n > 0 && strconv.Itoa(n) == path[i+1:] && !strings.HasSuffix(path[:i], "/")
}
