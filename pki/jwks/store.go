package jwks

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/pki/durable"
)

const (
	// maxError bounds the text of an error in a status, in bytes.
	maxError = 300
	// maxShownURI bounds a URI in a status, in bytes.
	maxShownURI = 200
	// publishEvery bounds how often new keys are published: after a start, the sets of many
	// issuers arrive within a second.
	publishEvery = 100 * time.Millisecond
)

// Keys are the key sets in force at one time. They are immutable.
type Keys struct {
	sets map[location]*Set
	// of is what was wanted, settled that each of these sets is there or was asked for.
	of      *[]Source
	settled bool
}

// Set is the key set of a source, or nil: then tokens of its issuer must be refused. Equal
// keys stay the same Set.
func (k *Keys) Set(source Source) *Set { return k.sets[source.location()] }

// Store follows key sets. Its methods may be called from any goroutine.
type Store struct {
	cfg     Config
	log     *slog.Logger
	fetcher fetcher
	cache   cache
	saver   *saver
	metrics *metrics

	sources  atomic.Pointer[[]Source] // written by Want; nil before
	wanted   chan struct{}            // capacity 1
	keys     atomic.Pointer[Keys]     // written by the loop
	followed atomic.Pointer[followed] // written by the loop
	changed  chan struct{}            // capacity 1
}

// followed are the key sets that are followed, as a whole.
type followed struct {
	byLocation map[location]*entry
	order      []*entry
	over       map[location]struct{}
}

// New makes a Store that wants nothing yet. It reads what the configuration names, and starts
// nothing.
func New(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	f, err := cfg.fetcher()
	if err != nil {
		return nil, err
	}
	if err := durable.MakeDir(cfg.CacheDir); err != nil {
		return nil, fmt.Errorf("making the cache of key sets: %w", err)
	}
	log := cfg.Logger.With("component", "jwks")
	c := cache{cfg.CacheDir, cfg.FS, cfg.Dir != ""}
	s := &Store{
		cfg: cfg, log: log, fetcher: f, cache: c,
		saver:  &saver{cache: c, log: log, bell: make(chan struct{}, 1), pending: map[string]record{}},
		wanted: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
	s.keys.Store(&Keys{})
	s.followed.Store(&followed{})
	if s.metrics, err = newMetrics(cfg.Registerer, s); err != nil {
		return nil, err
	}
	return s, nil
}

// Want replaces what is wanted. The same sources again change nothing. Key sets that nobody
// wants are forgotten; their files stay for some days, so that an object that comes back has
// its keys at once.
func (s *Store) Want(sources []Source) {
	if was := s.sources.Load(); was != nil && slices.Equal(*was, sources) {
		return
	}
	sources = slices.Clone(sources)
	s.sources.Store(&sources)
	ring(s.wanted)
}

// Keys are what is in force now.
func (s *Store) Keys() *Keys { return s.keys.Load() }

// Settled reports whether each key set of the last Want is there, or was asked for at least
// once. A server that serves proxies before has them refuse tokens that are good. It takes
// as long as the slowest issuer, which MaxTimeout bounds, and longer with more than some
// dozens of issuers that do not answer.
func (s *Store) Settled() bool {
	k := s.keys.Load()
	return k.settled && k.of != nil && k.of == s.sources.Load()
}

// Changed gets a value after Keys or Settled may have changed, one for several changes. It is
// for one reader.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Run fetches until ctx is done.
func (s *Store) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	saving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	saved := make(chan struct{})
	go func() {
		defer close(saved)
		s.saver.run(saving)
	}()
	g.Go(func() error {
		newLoop(s, g).run(ctx)
		return nil
	})
	err := g.Wait()
	stop() // everything has been offered
	<-saved
	return err
}

func shortURI(uri string) string { return safetext.Sanitize(redact(uri), maxShownURI) }
