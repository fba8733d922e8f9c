package files

import (
	"context"
	"errors"
	"maps"
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
	// run receives until ctx is done, and releases everything.
	run(ctx context.Context) error
}

// batch is a bounded set of events.
type batch struct {
	// names are what changed; true says that a rename put the name there and
	// nothing touched it since. A hop without a name is the directory itself.
	names map[hop]bool
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

// put adds events, the later ones deciding.
func (b *inbox) put(names map[hop]bool, lost bool) {
	if len(names) == 0 && !lost {
		return
	}
	b.mu.Lock()
	if b.next.names == nil {
		b.next.names = map[hop]bool{}
	}
	b.next.lost = b.next.lost || lost
	if !b.next.lost {
		maps.Copy(b.next.names, names)
	}
	if len(b.next.names) > maxBatch {
		b.next = batch{lost: true}
	}
	b.mu.Unlock()
	select {
	case b.doorbell <- struct{}{}:
	default:
	}
}
