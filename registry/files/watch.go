package files

import (
	"context"
	"errors"
	"sync"
)

// watcher reports changes in directories. Its events are hints: they may be late, doubled, or
// missing if a batch says so.
type watcher interface {
	// add watches a directory. Repeating it is harmless, and needed if another directory may
	// have the path now.
	add(dir string) error
	// retain drops every watch but those of the directories given.
	retain(dirs map[string]struct{})
	// changed signals that there are events to take.
	changed() <-chan struct{}
	// take returns the events since the last call.
	take() batch
	// untouched waits until all events before the call have arrived, and reports for each name
	// whether no write to it is among those that take has still to return. All are false if
	// that is unknown.
	untouched(names []hop) []bool
	// run receives until ctx is done, and releases everything.
	run(ctx context.Context) error
}

// arrival says how a name changed.
type arrival uint8

const (
	// touched: it was written, removed or changed in another way.
	touched arrival = iota
	// changedMode: nothing but its mode, owner or times changed. That is no write.
	changedMode
	// appeared: it got this name by rename, link or creation, and was not written since.
	appeared
)

// batch is a bounded set of events.
type batch struct {
	// names are what changed. A hop without a name is the directory itself.
	names map[hop]arrival
	// moved means that a watched directory was moved, with its watch.
	moved bool
	// lost means that there were more events than are kept.
	lost bool
}

// maxBatch bounds the names of a batch: with more, a scan is cheaper.
const maxBatch = 8192

// errWatchLimit means that the system allows no more watches.
var errWatchLimit = errors.New("the system's limit of watched directories is reached; raise fs.inotify.max_user_watches")

// inbox collects events for the loop.
type inbox struct {
	notify chan struct{}

	mu   sync.Mutex // guards next
	next batch
}

func newInbox() *inbox { return &inbox{notify: make(chan struct{}, 1)} }

func (b *inbox) changed() <-chan struct{} { return b.notify }

func (b *inbox) take() batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.next
	b.next = batch{}
	return taken
}

// put adds an event; the last one counts. A change of mode or times does not say how the file
// appeared.
func (b *inbox) put(h hop, how arrival, mode bool) {
	b.change(func(next *batch) {
		if next.lost {
			return
		}
		if next.names == nil {
			next.names = map[hop]arrival{}
		}
		if _, known := next.names[h]; !mode {
			next.names[h] = how
		} else if !known {
			next.names[h] = changedMode
		}
		if len(next.names) > maxBatch {
			*next = batch{lost: true}
		}
	})
}

// overflow records that events are missing.
func (b *inbox) overflow() { b.change(func(next *batch) { *next = batch{lost: true} }) }

// directoryMoved records that a watched directory was moved.
func (b *inbox) directoryMoved() { b.change(func(next *batch) { next.moved = true }) }

func (b *inbox) change(f func(next *batch)) {
	b.mu.Lock()
	f(&b.next)
	b.mu.Unlock()
	select {
	case b.notify <- struct{}{}:
	default:
	}
}

// has reports whether there is a pending event of the name that may be a write.
func (b *inbox) has(h hop) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	how, there := b.next.names[h]
	return b.next.lost || there && how == touched
}
