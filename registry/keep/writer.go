package keep

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// retryAfter is when a Writer tries again after the disk refused.
const retryAfter = 5 * time.Second

// Config says what a Writer does. All of it is required.
type Config[P, M any] struct {
	// What is on disk, for people.
	What string
	// Save replaces a part, and SaveMark what is said of all parts together. They
	// are called one at a time.
	Save     func(part int, content P) error
	SaveMark func(mark M) error
	Logger   *slog.Logger
}

// Writer writes the latest of each part in a goroutine of its own. A crash before
// it has written costs what changed since, and leaves no older state than that.
type Writer[P, M any] struct {
	cfg      Config[P, M]
	doorbell chan struct{}

	mu      sync.Mutex // guards all following fields
	waiting map[int]P
	mark    *M     // to write, or nil
	failed  uint64 // attempts
	err     string // of the last attempt, or empty
	held    string // why nothing is offered, or empty
}

// New makes a Writer. It touches no file.
func New[P, M any](c Config[P, M]) *Writer[P, M] {
	return &Writer[P, M]{cfg: c, doorbell: make(chan struct{}, 1), waiting: map[int]P{}}
}

// Offer hands over whole parts, and what holds for all of them together, or nil:
// that is written when every part is. Later ones replace what is not written yet.
func (w *Writer[P, M]) Offer(parts map[int]P, mark *M) {
	if len(parts) == 0 && mark == nil {
		return
	}
	w.mu.Lock()
	maps.Copy(w.waiting, parts)
	w.mark = cmp.Or(mark, w.mark)
	w.mu.Unlock()
	select {
	case w.doorbell <- struct{}{}:
	default:
	}
}

// Run writes until ctx is done, and then what is waiting still: it is to end
// after whoever offers.
func (w *Writer[P, M]) Run(ctx context.Context) {
	retry := time.NewTicker(retryAfter)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			w.Flush()
			return
		case <-w.doorbell:
		case <-retry.C:
		}
		w.Flush()
	}
}

// Flush writes all that waits; what fails waits on.
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
	if mark != nil && len(errs) == 0 { // it speaks of all that is written
		if err := w.cfg.SaveMark(*mark); err != nil {
			errs = append(errs, err)
		} else {
			mark = nil
		}
	}
	w.settle(parts, mark, errors.Join(errs...))
}

// settle puts back what was not written, but for what a newer one replaces.
func (w *Writer[P, M]) settle(parts map[int]P, mark *M, err error) {
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

// Withhold says why nothing is offered; empty where there is no reason.
func (w *Writer[P, M]) Withhold(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = reason
}

// Trouble is the number of failed attempts, and why what is on disk is not the
// latest, or empty.
func (w *Writer[P, M]) Trouble() (failed uint64, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed, cmp.Or(w.err, w.held)
}
