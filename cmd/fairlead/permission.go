package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bits of a mode, as of others.
const (
	mayRead   = 4
	mayWrite  = 2
	maySearch = 1
)

// whoMay says, of an error that is a lack of permission, who may use the file or directory, and
// what to do; of others it is empty.
func whoMay(err error) string {
	if !errors.Is(err, syscall.EACCES) {
		return ""
	}
	var path string
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		path = e.Path
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		path = e.New
	}
	if path, err = filepath.Abs(path); err != nil {
		return ""
	}
	at, need := denies(path)
	info, err := os.Lstat(at)
	if err != nil {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	owner, group, me := userName(st.Uid), groupName(st.Gid), userName(uint32(os.Geteuid()))
	do := "run the command as " + owner + " (sudo -u " + owner + ")"
	if st.Uid == 0 {
		do = "run the command as root (sudo)"
	}
	if int(info.Mode().Perm()>>3)&need == need && st.Gid != 0 {
		do += fmt.Sprintf(", or add %s to the group %s (usermod -aG %s %s) and log in again", me, group, group, me)
	}
	return fmt.Sprintf("%q belongs to user %s and group %s, mode %04o, and this process runs as user %s: %s", at, owner, group, info.Mode().Perm(), me, do)
}

// denies finds the file or directory on the way to a path that this process may not use, and the
// bits that it would need.
func denies(path string) (at string, need int) {
	lacks := func(path string, mode uint32) bool {
		return errors.Is(unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS), unix.EACCES)
	}
	dir := filepath.Dir(path)
	for i := range len(dir) + 1 {
		if i > 0 && (i == len(dir) || dir[i] == filepath.Separator) && lacks(dir[:i], unix.X_OK) {
			return dir[:i], maySearch
		}
	}
	info, err := os.Stat(path)
	switch {
	case err != nil: // it is to be made
		for _, err := os.Stat(dir); err != nil && dir != "/"; _, err = os.Stat(dir) {
			dir = filepath.Dir(dir)
		}
		return dir, mayWrite | maySearch
	case info.Mode()&fs.ModeSocket != 0:
		return path, mayWrite
	case info.IsDir() && lacks(path, unix.X_OK):
		return path, maySearch
	case lacks(path, unix.R_OK):
		return path, mayRead
	default:
		return path, mayWrite
	}
}

// userName is the name of a user, or the number if it has none.
func userName(id uint32) string {
	number := strconv.FormatUint(uint64(id), 10)
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}

// groupName is the same for a group.
func groupName(id uint32) string {
	number := strconv.FormatUint(uint64(id), 10)
	if g, err := user.LookupGroupId(number); err == nil {
		return g.Name
	}
	return number
}

// explain is the text of an error, with who may do what was denied.
func explain(err error) string {
	if who := whoMay(err); who != "" {
		return err.Error() + ": " + who
	}
	return err.Error()
}

// shortError has the words of the first cause only, and is the whole error for those who ask
// what it is.
type shortError struct{ error }

func (e shortError) Unwrap() error { return e.error }

func (e shortError) Error() string {
	err := e.error
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// rootCause leaves out what an error says of the path, which its reader is told already.
func rootCause(err error) error { return shortError{err} }
