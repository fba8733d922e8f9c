package jwks

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/internal/wallclock"
)

const (
	// saveRetry is the pause after a write that failed.
	saveRetry = 5 * time.Second
	// saveEvery is how often the time is saved at which unchanged keys were confirmed.
	saveEvery = time.Hour
)

// saver writes the cache, so that a slow disk delays no key.
type saver struct {
	cache cache
	log   *slog.Logger
	bell  chan struct{} // capacity 1

	mu      sync.Mutex // guards all following fields
	pending map[string]record
	// wanted is a sweep that is due, or nil.
	wanted map[string]struct{}
	keep   int
	err    string
}

// record is what the file of a location shall have.
type record struct {
	from      string
	set       *Set
	confirmed time.Time
}

func (s *saver) put(digest string, r record) {
	s.mu.Lock()
	s.pending[digest] = r
	s.mu.Unlock()
	ring(s.bell)
}

// sweep asks for the removal of old files that are not wanted.
func (s *saver) sweep(wanted map[string]struct{}, most int) {
	s.mu.Lock()
	s.wanted, s.keep = wanted, most
	s.mu.Unlock()
	ring(s.bell)
}

func (s *saver) problem() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// run writes until ctx is done, and then what is still pending.
func (s *saver) run(ctx context.Context) {
	retry := time.NewTicker(saveRetry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			s.flush()
			return
		case <-s.bell:
		case <-retry.C:
		}
		s.flush()
	}
}

func (s *saver) flush() {
	s.mu.Lock()
	pending, wanted, keep := s.pending, s.wanted, s.keep
	s.pending, s.wanted = map[string]record{}, nil
	s.mu.Unlock()
	if len(pending) == 0 && wanted == nil {
		return
	}
	var failed error
	for digest, r := range pending {
		if failed = s.cache.save(digest, r.from, r.set, r.confirmed); failed != nil {
			break // the disk is full: the others wait, too
		}
		delete(pending, digest)
	}
	if wanted != nil && failed == nil {
		failed = s.cache.sweep(wanted, keep, wallclock.Now())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for digest, r := range pending {
		if _, newer := s.pending[digest]; !newer {
			s.pending[digest] = r
		}
	}
	was := s.err
	s.err = ""
	if failed != nil {
		s.err = safetext.Sanitize(failed.Error(), maxError)
	}
	switch {
	case s.err != "" && was == "":
		s.log.Error("persisting state failed", "what", "keys of issuers", "err", s.err)
	case s.err == "" && was != "":
		s.log.Info("persisting state works again", "what", "keys of issuers")
	}
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}
