package agent

import (
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// saveRetryInterval is the time between two tries to save.
const saveRetryInterval = 5 * time.Second

// Unsaved is a file of the state directory that is older than the state in use.
type Unsaved struct {
	// File is its name.
	File string `json:"file"`
	Path string `json:"path"`
	// Err is the last error, Since the time of the first of consecutive ones.
	Err   string    `json:"error"`
	Since time.Time `json:"since"`
}

// saver writes to disk what an agent needs after a restart. It blocks nobody, and nothing
// fails because of it: state that cannot be saved is used, is reported, and is saved when that
// works again.
type saver struct {
	log  *slog.Logger
	wake chan struct{}

	// writing puts writes in order. It is taken before mu and held during I/O.
	writing sync.Mutex
	mu      sync.Mutex // guards all following fields
	files   map[string]*saving
}

// saving is one file. Every file that was ever to be saved stays in the list.
type saving struct {
	path  string
	write func() error // the newest content, not yet on disk; or nil
	err   error        // of the last attempt, or nil
	since time.Time    // of the first of consecutive failures
	began time.Time    // of the attempt in progress, or zero
}

func newSaver(log *slog.Logger) *saver {
	return &saver{log: log, wake: make(chan struct{}, 1), files: map[string]*saving{}}
}

// save calls write soon, and again until it succeeds or a newer one replaces it. It does not
// wait.
func (s *saver) save(path string, write func() error) {
	s.mu.Lock()
	file := filepath.Base(path)
	f := s.files[file]
	if f == nil {
		f = &saving{path: path}
		s.files[file] = f
	}
	f.write = write
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// saveNow saves a file at once, or as soon as that is possible.
func (a *Agent) saveNow(ctx context.Context, path string, write func() error) {
	a.saver.save(path, write)
	a.saver.flush(ctx)
}

// run writes until ctx ends, and then once more what is not saved.
func (s *saver) run(ctx context.Context) {
	again := time.NewTicker(saveRetryInterval)
	defer again.Stop()
	for {
		select {
		case <-s.wake:
		case <-again.C:
		case <-ctx.Done():
			s.flush(context.WithoutCancel(ctx))
			return
		}
		s.flush(ctx)
	}
}

// flush writes what is not saved.
func (s *saver) flush(ctx context.Context) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	due := map[string]func() error{}
	for file, f := range s.files {
		if f.write != nil {
			due[file] = f.write
			f.write = nil
		}
	}
	s.mu.Unlock()
	for _, file := range slices.Sorted(maps.Keys(due)) {
		s.begin(file, time.Now())
		s.record(ctx, file, due[file], due[file](), time.Now())
	}
}

func (s *saver) begin(file string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[file].began = now
}

// record stores the result of an attempt, and logs changes.
func (s *saver) record(ctx context.Context, file string, write func() error, err error, now time.Time) {
	s.mu.Lock()
	f := s.files[file]
	was, path, since := f.err, f.path, f.since
	f.err, f.began = err, time.Time{}
	if err != nil && was == nil {
		f.since = now
	}
	if err != nil && f.write == nil { // nothing newer came meanwhile
		f.write = write
	}
	s.mu.Unlock()
	switch {
	case err != nil && was == nil:
		s.log.ErrorContext(ctx, "saving state failed (in use, but lost by a restart), retrying",
			"path", path, "err", err)
	case err == nil && was != nil:
		s.log.InfoContext(ctx, "saving state works again", "path", path, "lasted", now.Sub(since).Round(time.Second).String())
	}
}

// unsaved are the files that are older than the state in use, by name.
func (s *saver) unsaved(now time.Time) []Unsaved {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Unsaved
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		switch f := s.files[file]; {
		case f.err != nil:
			list = append(list, Unsaved{File: file, Path: f.path, Err: f.err.Error(), Since: f.since})
		case !f.began.IsZero() && now.Sub(f.began) > saveRetryInterval:
			list = append(list, Unsaved{File: file, Path: f.path, Err: "the disk does not respond", Since: f.began})
		}
	}
	return list
}
