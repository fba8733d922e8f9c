package logpipe

import (
	"io"
	"slices"
	"sync"
	"time"
)

// patience is how long a line waits for the reader. A reader that is busy takes it sooner.
const patience = time.Second

// Writer writes lines. It may be used by any goroutine.
type Writer struct {
	// Constant.
	to     io.Writer
	notice func(lost int) []byte

	mu    sync.Mutex // guards all following fields
	stuck chan struct{}
	lost  int
}

// New writes to a pipe. notice is the line that says how many were lost.
func New(to io.Writer, notice func(lost int) []byte) *Writer {
	return &Writer{to: to, notice: notice}
}

// Write writes a line, or drops it while the reader takes nothing. It reports no error: who logs
// cannot mend it.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stuck != nil {
		select {
		case <-w.stuck:
			w.stuck = nil
		default:
			w.lost++
			return len(line), nil
		}
	}
	text := slices.Clone(line) // the caller uses it again
	if w.lost > 0 {
		text = append(w.notice(w.lost), text...)
		w.lost = 0
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = w.to.Write(text)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
		w.stuck = written
	}
	return len(line), nil
}
