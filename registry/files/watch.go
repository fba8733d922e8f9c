package files

import (
	"context"
	"errors"
	"sync"
)

// watcher tells of changes in directories. Its events are hints: they may be
// late, doubled, or missing when a batch says so.
type watcher interface {
	// add watches a directory; again is harmless, and needed where another
	// directory may have taken the path.
	add(dir string) error
	// retain drops every watch but those of the directories given.
	retain(dirs map[string]struct{})
	// bell rings when there is something to take.
	bell() <-chan struct{}
	// take returns what came since the last time.
	take() batch
	// untouched waits until everything that happened before the call has been
	// told, and reports of each name whether no write to it is among what take
	// has still to return. It is false of all where that cannot be told.
	untouched(names []hop) []bool
	// run receives until ctx is done, and releases everything.
	run(ctx context.Context) error
}

// arrival says how the thing behind a name came there.
type arrival uint8

const (
	// touched: it was written, removed, or something else happened to it.
	touched arrival = iota
	// appeared: it came under this name, by rename, link or creation, and
	// nothing was written to it since.
	appeared
)

// batch is a bounded set of events.
type batch struct {
	// names are what changed. A hop without a name is the directory itself.
	names map[hop]arrival
	// unhooked says that a watched directory was moved, and its watch with it.
	unhooked bool
	// lost says that there were more events than are kept.
	lost bool
}

// maxBatch bounds the names of a batch: with more, a scan is cheaper.
const maxBatch = 8192

// errWatchLimit says that the system grants no more watches.
var errWatchLimit = errors.New("the system's limit of watched directories is reached; raise fs.inotify.max_user_watches")

// inbox collects events for the loop.
type inbox struct {
	doorbell chan struct{}

	mu   sync.Mutex // guards next
	next batch
}

func newInbox() *inbox { return &inbox{doorbell: make(chan struct{}, 1)} }

func (b *inbox) bell() <-chan struct{} { return b.doorbell }

func (b *inbox) take() batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.next
	b.next = batch{}
	return taken
}

// put adds an event, the later one deciding. A change of mode or times leaves
// open how the file came.
func (b *inbox) put(h hop, how arrival, mode bool) {
	b.change(func(next *batch) {
		if next.lost {
			return
		}
		if next.names == nil {
			next.names = map[hop]arrival{}
		}
		if _, known := next.names[h]; !known || !mode {
			next.names[h] = how
		}
		if len(next.names) > maxBatch {
			*next = batch{lost: true}
		}
	})
}

// lose says that events are missing.
func (b *inbox) lose() { b.change(func(next *batch) { *next = batch{lost: true} }) }

// unhook says that a watched directory was moved.
func (b *inbox) unhook() { b.change(func(next *batch) { next.unhooked = true }) }

func (b *inbox) change(f func(next *batch)) {
	b.mu.Lock()
	f(&b.next)
	b.mu.Unlock()
	select {
	case b.doorbell <- struct{}{}:
	default:
	}
}

// has reports whether an event of the name waits that is not its appearance.
func (b *inbox) has(h hop) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	how, there := b.next.names[h]
	return b.next.lost || there && how == touched
}
