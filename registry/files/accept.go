package files

import (
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/registry/lastgood"
)

// How long a file has to be stable before it is accepted.
const (
	// stillFor is for a file that was written in place.
	stillFor = 200 * time.Millisecond
	// stillForLoss is for one that is empty or missing, or lacks objects that it had: probably
	// a writer has truncated it and is about to write.
	stillForLoss = time.Second
	// oldAtStart is the age from which a file counts as stable when the process starts.
	oldAtStart = 2 * time.Second
	// racyFor is how long after its last change a file may change again with the same time
	// stamp (1 s on some network file systems, 2 s on FAT). A file that is read within it is
	// read once more.
	racyFor = 2 * time.Second
)

// change is a file that differs from the accepted one.
type change struct {
	root *root
	sig  sig
	gone bool
	// since is when it was first seen in this state.
	since time.Time
	// first is when it was first seen to differ from the accepted one.
	first time.Time
	// renamed means that it appeared complete, by rename or link.
	renamed bool
	// old means that it existed at the start of the process and was stable.
	old bool

	// next is the new version: read and decoded, but not accepted yet, because objects would
	// be lost; or nil.
	next *lastgood.Version
	blob *lastgood.Blob
}

// readAt is when the file may be read.
func (c *change) readAt() time.Time {
	if c.gone || c.renamed || c.old {
		return c.since
	}
	return c.since.Add(stillFor)
}

// acceptAt is when the new content may be accepted, given which objects would be lost. An
// atomic rename is intended, so it does not wait. A missing file always waits: editors remove
// and create files, and whole trees are replaced in that way. A file that was written in place and
// lacks what restricts waits for lossAfter: its writer may have failed.
func (c *change) acceptAt(loss lastgood.Loss, lossAfter time.Duration) time.Time {
	switch {
	case loss == lastgood.NoLoss:
		return c.readAt()
	case c.gone:
		return c.since.Add(stillForLoss)
	case c.renamed, c.old && loss == lastgood.SomeLoss:
		return c.since
	}
	rest := loss.Rest(stillFor, stillForLoss, lossAfter)
	if c.old { // it rests since it was written, if that time is not in the future
		if at := time.Unix(0, max(c.sig.mtime, c.sig.ctime)); at.Before(c.since) {
			return later(c.since, at.Add(rest))
		}
	}
	return c.since.Add(rest)
}

// observe adds an observation of a file to its change. prev is nil if the file had none.
func observe(prev *change, look change) *change {
	look.first = look.since
	if prev == nil {
		return &look
	}
	if prev.gone != look.gone || prev.sig != look.sig {
		look.first = prev.first
		// Who renames a file into place and then changes its mode or owner has not written it.
		look.renamed = look.renamed || prev.renamed && !prev.gone && !look.gone && prev.sig.sameContent(look.sig)
		return &look
	}
	prev.renamed = prev.renamed || look.renamed
	return prev
}

// filled reports whether there is a file with content.
func (c *change) filled() bool { return c != nil && !c.gone && c.sig.size > 0 }

// completeUntil is for a directory or symbolic link that appeared: what is behind it and was
// not changed after that time came with it. Zero means that this is unknown. A link is made
// atomically; the change time of a directory is later than its modification time if it was
// renamed after the last name was added. For a file see notify.
func completeUntil(h hop) (until int64, isFile bool) {
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

// racy reports whether a file that is read at the time now could change without a new time
// stamp. A time stamp in the future always counts as racy.
func racy(s sig, now time.Time) bool {
	return max(s.mtime, s.ctime) > now.Add(-racyFor).UnixNano()
}

// atRest reports whether a file at the start has not been changed recently.
func atRest(s sig, now time.Time) bool {
	return max(s.mtime, s.ctime) < now.Add(-oldAtStart).UnixNano()
}

// Times between fragments.
const (
	// settleFor collects the events of one action, such as a rename.
	settleFor = 2 * time.Millisecond
	// spacing is the least time between two fragments. It is shorter than the debounce of the
	// registry, which would otherwise take a burst for several changes.
	spacing = 50 * time.Millisecond
	// moreFor limits how long a fragment waits for files that have events and are not read
	// yet.
	moreFor = 200 * time.Millisecond
	// holdFor limits how long stable files wait for others that are being written, so that a
	// tree that is being copied arrives as one.
	holdFor = time.Second
	// startFor limits how long the first fragment waits for files that are being written.
	startFor = 3 * time.Second
)

// sendAt is when a fragment may be sent: last is the time of the last one, dirty the time of
// the first change in this one. Renamed files (urgent) do not wait until others are stable.
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
