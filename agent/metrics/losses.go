package metrics

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
)

// maxLosses bounds the file of losses, in bytes.
const maxLosses = 4 << 10

// ender is the process that ended without handing over what it had counted.
type ender int

const (
	envoyEnded ender = iota
	agentEnded
	enders
)

func enderNames() [enders]string { return [enders]string{"envoy", "agent"} }

// losses are the times that counts may have been lost. They are on disk, so that the restart that
// loses counts does not lose this, too. The time of the file is that of the last page with
// counters: what was counted until then, Prometheus has.
type losses struct {
	path string // empty: not on disk

	mu  sync.Mutex // guards all following fields, and the file
	now lossesNow
}

type lossesNow struct {
	// Times are by who ended.
	Times [enders]uint64 `json:"times"`
	// Counted means that this host has counted something at some time: one that never has cannot
	// lose anything.
	Counted bool `json:"counted"`
}

// open reads the file. since is the last page of the agent before this one, or zero.
func (l *losses) open(path string) (since time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path = path; path == "" {
		return time.Time{}, nil
	}
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err //nolint:wrapcheck // it names the path
	}
	if err := durable.Unseal(path, &l.now, maxLosses); err != nil {
		// How often is not known any more, but there was an agent that counted.
		l.now = lossesNow{Counted: true}
		return fi.ModTime(), err
	}
	return fi.ModTime(), nil
}

// times are the losses by who ended, in the order of enderNames.
func (l *losses) times() [enders]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now.Times
}

// add counts a loss, unless this host has never counted anything. It reports whether it did.
func (l *losses) add(who ender) (counted bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.now.Counted {
		return false, nil
	}
	l.now.Times[who]++
	return true, l.save()
}

// published notes that a page with counters was served at a time. Without the time on disk the
// log would name an earlier one, which is true as well.
func (l *losses) published(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if !l.now.Counted {
		l.now.Counted = true
		err = l.save()
	}
	if l.path != "" {
		_ = os.Chtimes(l.path, now, now)
	}
	return err
}

// save writes the file. It keeps the time of an earlier one: only pages set it.
func (l *losses) save() error {
	if l.path == "" {
		return nil
	}
	before, statErr := os.Stat(l.path)
	if err := durable.Seal(l.path, l.now, maxLosses); err != nil {
		return err
	}
	if statErr == nil {
		_ = os.Chtimes(l.path, before.ModTime(), before.ModTime())
	}
	return nil
}

// lose counts a loss of what was counted after a time, and says so.
func (c *Collector) lose(who ender, since time.Time) {
	counted, err := c.losses.add(who)
	if err != nil {
		c.noteUnsaved(err)
	}
	if !counted {
		return
	}
	at := slog.String("since", since.UTC().Format(time.RFC3339))
	if who == agentEnded {
		c.log.Warn("the agent before this one did not save its counters: they begin with 0, and what it counted after its last page of metrics is lost", at)
		return
	}
	c.log.Warn("Envoy ended without a last reading: the metrics of requests lack what it counted after the reading before", at)
}

func (c *Collector) noteUnsaved(err error) {
	c.log.Warn("noting the losses of counters failed: after a restart their number is too low", "path", c.c.LossesFile, "err", err)
}

// follow notices an Envoy that ended without a last reading. Several that ended between two
// readings are one loss. The caller reads Envoy.
func (c *Collector) follow(running Process) {
	if c.followed.is(running) {
		return
	}
	if c.followed.PID != 0 && !c.followed.is(c.replaced) {
		c.lose(envoyEnded, c.lastRead)
	}
	if left := c.left; left != nil && running.PID != 0 {
		if c.left = nil; !left.resumes(running) {
			c.lose(envoyEnded, left.Saved)
		}
	}
	c.followed, c.lastRead = running, running.Since
}

// write writes all counters of requests, and notes when they were on a page.
func (c *Collector) write(w io.Writer) error {
	now := time.Now()
	if err := c.store.writeTo(w); err != nil {
		return err
	}
	if rows, _ := c.store.size(); rows > 0 {
		if err := c.losses.published(now); err != nil {
			c.noteUnsaved(err)
		}
	}
	return nil
}
