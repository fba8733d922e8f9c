package logrotate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileID identifies a file on this host while it exists.
type fileID struct{ dev, ino uint64 }

// heldFile is a regular file that a process has open for appending.
type heldFile struct {
	id fileID
	// path is the name of the file now; where it was removed, the one that it had.
	path    string
	removed bool
	size    int64
}

// held are the regular files that a process has open for appending, each once.
func held(pid int) ([]heldFile, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("finding the files that Envoy writes: %w", err)
	}
	defer func() { _ = d.Close() }()
	var out []heldFile
	seen := map[fileID]bool{}
	for {
		const some = 1024 // a busy Envoy has 100,000 sockets
		names, err := d.Readdirnames(some)
		for _, name := range names {
			f, ok, err := heldAt(pid, name)
			if err != nil {
				return nil, fmt.Errorf("finding the files that Envoy writes: %w", err)
			}
			if ok && !seen[f.id] {
				seen[f.id] = true
				out = append(out, f)
			}
		}
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("finding the files that Envoy writes: %w", err)
		}
	}
}

// heldAt looks at one descriptor; false means that it is of something else, or was closed
// meanwhile.
func heldAt(pid int, fd string) (heldFile, bool, error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	link := filepath.Join(proc, "fd", fd)
	path, err := os.Readlink(link)
	if err != nil || !strings.HasPrefix(path, "/") { // socket:[…], pipe:[…]
		return heldFile{}, false, ignoreGone(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(link, &st); err != nil {
		return heldFile{}, false, ignoreGone(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return heldFile{}, false, nil
	}
	info, err := os.ReadFile(filepath.Join(proc, "fdinfo", fd))
	if err != nil {
		return heldFile{}, false, ignoreGone(err)
	}
	if !appends(string(info)) {
		return heldFile{}, false, nil
	}
	f := heldFile{id: idOf(&st), path: path, size: st.Size, removed: st.Nlink == 0}
	if f.removed {
		f.path = strings.TrimSuffix(path, " (deleted)")
	}
	return f, true, nil
}

// appends reads the flags of a descriptor, as octal digits: proc(5).
func appends(fdinfo string) bool {
	for line := range strings.Lines(fdinfo) {
		if rest, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(rest), 8, 64)
			return err == nil && flags&unix.O_APPEND != 0 && flags&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}

func idOf(st *unix.Stat_t) fileID { return fileID{dev: st.Dev, ino: st.Ino} }

// ignoreGone is nil for a descriptor or process that has ended meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}
