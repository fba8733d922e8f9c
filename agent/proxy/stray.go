package proxy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// strays are the Envoys of this run directory that have no record: the agent was killed after it
// started Envoy and before it wrote the record, or somebody removed the record.
//
// A path proves nothing: Envoys of containers have the same paths, and are in the host's /proc. An
// Envoy is ours if the bootstrap that it was started with is in our directory, which is the same one
// if device and inode are. Its mount namespace need not be ours: systemd makes a new one for each
// start of the agent's unit, and Envoy keeps the one of its own start.
func strays(bootstrapPath string) []*handle {
	ours, ok := identify(filepath.Dir(bootstrapPath))
	if !ok {
		return nil
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var out []*handle
	for _, dir := range dirs {
		proc, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		path, ok := startedWith(proc)
		if !ok || filepath.Base(path) != filepath.Base(bootstrapPath) {
			continue
		}
		if its, ok := identifyIn(proc, filepath.Dir(path)); !ok || its != ours {
			continue
		}
		if h := holdProc(proc); h != nil {
			out = append(out, h)
		}
	}
	return out
}

// startedWith is the bootstrap of an Envoy that an agent started, as its arguments have it.
func startedWith(proc int) (path string, ok bool) {
	b, err := os.ReadFile(procPath(proc, "cmdline"))
	if err != nil {
		return "", false
	}
	args := strings.Split(string(b), "\x00")
	at := slices.Index(args, bootstrapArg)
	if at < 0 || at+1 >= len(args) || !slices.Contains(args, restartArg) || slices.Contains(args, "validate") {
		return "", false
	}
	return args[at+1], true
}

// directory identifies a directory on this host, whatever its path is.
type directory struct{ dev, ino uint64 }

// openPath is how a directory is opened to be identified.
const openPath = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC

// identify identifies a directory of this process's mounts.
func identify(path string) (directory, bool) {
	fd, err := unix.Open(path, openPath, 0)
	if err != nil {
		return directory{}, false
	}
	return identifyOpen(fd)
}

// identifyOpen identifies an open directory, and closes it.
func identifyOpen(fd int) (directory, bool) {
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return directory{}, false
	}
	return directory{dev: uint64(st.Dev), ino: st.Ino}, true //nolint:unconvert // its type depends on the architecture
}

// identifyIn is the directory that a process finds at a path, in its own mounts.
func identifyIn(proc int, path string) (directory, bool) {
	root, err := unix.Open(procPath(proc, "root"), openPath, 0)
	if err != nil {
		return directory{}, false // it has ended, or is another user's
	}
	defer func() { _ = unix.Close(root) }()
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: openPath, Resolve: unix.RESOLVE_IN_ROOT})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // before Linux 5.6, or kept away by seccomp
		fd, err = openBeneath(root, path)
	}
	if err != nil {
		return directory{}, false
	}
	return identifyOpen(fd)
}

// openBeneath opens a directory step by step. A symbolic link is an error: it could lead out of the
// root.
func openBeneath(root int, path string) (int, error) {
	fd, err := unix.Openat(root, ".", openPath, 0)
	for name := range strings.SplitSeq(strings.Trim(filepath.Clean(path), "/"), "/") {
		if err != nil {
			break
		}
		if name == "" {
			continue
		}
		var next int
		next, err = unix.Openat(fd, name, openPath|unix.O_NOFOLLOW, 0)
		_ = unix.Close(fd)
		fd = next
	}
	if err != nil {
		return -1, fmt.Errorf("opening %q in the mounts of another process: %w", path, err)
	}
	return fd, nil
}

// holdProc opens a process by its name below /proc; nil if it has ended, or has no id in this
// process's pid namespace.
func holdProc(proc int) *handle {
	own, err := namespaceIDs("self")
	if err != nil {
		return nil
	}
	its, err := namespaceIDs(strconv.Itoa(proc))
	if err != nil || len(its) < len(own) {
		return nil
	}
	// The ids begin at the namespace of /proc; a sibling's has as many.
	h, err := openHandle(its[len(own)-1])
	if err != nil {
		return nil
	}
	if h.proc != proc {
		h.close()
		return nil
	}
	return h
}

// namespaceIDs are a process's ids in the pid namespaces, from that of /proc to its own.
func namespaceIDs(name string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join("/proc", name, "status"))
	if err != nil {
		return nil, fmt.Errorf("inspecting process %s: %w", name, err)
	}
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, "NSpid:")
		if !ok {
			continue
		}
		var ids []int
		for field := range strings.FieldsSeq(rest) {
			id, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("inspecting process %s: %w", name, err)
			}
			ids = append(ids, id)
		}
		return ids, nil
	}
	return nil, fmt.Errorf("inspecting process %s: %w: no NSpid in /proc/PID/status", name, errGone)
}
