package durable

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// tempPrefix begins the names of files that are not yet what they will be.
const tempPrefix = ".tmp-"

// writeSize is how much is written at once, in bytes.
const writeSize = 64 << 10

// ErrLocked says that another process holds a lock.
var ErrLocked = errors.New("locked by another process")

// ErrNotSaved says that the disk does not have what it was to have. It is in every
// error of a write and of a removal.
var ErrNotSaved = errors.New("not saved")

// notSavedError is an error with ErrNotSaved in it, which does not change its words.
type notSavedError struct{ error }

func (notSavedError) Is(target error) bool { return target == ErrNotSaved }

func (e notSavedError) Unwrap() error { return e.error }

// FS is what a write needs of the file system. Tests pass one that dies between
// two calls; everything else uses OS.
type FS interface {
	// CreateTemp makes a new file of mode 0600 in dir.
	CreateTemp(dir, pattern string) (File, error)
	Rename(from, to string) error
	Remove(path string) error
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
}

// File is a file that is being written.
type File interface {
	io.WriteCloser
	Name() string
	Chmod(mode fs.FileMode) error
	Sync() error
}

// OS is the file system of the operating system.
type OS struct{}

// CreateTemp implements FS.
func (OS) CreateTemp(dir, pattern string) (File, error) { return os.CreateTemp(dir, pattern) }

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (OS) Remove(path string) error { return os.Remove(path) }

// SyncDir implements FS.
func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// writing counts the writes of this process that have begun and not ended.
var writing atomic.Int64 //nolint:gochecknoglobals // it is about the process, which its server ends

// Writing reports whether this process is writing a file. Who ends the process asks, so that a
// slow disk gets what is on its way there.
func Writing() bool { return writing.Load() > 0 }

// WriteFile puts data at path in one step: after it returned nil the bytes are
// on the disk under that name. If it did not, the file is the old one or, where
// only the directory could not be synced, perhaps the new one; never a mixture.
func WriteFile(fsys FS, path string, data []byte, mode fs.FileMode) error {
	return WriteBuffers(fsys, path, [][]byte{data}, mode)
}

// WriteBuffers is WriteFile for content in pieces, which are not joined first.
func WriteBuffers(fsys FS, path string, data [][]byte, mode fs.FileMode) error {
	writing.Add(1)
	defer writing.Add(-1)
	if err := writeBuffers(fsys, path, data, mode); err != nil {
		return notSavedError{err}
	}
	return nil
}

func writeBuffers(fsys FS, path string, data [][]byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	f, err := fsys.CreateTemp(dir, tempPrefix+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("writing %q: %w", path, reason(err))
	}
	if err := fill(f, data, mode); err != nil {
		return fmt.Errorf("writing %q: %w", path, errors.Join(reason(err), fsys.Remove(f.Name())))
	}
	if err := fsys.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("writing %q: %w", path, errors.Join(reason(err), fsys.Remove(f.Name())))
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fmt.Errorf("writing %q: syncing its directory: %w", path, err)
	}
	return nil
}

// reason is an error without the name of the temporary file: with it, no two attempts fail in the same
// words.
func reason(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if l, ok := errors.AsType[*os.LinkError](err); ok {
		return l.Err
	}
	return err
}

func fill(f File, data [][]byte, mode fs.FileMode) error {
	w := bufio.NewWriterSize(f, writeSize)
	for _, b := range data {
		_, _ = w.Write(b) // Flush says what went wrong
	}
	err := w.Flush()
	if err == nil && mode != 0o600 {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Remove takes the file at path away for good. A file that is not there is no
// error.
func Remove(fsys FS, path string) error {
	if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return notSavedError{fmt.Errorf("removing %q: %w", path, err)}
	}
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return notSavedError{fmt.Errorf("removing %q: syncing its directory: %w", path, err)}
	}
	return nil
}

// MakeDir makes a directory that only its owner can enter, and its parents, and
// sweeps from it what a writer that was killed has left behind. What cannot be
// swept, because the file system is read-only, stays and does no harm.
func MakeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making directory %q: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading directory %q: %w", dir, err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix) || !e.Type().IsRegular() {
			continue
		}
		_ = os.Remove(filepath.Join(dir, e.Name()))
	}
	return nil
}

// Lock takes the lock file at path for this process, or says ErrLocked at once.
// The kernel gives it back when the process ends, however it ends.
func Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, unix.EROFS) {
		f, err = os.Open(path) // the kernel locks that as well
	}
	if err != nil {
		return nil, fmt.Errorf("opening lock %q: %w", path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, fmt.Errorf("locking %q: %w", path, errors.Join(err, f.Close()))
	}
	return &lock{f}, nil
}

type lock struct{ f *os.File }

// Close unlocks before it closes: a process that is just being forked has the
// file open too, for as long as it takes to exec, and would keep the lock.
func (l *lock) Close() error {
	return errors.Join(unix.Flock(int(l.f.Fd()), unix.LOCK_UN), l.f.Close())
}

// ReadFile reads a file that may not be longer than limit bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("reading %q: longer than %d bytes", path, limit)
	}
	return data, nil
}
