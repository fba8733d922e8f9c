package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// inotify is used as it is and not through a portable library, because only it
// tells a file that was renamed into place, which is whole, from one that is
// being written.
type inotify struct {
	*inbox
	f *os.File

	mu   sync.Mutex // guards all following fields
	fd   int        // or -1 once closed
	dirs map[string]int32
	wds  map[int32][]string // several paths where a directory is mounted twice
}

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

func newSystemWatcher() (watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("starting inotify: %w", err)
	}
	return &inotify{
		inbox: newInbox(), f: os.NewFile(uintptr(fd), "inotify"), fd: fd,
		dirs: map[string]int32{}, wds: map[int32][]string{},
	}, nil
}

func (n *inotify) add(dir string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fd < 0 {
		return nil // run has told why
	}
	wd, err := unix.InotifyAddWatch(n.fd, dir, watchMask)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
		return errWatchLimit
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EACCES):
		return nil // whoever lists the directory will tell
	case err != nil:
		return fmt.Errorf("watching %q: %w", dir, err)
	}
	was, known := n.dirs[dir]
	if known && was == int32(wd) {
		return nil
	}
	if known {
		n.forget(dir)
	}
	n.dirs[dir] = int32(wd)
	n.wds[int32(wd)] = append(n.wds[int32(wd)], dir)
	return nil
}

func (n *inotify) retain(dirs map[string]struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for dir := range n.dirs {
		if _, ok := dirs[dir]; !ok {
			n.forget(dir)
		}
	}
}

// forget drops the path, and the watch with its last path. n.mu is held.
func (n *inotify) forget(dir string) {
	wd := n.dirs[dir]
	delete(n.dirs, dir)
	n.wds[wd] = slices.DeleteFunc(n.wds[wd], func(d string) bool { return d == dir })
	if len(n.wds[wd]) > 0 || n.fd < 0 {
		return
	}
	delete(n.wds, wd)
	// It fails for a directory that is gone, whose watch went with it.
	_, _ = unix.InotifyRmWatch(n.fd, uint32(wd))
}

// run reads events until ctx is done.
func (n *inotify) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, n.close)
	defer stop()
	defer n.close()
	buf := make([]byte, 64<<10)
	for {
		read, err := n.f.Read(buf)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading inotify events: %w", err)
		}
		n.put(n.parse(buf[:read]))
	}
}

func (n *inotify) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fd >= 0 {
		n.fd = -1
		_ = n.f.Close() // opened for reading
	}
}

// parse reads the kernel's records: wd, mask, cookie, length, name.
func (n *inotify) parse(buf []byte) (names map[hop]bool, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	names = map[hop]bool{}
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf))
		mask := binary.NativeEndian.Uint32(buf[4:])
		size := int(binary.NativeEndian.Uint32(buf[12:]))
		buf = buf[unix.SizeofInotifyEvent:]
		if size > len(buf) {
			return names, true
		}
		name, _, _ := bytes.Cut(buf[:size], []byte{0})
		buf = buf[size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			lost = true
			continue
		}
		for _, dir := range n.wds[wd] {
			h := hop{dir, string(name)}
			names[h] = mask&unix.IN_MOVED_TO != 0 || names[h] && mask&unix.IN_ATTRIB != 0
		}
		if mask&unix.IN_IGNORED != 0 {
			for _, dir := range n.wds[wd] {
				delete(n.dirs, dir)
			}
			delete(n.wds, wd)
		}
	}
	return names, lost
}
