package persist

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// retryAfter is the time between two tries after an error.
const retryAfter = 5 * time.Second

// Config configures a Writer. All fields are required.
type Config[P, M any] struct {
	// What names the state in log lines.
	What string
	// Save replaces a part, and SaveMark the mark, which belongs to all parts together. They
	// are called one at a time.
	Save     func(part int, content P) error
	SaveMark func(mark M) error
	Logger   *slog.Logger
}

// Writer writes the newest content of each part in a goroutine of its own. A crash before a
// write loses what changed since the last one, and nothing older.
type Writer[P, M any] struct {
	cfg  Config[P, M]
	wake chan struct{}

	mu      sync.Mutex // guards all following fields
	waiting map[int]P
	mark    *M     // to be written, or nil
	failed  uint64 // attempts
	err     string // of the last attempt, or empty
	held    string // why no newer state is offered, or empty
}

// New makes a Writer. It touches no file.
func New[P, M any](c Config[P, M]) *Writer[P, M] {
	return &Writer[P, M]{cfg: c, wake: make(chan struct{}, 1), waiting: map[int]P{}}
}

// Offer replaces parts, and the mark if it is not nil. The mark is written when every part is.
// Newer content replaces what is not written yet.
func (w *Writer[P, M]) Offer(parts map[int]P, mark *M) {
	if len(parts) == 0 && mark == nil {
		return
	}
	w.mu.Lock()
	maps.Copy(w.waiting, parts)
	w.mark = cmp.Or(mark, w.mark)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run writes until ctx is done, and then what is still pending. It must end after the last
// Offer.
func (w *Writer[P, M]) Run(ctx context.Context) {
	retry := time.NewTicker(retryAfter)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			w.Flush()
			return
		case <-w.wake:
		case <-retry.C:
		}
		w.Flush()
	}
}

// Flush writes everything that is pending; what fails stays pending.
func (w *Writer[P, M]) Flush() {
	w.mu.Lock()
	parts, mark := w.waiting, w.mark
	w.waiting, w.mark = map[int]P{}, nil
	w.mu.Unlock()
	if len(parts) == 0 && mark == nil {
		return
	}
	var errs []error
	for i, content := range parts {
		if err := w.cfg.Save(i, content); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(parts, i)
	}
	if mark != nil && len(errs) == 0 { // it is only valid with all parts
		if err := w.cfg.SaveMark(*mark); err != nil {
			errs = append(errs, err)
		} else {
			mark = nil
		}
	}
	w.record(parts, mark, errors.Join(errs...))
}

// record keeps what was not written pending, unless it was replaced meanwhile.
func (w *Writer[P, M]) record(parts map[int]P, mark *M, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.Copy(parts, w.waiting)
	w.waiting, w.mark = parts, cmp.Or(w.mark, mark)
	was := w.err
	w.err = ""
	if err != nil {
		w.err = err.Error()
		w.failed++
	}
	switch {
	case w.err != "" && was == "":
		w.cfg.Logger.Error("persisting state failed", "what", w.cfg.What, "err", w.err)
	case w.err == "" && was != "":
		w.cfg.Logger.Info("persisting state works again", "what", w.cfg.What)
	}
}

// Withhold sets why no newer state is offered; empty if there is no reason.
func (w *Writer[P, M]) Withhold(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = reason
}

// Trouble is the number of failed tries, and why the state on disk is outdated, or empty.
func (w *Writer[P, M]) Trouble() (failed uint64, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed, cmp.Or(w.err, w.held)
}
