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

// saveAgainAfter is when a saver tries again what the disk refused.
const saveAgainAfter = 5 * time.Second

// Unsaved is a file of the state directory that is older than what is in use.
type Unsaved struct {
	// File is its name: which of the files that survive a restart.
	File string `json:"file"`
	Path string `json:"path"`
	// Err is the last reason, Since the time of the first refusal.
	Err   string    `json:"error"`
	Since time.Time `json:"since"`
}

// saver has on disk what an agent must know after a restart. Nobody waits for
// it, and nobody fails for it: what cannot be saved is used all the same, is
// reported, and is tried again until it is saved.
type saver struct {
	log  *slog.Logger
	bell chan struct{}

	// writing puts writes in order. It is taken before mu and held during I/O.
	writing sync.Mutex
	mu      sync.Mutex // guards all following fields
	files   map[string]*saving
}

// saving is one file. All files that were ever to be saved stay listed.
type saving struct {
	path  string
	write func() error // the newest content, not yet on disk; or nil
	err   error        // of the last attempt, or nil
	since time.Time    // of the first failed attempt of a row
	began time.Time    // of the attempt under way, or zero
}

func newSaver(log *slog.Logger) *saver {
	return &saver{log: log, bell: make(chan struct{}, 1), files: map[string]*saving{}}
}

// save has write called soon, again and again until it succeeds or a newer one
// takes its place. It does not wait.
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
	case s.bell <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and then once more what is not on disk.
func (s *saver) run(ctx context.Context) {
	again := time.NewTicker(saveAgainAfter)
	defer again.Stop()
	for {
		select {
		case <-s.bell:
		case <-again.C:
		case <-ctx.Done():
			s.flush(context.WithoutCancel(ctx))
			return
		}
		s.flush(ctx)
	}
}

// flush writes what is not on disk.
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
		s.settle(ctx, file, due[file], due[file](), time.Now())
	}
}

func (s *saver) begin(file string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[file].began = now
}

// settle notes what became of an attempt, and reports what changed by it.
func (s *saver) settle(ctx context.Context, file string, write func() error, err error, now time.Time) {
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

// unsaved are the files that are older than what is in use, by name.
func (s *saver) unsaved(now time.Time) []Unsaved {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Unsaved
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		switch f := s.files[file]; {
		case f.err != nil:
			list = append(list, Unsaved{File: file, Path: f.path, Err: f.err.Error(), Since: f.since})
		case !f.began.IsZero() && now.Sub(f.began) > saveAgainAfter:
			list = append(list, Unsaved{File: file, Path: f.path, Err: "the disk does not respond", Since: f.began})
		}
	}
	return list
}
