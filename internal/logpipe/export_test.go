package logpipe

// Waiting is closed when the line that waits for the reader is written; there must be one.
func (w *Writer) Waiting() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stuck
}
