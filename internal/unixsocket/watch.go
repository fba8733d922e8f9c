package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

const (
	// checkPeriod is how often the file is looked for without an event: its directory may have
	// been replaced, or there are too many watches.
	checkPeriod = 2 * time.Second
	// minInterval is the least time between two new files: somebody may remove them in a loop.
	minInterval = time.Second
	// drainTime is how long the old socket serves the connections that wait in its queue.
	drainTime = time.Second
)

// watch looks for the file after each event and once a period.
func (l *Listener) watch() {
	var events chan fsnotify.Event
	var failures chan error
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer func() { _ = w.Close() }()
		events, failures = w.Events, w.Errors
	}
	var watched file
	tick := time.NewTicker(checkPeriod)
	defer tick.Stop()
	for {
		if dir := l.dir.file; w != nil && watched != dir {
			_ = w.Remove(l.dir.path) // the watch of the directory that had this name
			if w.Add(l.dir.path) == nil {
				watched = dir
			}
		}
		l.check(time.Now())
		for again := false; !again; {
			again = true
			select {
			case <-l.ctx.Done():
				return
			case <-tick.C:
			case <-failures:
			case e := <-events:
				if e.Name == l.dir.path {
					watched = file{} // a new directory may even have the same inode number
				} else {
					again = e.Name == l.c.Path && e.Op&(fsnotify.Remove|fsnotify.Rename|fsnotify.Create) != 0
				}
			}
		}
	}
}

// check makes the file again if it is missing.
func (l *Listener) check(now time.Time) {
	reason, err := l.missing()
	if err == nil && reason != "" {
		if now.Sub(l.made) < minInterval {
			return // the next check is soon
		}
		err = l.remake(now)
	}
	l.setProblem(err)
	if err != nil || reason == "" {
		return
	}
	if n, ok := l.lines.Allow(now); ok {
		l.c.Logger.Warn("socket was removed; made again. Exclude the run directory from cleaners of temporary files",
			"path", l.c.Path, "reason", reason, "left_out", n)
	}
}

// missing says why there is no file of this listener at its path; empty means that there is
// one. It is an error if another one must stay there.
func (l *Listener) missing() (reason string, err error) {
	st, err := stat(l.c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		reason = "the file was removed"
		if _, err := stat(l.dir.path); errors.Is(err, fs.ErrNotExist) {
			reason = "the directory was removed"
		}
		return reason, nil
	case err != nil:
		return "", err
	case fileOf(st) == l.own():
		// The directory of this name has the same file: another mount, as a rule. But it may
		// also have been replaced since the look at the file, so it must be as safe.
		if dir, err := look(l.dir.path); err == nil && l.dir.unsafe(dir) == nil {
			l.dir = dir
		}
		return "", nil
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return "", errors.New("a file that is no socket is in its place: remove it")
	}
	serves, err := answers(l.ctx, l.c.Path)
	switch {
	case serves:
		return "", errors.New("another process serves there: stop it, or give one of them another --run-dir")
	case !errors.Is(err, unix.ECONNREFUSED):
		return "", err
	}
	// As at the start: a socket that a killed process left.
	if err := os.Remove(l.c.Path); err != nil {
		return "", err //nolint:wrapcheck // it has the path
	}
	return "a socket that no process serves was in its place", nil
}

func (l *Listener) own() file {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file
}

// bindAgain makes the file, and its directory if it is missing.
func (l *Listener) bindAgain() (*net.UnixListener, file, error) {
	if err := l.dir.restore(); err != nil {
		return nil, file{}, err
	}
	return bind(l.ctx, l.c)
}

// remake makes the file. The old socket serves what waits in its queue, and is closed.
func (l *Listener) remake(now time.Time) error {
	u, own, err := l.bindAgain()
	for range 2 { // whoever removes a directory may still be at it
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		u, own, err = l.bindAgain()
	}
	if err != nil {
		return err
	}
	l.made = now
	l.mu.Lock()
	old := l.current
	l.current, l.file = u, own
	l.remade++
	l.mu.Unlock()
	_ = old.SetDeadline(now.Add(drainTime))
	l.group.Go(func() { l.accept(u) })
	return nil
}

// setProblem publishes why nobody can connect, or nil, and logs a new reason.
func (l *Listener) setProblem(err error) {
	text := ""
	if err != nil {
		text = fmt.Sprintf("socket %s is missing and cannot be made again: %v", l.c.Path, err)
	}
	if err != nil && text != l.Problem() && l.ctx.Err() == nil {
		if n, ok := l.lines.Allow(time.Now()); ok {
			l.c.Logger.Error("socket was removed and cannot be made again; still trying", "path", l.c.Path, "err", err, "left_out", n)
		}
	}
	l.mu.Lock()
	l.problem = text
	l.mu.Unlock()
}

// directory is what a directory was like when it was used last.
type directory struct {
	path     string
	file     file
	mode     fs.FileMode
	uid, gid uint32
	link     bool
}

// look reads a directory's state.
func look(path string) (directory, error) {
	st, err := stat(path)
	if err != nil {
		return directory{}, err
	}
	d := directory{path: path, link: st.Mode&unix.S_IFMT == unix.S_IFLNK}
	if d.link {
		if err := unix.Stat(path, st); err != nil {
			return directory{}, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return directory{}, &fs.PathError{Op: "stat", Path: path, Err: unix.ENOTDIR}
	}
	d.file, d.mode, d.uid, d.gid = fileOf(st), fs.FileMode(st.Mode&0o777), st.Uid, st.Gid
	return d, nil
}

// othersMayWrite are the bits of a mode by which somebody else could replace a socket.
const othersMayWrite = 0o022

// restore makes the directory if it is missing. If it is another one by now, it must be as
// safe as the one before.
func (d *directory) restore() error {
	now, err := look(d.path)
	if errors.Is(err, fs.ErrNotExist) && !d.link {
		if err := d.make(); err != nil {
			return err
		}
		now, err = look(d.path)
	}
	if err == nil {
		err = d.unsafe(now)
	}
	if err != nil {
		return err
	}
	*d = now
	return nil
}

// unsafe says why another directory must not take the place of this one; nil if it may.
func (d *directory) unsafe(now directory) error {
	switch {
	case now.file == d.file:
		return nil
	case now.link && !d.link:
		return fmt.Errorf("the directory %q is a symbolic link now: remove it", d.path)
	case now.uid != d.uid && now.uid != 0 && int(now.uid) != os.Geteuid():
		return fmt.Errorf("the directory %q belongs to another user (uid %d) now: remove it", d.path, now.uid)
	case now.mode&othersMayWrite&^d.mode != 0:
		return fmt.Errorf("other users may write to the directory %q now (mode %o): remove it, or set mode %o", d.path, now.mode, d.mode)
	}
	return nil
}

// make makes the directory as it was, as far as this process may.
func (d *directory) make() error {
	if err := os.MkdirAll(filepath.Dir(d.path), 0o755); err != nil {
		return err //nolint:wrapcheck // it has the path
	}
	err := os.Mkdir(d.path, d.mode)
	if errors.Is(err, fs.ErrExist) {
		return nil // another listener in it was faster
	}
	if err != nil {
		return err //nolint:wrapcheck // it has the path
	}
	if os.Geteuid() == 0 {
		_ = os.Lchown(d.path, int(d.uid), int(d.gid)) // else it belongs to this user, as the sockets do
	}
	return os.Chmod(d.path, d.mode) //nolint:wrapcheck // it has the path
}
