package files

import (
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/registry/lastgood"
)

// How long a file has to hold still before it is believed.
const (
	// stillFor is for a file that was written in place.
	stillFor = 200 * time.Millisecond
	// stillForLoss is for one that is empty, gone, or lacks objects it had: the
	// signs of a writer that has emptied the file and not yet filled it.
	stillForLoss = time.Second
	// oldAtStart is the age from which a file counts as still when the process
	// starts: what nobody has touched for so long needs no watching.
	oldAtStart = 2 * time.Second
	// racyFor is how long after its last change a file may change again without
	// looking different (the grain of time stamps; 1 s on some network file
	// systems, 2 s on FAT): a file read within it is read once more.
	racyFor = 2 * time.Second
)

// change is a file that looks different from what is believed.
type change struct {
	root *root
	sig  sig
	gone bool
	// since is when it was first seen to look like this.
	since time.Time
	// first is when it was first seen to differ from what is believed.
	first time.Time
	// placed says that it was put there whole, by rename or link.
	placed bool
	// old says that the process found it at its start and that it was at rest.
	old bool

	// next is the candidate: read and decoded, but not yet believed because it
	// would lose objects; or nil.
	next *lastgood.Version
	blob *lastgood.Blob
}

// readAt is when the file may be read.
func (c *change) readAt() time.Time {
	if c.gone || c.placed || c.old {
		return c.since
	}
	return c.since.Add(stillFor)
}

// believeAt is when what was read may be believed, given whether objects would
// be lost by it. An atomic rename was meant as it is. A missing file never is:
// editors remove and create, and whole trees are replaced that way.
func (c *change) believeAt(lossy bool) time.Time {
	switch {
	case !lossy:
		return c.readAt()
	case c.gone:
		return c.since.Add(stillForLoss)
	case c.placed, c.old:
		return c.since
	default:
		return c.since.Add(stillForLoss)
	}
}

// observe folds a look at a file into what was known of its change. prev is
// nil when the file had none.
func observe(prev *change, look change) *change {
	look.first = look.since
	if prev == nil {
		return &look
	}
	if prev.gone != look.gone || prev.sig != look.sig {
		look.first = prev.first
		return &look
	}
	prev.placed = prev.placed || look.placed
	return prev
}

// filled says that there is a file with content.
func (c *change) filled() bool { return c != nil && !c.gone && c.sig.size > 0 }

// wholeUntil judges a directory or symbolic link that appeared: what is behind
// it and was last touched at that time or before came with it. Zero means that
// this cannot be told. A link is made at one stroke; the change time of a
// directory is past its modification time if it was renamed after the last name
// was put into it. A file is judged otherwise: see notify.
func wholeUntil(h hop) (until int64, isFile bool) {
	var st unix.Stat_t
	path := filepath.Join(h.dir, h.name)
	if err := ignoreEINTR(func() error { return unix.Lstat(path, &st) }); err != nil {
		return 0, false
	}
	s := sigOf(&st)
	switch {
	case isRegular(&st):
		return 0, true
	case isDir(&st) && s.ctime <= s.mtime:
		return 0, false
	default:
		return s.ctime, false
	}
}

// racy says whether a file read at the time now could change without looking
// different. A time stamp of the future is never trusted.
func racy(s sig, now time.Time) bool {
	return max(s.mtime, s.ctime) > now.Add(-racyFor).UnixNano()
}

// atRest says whether a file found at the start has not been touched lately.
func atRest(s sig, now time.Time) bool {
	return max(s.mtime, s.ctime) < now.Add(-oldAtStart).UnixNano()
}

// How fragments are paced.
const (
	// settleFor gathers the events of one action, such as a rename.
	settleFor = 2 * time.Millisecond
	// spacing is the least time between two fragments; below the quiet time
	// that the registry waits for, or it would take a burst for several.
	spacing = 50 * time.Millisecond
	// moreFor bounds how long a fragment waits for files of which events are there
	// but which are not read yet.
	moreFor = 200 * time.Millisecond
	// holdFor bounds how long files that are still wait for those that are not,
	// so that a tree being copied arrives as one.
	holdFor = time.Second
	// startFor bounds how long the first fragment waits for files that are
	// being written.
	startFor = 3 * time.Second
)

// sendAt is when a fragment may be sent: last is when one was, dirty when the
// first of the changes in this one was believed. Renamed files (urgent) do not
// wait for others to come to rest.
func sendAt(last, dirty time.Time, urgent, writing bool) time.Time {
	at := last.Add(spacing)
	if !urgent && writing {
		at = later(at, dirty.Add(holdFor))
	}
	return at
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
