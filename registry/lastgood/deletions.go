package lastgood

import (
	"log/slog"
	"time"
)

const (
	// maxNamed is how many deleted texts one log line names.
	maxNamed = 5
	// collectFor is how long deletions are collected at most while more are pending.
	collectFor = 10 * time.Second
)

// Deletions collects texts that were deleted, for one log line instead of one for each. The
// zero value is empty.
type Deletions struct {
	// first are the paths of the first few, in the order of Add.
	first          []string
	count, objects int
	since          time.Time
}

// Add adds a deleted text that had a number of objects.
func (d *Deletions) Add(path string, objects int, now time.Time) {
	if d.count == 0 {
		d.since = now
	}
	if len(d.first) < maxNamed {
		d.first = append(d.first, path)
	}
	d.count++
	d.objects += objects
}

// Log writes the line one for a single text, or many for several. While more deletions are
// pending it waits for them, up to a limit.
func (d *Deletions) Log(log *slog.Logger, one, many string, pending bool, now time.Time) {
	switch {
	case d.count == 0 || pending && now.Sub(d.since) < collectFor:
		return
	case d.count == 1:
		log.Info(one, "path", d.first[0], "objects", d.objects) //nolint:sloglint // one of the caller's two constants
	default:
		log.Info(many, "count", d.count, "objects", d.objects, "first", d.first) //nolint:sloglint // one of the caller's two constants
	}
	*d = Deletions{}
}
