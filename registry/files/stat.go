package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/registry/lastgood"
)

// sig is the result of stat: while it is equal, the file counts as unchanged. It includes the
// change time, which, unlike the modification time, no tool can set.
type sig struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64 // ns since 1970
}

func sigOf(st *unix.Stat_t) sig {
	return sig{
		dev: uint64(st.Dev), ino: st.Ino, size: st.Size, //nolint:unconvert // not uint64 everywhere
		mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(),
	}
}

// sameContent reports whether the two are of one file that was not written in between, as far as
// its times tell.
func (s sig) sameContent(other sig) bool {
	s.ctime = other.ctime
	return s == other
}

func statFile(path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := ignoreEINTR(func() error { return unix.Stat(path, &st) }); err != nil {
		return st, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st, nil
}

func ignoreEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func isRegular(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

var (
	errMoving  = errors.New("the file changes while it is read")
	errTooBig  = errors.New("the file is too large")
	errNotFile = errors.New("not a regular file")
)

// readFile reads a file that is expected to have the sig want. If it has another one before or
// after reading, it is being written: errMoving.
func readFile(path string, want sig, limit int64) (*lastgood.Blob, error) {
	// Without O_NONBLOCK a named pipe put in place of the file would block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening: %w", err)
	}
	defer f.Close()
	if err := looksLike(f, want); err != nil {
		return nil, err
	}
	if want.size > limit {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are read", errTooBig, want.size, limit)
	}
	content := make([]byte, want.size) // what was appended meanwhile shows below
	switch _, err := io.ReadFull(f, content); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errMoving
	case err != nil:
		return nil, fmt.Errorf("reading: %w", err)
	}
	if err := looksLike(f, want); err != nil {
		return nil, err
	}
	return lastgood.NewBlob(content), nil
}

func looksLike(f *os.File, want sig) error {
	var st unix.Stat_t
	if err := ignoreEINTR(func() error { return unix.Fstat(int(f.Fd()), &st) }); err != nil {
		return fmt.Errorf("looking at it: %w", err)
	}
	switch {
	case !isRegular(&st):
		return errNotFile
	case sigOf(&st) != want:
		return errMoving
	default:
		return nil
	}
}
