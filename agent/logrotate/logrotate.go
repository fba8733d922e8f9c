package logrotate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Config is what a Rotator needs.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// MaxSize is the size in bytes at which a log is rotated. All files of one log together take
	// at most a tenth of their file system: on a small one, logs are rotated earlier.
	MaxSize int64
	// Files is how many rotated files are kept of each log; 0 means that nothing is rotated.
	Files int
	// Process is the Envoy that runs now: its process, and what distinguishes it from all
	// others; 0 if there is none. It must be non-nil.
	Process func() (pid int, birth string)
	// Reopen asks that Envoy to open its access logs again; it must be non-nil.
	Reopen func(ctx context.Context) error
	// Private are directories in which nothing is an access log.
	Private []string
	// Output is the file that Envoy's output goes to; empty means none.
	Output string
	// CopyTo gets Envoy's output, and nothing of it is kept; nil means that the file is rotated.
	CopyTo io.Writer
	// Interval is the time between two looks; zero means 1 s.
	Interval time.Duration
}

// Status is what a Rotator does, for people.
type Status struct {
	// Logs are the access logs that Envoy writes, by path.
	Logs []LogStatus `json:"logs,omitempty"`
	// Rotations counts files that were rotated, Envoy's output included.
	Rotations uint64 `json:"rotations"`
	// RemovedEarly counts rotated files that were removed because the file system was full.
	RemovedEarly uint64 `json:"removed_early"`
	// DroppedBytes counts bytes of Envoy's output that were dropped: there was no room for them,
	// or whoever gets the output did not take them.
	DroppedBytes uint64 `json:"dropped_bytes"`
	// Problems say what is not rotated, and why.
	Problems []string `json:"problems,omitempty"`
}

// LogStatus is one access log.
type LogStatus struct {
	Path string `json:"path"`
	// Size is its size in bytes, when it was looked at last.
	Size int64 `json:"size"`
}

// Times of a Rotator.
const (
	defaultInterval = time.Second
	// scanInterval is the time between two readings of all of Envoy's descriptors, and scanShare
	// the share of the time that these readings may take: one in so many.
	scanInterval = 10 * time.Second
	scanShare    = 20
	// askInterval is the time between two requests to open logs again.
	askInterval = 5 * time.Second
	// confirmTime is how long Envoy may take to open its logs again: it does so when it flushes,
	// every 10 s (--file-flush-interval-msec).
	confirmTime = 15 * time.Second
)

// What the files of one log may take of their file system, and what has to be free: one in so many
// bytes.
const (
	sizeShare = 10
	freeShare = 50
)

// Rotator bounds the logs of one Envoy.
type Rotator struct {
	c   Config
	log *slog.Logger
	out *output // or nil

	// Owned by Run.
	birth    string
	logs     map[string]*accessLog // by path
	nextScan time.Time             // the next reading of all descriptors
	mayScan  time.Time             // the earliest one
	nextAsk  time.Time
	// failed is why Envoy could not be asked; it is not asked again until failedUntil.
	failed      error
	failedUntil time.Time
	reported    map[string]bool // problems that are in the log already

	mu     sync.Mutex // guards all following fields
	status Status
}

// accessLog is one log that Envoy writes.
type accessLog struct {
	path string
	// id is the file that Envoy has open, and size how large it was.
	id   fileID
	size int64
	// moved means that this file is not at path: it was rotated, or somebody renamed or removed
	// it, and Envoy has to open the log again. removed means that it has no name.
	moved, removed bool
	// doubted means that path is a guess: Envoy has a file open that is named like a rotated one.
	doubted bool
	// askedAt is when Envoy was asked to open the log again, and askedSize how large the file
	// was then; zero means that it was not asked.
	askedAt   time.Time
	askedSize int64
}

// New checks the configuration, and reads how much of the output was written to CopyTo; it starts
// nothing.
func New(c Config) (*Rotator, error) {
	if c.Logger == nil || c.Process == nil || c.Reopen == nil {
		return nil, errors.New("configuring the rotation of logs: Logger, Process and Reopen are needed")
	}
	if c.Files < 0 || c.Files > 0 && c.MaxSize <= 0 || c.CopyTo != nil && c.MaxSize <= 0 {
		return nil, fmt.Errorf("configuring the rotation of logs: %d files of at most %d bytes", c.Files, c.MaxSize)
	}
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	r := &Rotator{c: c, log: c.Logger.With("component", "agent/logrotate"), reported: map[string]bool{}}
	if c.Output != "" && (c.Files > 0 || c.CopyTo != nil) {
		r.out = &output{path: c.Output, files: c.Files, to: c.CopyTo, log: r.log}
	}
	if c.CopyTo != nil && r.out != nil {
		r.out.begin()
	}
	return r, nil
}

// Status is the state now.
func (r *Rotator) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Logs, s.Problems = slices.Clone(s.Logs), slices.Clone(s.Problems)
	return s
}

// Run rotates until ctx ends. An error of a log is reported, and ends nothing.
func (r *Rotator) Run(ctx context.Context) error {
	if r.c.Files == 0 && r.out == nil {
		<-ctx.Done()
		return nil
	}
	if r.out != nil && r.out.to != nil {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.out.copyOn(ctx, r.c.Interval)
		}()
		defer func() {
			// A writer that takes nothing must not keep the agent from ending: then the
			// goroutine stays until the process ends.
			timer := time.NewTimer(copyLast)
			defer timer.Stop()
			select {
			case <-ended:
			case <-timer.C:
				r.log.WarnContext(ctx, "Envoy's last output could not be written in time", "path", r.out.path)
			}
		}()
	}
	tick := time.NewTicker(r.c.Interval)
	defer tick.Stop()
	for {
		r.step(ctx, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// step looks at all logs once.
func (r *Rotator) step(ctx context.Context, now time.Time) {
	var problems []string
	bad := func(err error) {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	if r.out != nil {
		n, err := r.out.bound(r.c.MaxSize)
		r.count(n)
		bad(err)
	}
	if r.c.Files > 0 {
		bad(r.look(now))
		for _, path := range slices.Sorted(maps.Keys(r.logs)) {
			bad(r.tend(r.logs[path]))
		}
		bad(r.reopen(ctx, now))
	}
	r.publish(ctx, problems)
}

// counted is what one step did.
type counted struct{ rotations, removed, dropped uint64 }

func (r *Rotator) count(n counted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Rotations += n.rotations
	r.status.RemovedEarly += n.removed
	r.status.DroppedBytes += n.dropped
}

// publish makes the state visible, and logs problems that are new.
func (r *Rotator) publish(ctx context.Context, problems []string) {
	for _, p := range problems {
		if !r.reported[p] {
			r.log.ErrorContext(ctx, "a log of Envoy is not rotated and grows without limit", "err", p)
		}
	}
	if len(problems) == 0 && len(r.reported) > 0 {
		r.log.InfoContext(ctx, "the rotation of Envoy's logs works again")
	}
	clear(r.reported)
	for _, p := range problems {
		r.reported[p] = true
	}
	logs := make([]LogStatus, 0, len(r.logs))
	for _, path := range slices.Sorted(maps.Keys(r.logs)) {
		logs = append(logs, LogStatus{Path: path, Size: r.logs[path].size})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Logs, r.status.Problems = logs, problems
}

// look finds out which files Envoy writes. It reads all descriptors from time to time, and when a
// known log has changed; else it looks at the known logs only.
func (r *Rotator) look(now time.Time) error {
	pid, birth := r.c.Process()
	if birth != r.birth {
		r.birth, r.logs, r.nextScan, r.mayScan = birth, map[string]*accessLog{}, time.Time{}, time.Time{}
	}
	if pid == 0 || birth == "" {
		r.logs = map[string]*accessLog{}
		return nil
	}
	changed := false
	for _, l := range r.logs {
		var st unix.Stat_t
		if l.moved || unix.Lstat(l.path, &st) != nil || idOf(&st) != l.id {
			changed = true
			continue
		}
		l.size = st.Size
	}
	if now.Before(r.mayScan) || !changed && now.Before(r.nextScan) {
		return nil
	}
	began := time.Now()
	files, err := held(pid)
	took := time.Since(began)
	r.mayScan, r.nextScan = now.Add(scanShare*took), now.Add(max(scanInterval, scanShare*took))
	if _, again := r.c.Process(); again != birth {
		return nil // the descriptors may be another process's
	}
	if err != nil {
		return fmt.Errorf("%w: Envoy's access logs are not rotated: run Envoy as the agent's user and without capabilities of its file, or rotate them with the host's logrotate and --access-log-files 0", err)
	}
	r.take(files, now)
	return nil
}

// take compares the files that Envoy writes with the logs that are known.
func (r *Rotator) take(files []heldFile, now time.Time) {
	by := map[fileID]heldFile{}
	for _, f := range files {
		if !r.private(f.path) {
			by[f.id] = f
		}
	}
	for path, l := range r.logs {
		f, open := by[l.id]
		if !open { // Envoy has closed it: what it opened instead is below
			delete(r.logs, path)
			continue
		}
		delete(by, l.id)
		l.size, l.removed = f.size, f.removed
		if l.doubted && !l.askedAt.IsZero() && l.size > l.askedSize && now.Sub(l.askedAt) > confirmTime {
			// It has opened its logs again, and writes to this one all the same.
			delete(r.logs, path)
			l.path, l.doubted, l.askedAt = f.path, false, time.Time{}
			r.logs[l.path] = l
		}
		if l.moved = l.removed || f.path != l.path; !l.moved {
			l.askedAt = time.Time{}
		}
	}
	for _, f := range by {
		l := &accessLog{path: f.path, id: f.id, size: f.size, removed: f.removed, moved: f.removed}
		if of, ok := rotatedName(f.path); ok {
			l.path, l.doubted, l.moved = of, true, true
		}
		if r.logs[l.path] == nil {
			r.logs[l.path] = l
		}
	}
}

// private reports whether a path is in one of the agent's own directories, or Envoy's output.
func (r *Rotator) private(path string) bool {
	if r.c.Output != "" && path == resolved(r.c.Output) {
		return true
	}
	return slices.ContainsFunc(r.c.Private, func(dir string) bool {
		return strings.HasPrefix(path, strings.TrimSuffix(resolved(dir), "/")+"/")
	})
}

// resolved is a path as the kernel gives it.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return filepath.Clean(path)
}

// tend keeps one log small, unreadable for other users, and its file system from being full.
func (r *Rotator) tend(l *accessLog) error {
	if l.moved {
		return nil // Envoy first has to open it again
	}
	p, err := openPlace(l.path)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.narrow(p.base, l.id); err != nil {
		return err
	}
	limit, low, err := limits(p, r.c.MaxSize, r.c.Files)
	if err != nil {
		return err
	}
	due := l.size >= limit
	if low > 0 {
		removed, err := p.removeOldest(r.c.Files)
		if err != nil {
			return err
		}
		if removed {
			r.log.Warn("the file system of an access log is full; the oldest rotated file was removed", "path", l.path)
			r.count(counted{removed: 1})
			return nil
		}
		if l.size < low {
			return p.explain("rotating", p.base, fmt.Errorf("less than %d bytes are free on its file system, and no rotated file is left to remove: make room", low))
		}
		due = true
	}
	if !due {
		return nil
	}
	if err := r.openable(l); err != nil {
		return err
	}
	if err := p.rotate(l.id, r.c.Files); err != nil {
		if errors.Is(err, errReplaced) { // another agent's Envoy writes to it, too: look again
			l.moved = true
			return nil
		}
		return err
	}
	l.moved = true
	r.log.Info("access log rotated", "path", l.path, "size", l.size)
	r.count(counted{rotations: 1})
	return nil
}

// limits are the size at which a log is rotated, and, if less than that is free on its file
// system, how many bytes should be; else 0.
func limits(p *place, size int64, files int) (limit, low int64, err error) {
	total, free, err := p.room()
	if err != nil {
		return 0, 0, err
	}
	limit = min(size, total/sizeShare/int64(files+1))
	if should := min(limit, total/freeShare); free < should {
		low = should
	}
	return limit, low, nil
}

// openable is an error if Envoy could not open one of its logs again, but for one: the lines of a
// log that it cannot open are lost. A log that has no name any more loses them anyway.
func (r *Rotator) openable(but *accessLog) error {
	for _, path := range slices.Sorted(maps.Keys(r.logs)) {
		l := r.logs[path]
		if l == but {
			continue
		}
		err := func() error {
			p, err := openPlace(l.path)
			if err != nil {
				return err
			}
			defer p.close()
			return p.prepare()
		}()
		if errors.Is(err, errReplaced) { // another agent made it
			continue
		}
		if err != nil && (!l.removed || errors.Is(err, errNotRegular)) {
			return fmt.Errorf("Envoy cannot open its logs again: %w", err)
		}
	}
	return nil
}

// reopen asks Envoy to open its logs again, if it has to. Envoy does so before it writes next. If
// it goes on in a file all the same, it is asked once more.
func (r *Rotator) reopen(ctx context.Context, now time.Time) error {
	need := false
	for _, l := range r.logs {
		need = need || l.moved && (l.askedAt.IsZero() || l.size > l.askedSize && !l.doubted)
	}
	if !need || now.Before(r.nextAsk) && r.waits() {
		return nil
	}
	if now.Before(r.failedUntil) {
		return r.failed
	}
	if err := r.openable(nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askInterval)
	defer cancel()
	if err := r.c.Reopen(ctx); err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil
		}
		r.failedUntil = now.Add(askInterval)
		r.failed = fmt.Errorf("asking Envoy to open its access logs again (it goes on in the rotated files until it does): %w", err)
		return r.failed
	}
	r.nextAsk = now.Add(askInterval)
	for _, l := range r.logs {
		if l.moved {
			l.askedAt, l.askedSize = now, l.size
		}
	}
	return nil
}

// waits reports whether every log that Envoy has to open again is one that it was asked for.
func (r *Rotator) waits() bool {
	for _, l := range r.logs {
		if l.moved && l.askedAt.IsZero() {
			return false
		}
	}
	return true
}
