package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// notify is the watcher of the system.
//
// fsnotify does not distinguish a file that was renamed to a name from one that was created
// there. But a created file with content was written, and a write is an event. So a file that
// appears with content and without a write event appeared complete. To know that no write
// event is pending, notify makes a file of its own (the mark): events arrive in order, so
// after the event of the mark all earlier ones have arrived.
type notify struct {
	*inbox
	fsw *fsnotify.Watcher
	// markDir is the directory of the mark, or empty: it is watched too.
	markDir string

	mu    sync.Mutex // guards all following fields; not held while fsw is called
	dirs  map[string]struct{}
	marks int
	mark  string        // the one waited for, or empty
	seen  chan struct{} // closed when its event is there
}

// maxErrors is the number of consecutive errors after which no more events are expected.
const maxErrors = 100

// markFor bounds the wait for a mark.
const markFor = 250 * time.Millisecond

// newSystemWatcher makes the watcher; scratch is where the mark may be made,
// or empty.
func newSystemWatcher(scratch string) (watcher, error) {
	fsw, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("starting to watch: %w", err)
	}
	n := &notify{inbox: newInbox(), fsw: fsw, dirs: map[string]struct{}{}}
	// Without it renamed files wait like written ones.
	if dir, err := os.MkdirTemp(scratch, ".tmp-mark-"); err == nil {
		if err := fsw.Add(dir); err == nil {
			n.markDir = dir
		} else {
			_ = os.Remove(dir) // it is empty, and in a directory for such things
		}
	}
	return n, nil
}

func (n *notify) add(dir string) error {
	n.mu.Lock()
	n.dirs[dir] = struct{}{}
	n.mu.Unlock()
	switch err := n.fsw.Add(dir); {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE):
		return errWatchLimit
	case err == nil, isAbsent(err), errors.Is(err, fs.ErrPermission), errors.Is(err, fsnotify.ErrClosed):
		return nil // whoever lists the directory, or run, will tell
	default:
		return fmt.Errorf("watching %q: %w", dir, err)
	}
}

func (n *notify) retain(dirs map[string]struct{}) {
	n.mu.Lock()
	var drop []string
	maps.DeleteFunc(n.dirs, func(dir string, _ struct{}) bool {
		_, ok := dirs[dir]
		if !ok {
			drop = append(drop, dir)
		}
		return !ok
	})
	n.mu.Unlock()
	for _, dir := range drop {
		_ = n.fsw.Remove(dir) // it may have gone, and its watch with it
	}
	if len(drop) == 0 {
		return
	}
	// A directory that was moved has kept its watch, which was just dropped
	// under its former name; likewise one that is mounted in two places.
	for dir := range dirs {
		_ = n.add(dir) // the walk reports the limit
	}
}

// run reads events until ctx is done.
func (n *notify) run(ctx context.Context) error {
	defer func() {
		_ = n.fsw.Close() // opened for reading
		if n.markDir != "" {
			_ = os.RemoveAll(n.markDir) // the next start clears it
		}
	}()
	errs := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-n.fsw.Events:
			if !ok {
				return errors.New("watching has ended")
			}
			errs = 0
			n.event(e)
		case err, ok := <-n.fsw.Errors:
			if errs++; !ok || errs > maxErrors {
				return fmt.Errorf("reading events of the file system: %w", err)
			}
			n.overflow()
		}
	}
}

func (n *notify) event(e fsnotify.Event) {
	path := filepath.Clean(e.Name)
	dir, name := filepath.Split(path)
	dir = filepath.Clean(dir)
	if dir == n.markDir {
		n.marked(path)
		return
	}
	n.mu.Lock()
	_, isWatched := n.dirs[path]
	n.mu.Unlock()
	if isWatched && e.Has(fsnotify.Rename) {
		n.directoryMoved()
	}
	if isWatched {
		n.put(hop{path, ""}, touched, false)
	}
	how := touched
	if e.Has(fsnotify.Create) {
		how = appeared
	}
	n.put(hop{dir, name}, how, e.Op == fsnotify.Chmod)
}

func (n *notify) marked(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mark == path {
		n.mark = ""
		close(n.seen)
	}
}

func (n *notify) untouched(names []hop) []bool {
	list := make([]bool, len(names))
	if n.markDir == "" || !n.flush() {
		return list
	}
	for i, h := range names {
		list[i] = !n.has(h)
	}
	return list
}

// flush waits until all events up to now have arrived, and reports whether they have.
func (n *notify) flush() bool {
	seen := make(chan struct{})
	n.mu.Lock()
	n.marks++
	n.mark, n.seen = filepath.Join(n.markDir, strconv.Itoa(n.marks)), seen
	mark := n.mark
	n.mu.Unlock()
	if os.Mkdir(mark, 0o700) != nil || os.Remove(mark) != nil {
		return false
	}
	late := time.NewTimer(markFor)
	defer late.Stop()
	select {
	case <-seen:
		return true
	case <-late.C:
		return false
	}
}
