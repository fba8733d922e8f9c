package kv

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// startTimeout is how long the first fragment waits for Consul when the state
	// directory has one.
	startTimeout = 3 * time.Second
	// markEvery is the time between two marks in the state directory that all was read.
	markEvery = time.Minute
	// followEvery is the least time between two answers where they come all the
	// time. Each is the whole listing, and while there is nothing below the prefix
	// every write to the store is a reason for one.
	followEvery = 500 * time.Millisecond
)

// Source reads the keys below a prefix. It is a source of package registry.
type Source struct {
	// Constant after New.
	cfg       Config
	log       *slog.Logger
	reader    reader
	persister *lastgood.Persister

	status  atomic.Pointer[lastgood.Status]
	running atomic.Bool
	// releasable says that there is something for Release; releases is for the loop.
	releasable atomic.Bool
	releases   chan struct{}
	requests   chan int     // for readAll: the number of answers that the loop has had
	answers    chan *answer // to the loop

	// The loop owns all following fields.
	cache        *keyCache
	storeFaults  []manifest.Fault
	assembly     lastgood.Assembly
	last         *mesh.Fragment // the last one made for sending, or nil
	out          *mesh.Fragment // what waits to be sent, or nil
	restored     *mesh.Fragment // what the state directory had, or nil
	damaged      bool           // it is incomplete
	startedAt    time.Time
	followed     int       // answers of the blocking query
	index        uint64    // of the last listing
	read         time.Time // when all was last read, perhaps before the start, or zero
	live         bool      // since the start
	hadManifests bool      // manifests there were, when last read
	err          error     // why it cannot be read, or nil
	marked       time.Time
	requested    bool // readAll runs
}

// answer is the answer of one query, or its error.
type answer struct {
	listing
	err error
	// cleared says that an error is over, and nothing else.
	cleared bool
	// fresh says that nothing before it is comparable.
	fresh bool
	// request is the number that readAll got, or -1 for one of the blocking
	// query.
	request int
}

// New checks the configuration. It sends no query and touches no file.
func New(c Config) (*Source, error) {
	cfg, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	cl, err := client.New(cfg.Client)
	if err != nil {
		return nil, err
	}
	log := cfg.Logger.With("component", "consul/kv", "source", cfg.Name)
	dir := ""
	if cfg.StateDir != "" {
		dir = filepath.Join(cfg.StateDir, "consul-kv", url.PathEscape(cfg.Name))
	}
	s := &Source{
		cfg: cfg, log: log, reader: reader{cl, cfg.Prefix}, cache: newKeyCache(cfg, log),
		persister: lastgood.NewPersister(lastgood.PersisterConfig{Dir: dir, AwaitDecision: cfg.AwaitDecision, Logger: log}),
		requests:  make(chan int, 1), answers: make(chan *answer), releases: make(chan struct{}, 1),
	}
	s.assembly = s.cache.set.Assemble()
	s.status.Store(&lastgood.Status{
		Source: cfg.Name, State: lastgood.Starting, Reason: notRead,
		Roots: []lastgood.RootStatus{{Path: PathOf(cfg.Prefix), Reason: notRead}},
	})
	return s, nil
}

// Name is the name of the source.
func (s *Source) Name() string { return s.cfg.Name }

// Decided records that the guard has decided about a fragment, and how many of its removals it
// holds. With Config.AwaitDecision the state directory keeps the earlier content while some
// are held, so that a restart sends it again.
func (s *Source) Decided(reading *mesh.Fragment, held int) { s.persister.Decided(reading, held) }

// Run reads until ctx is done. It sends a Fragment when everything, or the state
// directory in the place of a Consul that is away, has been read whole, and again
// when something changed. After reading everything again it sends the same Fragment
// once more, so that the receiver knows of a second reading. Run may be called
// once.
func (s *Source) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	if s.running.Swap(true) {
		return fmt.Errorf("running source %q: it ran already", s.cfg.Name)
	}
	if err := s.persister.Open(); err != nil {
		return fmt.Errorf("starting source %q: %w", s.cfg.Name, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	// The keeper ends after the loop, so that the last change is written too.
	saving, saved := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		s.persister.Run(saving)
		return nil
	})
	g.Go(func() error {
		s.follow(ctx)
		return nil
	})
	g.Go(func() error {
		s.readAll(ctx)
		return nil
	})
	g.Go(func() error {
		defer saved()
		s.loop(ctx, out)
		return nil
	})
	defer s.reader.client.Close()
	return g.Wait()
}

// post hands an answer to the loop.
func (s *Source) post(ctx context.Context, a *answer) {
	select {
	case s.answers <- a:
	case <-ctx.Done():
	}
}

// follow holds the blocking query.
func (s *Source) follow(ctx context.Context) {
	client.Follow(ctx, s.reader.client, client.Query[api.KVPairs]{
		Name: "kv " + s.cfg.Prefix,
		Read: list(s.cfg.Prefix), MinInterval: followEvery,
		OnError: func(err error) { s.post(ctx, &answer{err: err, cleared: err == nil, request: -1}) },
	}, func(pairs api.KVPairs, m client.Meta) {
		a := &answer{fresh: m.Fresh, request: -1}
		if a.listing, a.err = s.reader.check(ctx, pairs, m); a.err == nil && len(pairs) == 0 {
			// What it may read was asked after the answer was given.
			a.listing, a.err = s.reader.read(ctx)
		}
		s.post(ctx, a)
	})
}

// readAll reads everything when the loop asks for it.
func (s *Source) readAll(ctx context.Context) {
	for {
		select {
		case n := <-s.requests:
			l, err := s.reader.read(ctx)
			s.post(ctx, &answer{listing: l, err: err, request: n})
		case <-ctx.Done():
			return
		}
	}
}

// loop owns the catalog cache and hands out fragments.
func (s *Source) loop(ctx context.Context, out chan<- *mesh.Fragment) {
	calm, trouble := time.NewTicker(s.cfg.RereadEvery), time.NewTicker(s.cfg.RereadEvery/6)
	defer calm.Stop()
	defer trouble.Stop()
	wait := time.NewTimer(startTimeout)
	defer wait.Stop()
	s.start(time.Now())
	for {
		now := time.Now()
		s.compose(now)
		if s.out == nil && (s.last != nil || s.cache.saved == nil) { // what is new goes out first
			s.persister.Save(s.cache.set, s.last)
			if s.read.Sub(s.marked) >= markEvery {
				s.mark()
			}
		}
		s.publish(now)
		send := out
		if s.out == nil {
			send = nil
		}
		select {
		case <-ctx.Done():
			s.end()
			return
		case a := <-s.answers:
			s.accept(a, time.Now())
		case send <- s.out:
			s.out = nil
		case <-wait.C:
		case <-s.persister.DecisionChanged():
		case <-s.releases:
			s.cache.release(time.Now())
		case <-calm.C:
			s.requestReadAll()
		case <-trouble.C:
			if s.err != nil || s.persister.Held(s.last) > 0 {
				s.requestReadAll()
			}
		}
	}
}

// start takes what the state directory has.
func (s *Source) start(now time.Time) {
	s.startedAt = now
	entries, read, err := s.persister.Load()
	if err != nil {
		s.damaged = true
		s.storeFaults = append(s.storeFaults, s.persister.LostFault(s.cfg.Name, err))
	}
	known := s.cache.restore(entries, now)
	if s.damaged {
		s.cache.noteSaved()
	}
	if known || !read.IsZero() {
		s.read = read
		s.assembly = s.cache.set.Assemble()
		s.restored = s.assembly.Fragment
	}
}

// end writes what is to survive.
func (s *Source) end() {
	if s.last == nil && s.cache.saved != nil {
		return // what is not known must not seem to be known at the next start
	}
	s.persister.Save(s.cache.set, s.last)
	s.mark()
}

// requestReadAll starts readAll, unless it runs.
func (s *Source) requestReadAll() {
	if !s.requested {
		s.requested = true
		s.requests <- s.followed // its one place is free
	}
}

// accept takes an answer.
func (s *Source) accept(a *answer, now time.Time) {
	looked := a.request >= 0
	switch {
	case a.cleared:
		if s.err != nil {
			s.requestReadAll()
		}
		return
	case looked:
		s.requested = false
		if a.request != s.followed {
			return // the blocking query knows better
		}
	default:
		s.followed++
		s.cache.counts.Events++
	}
	switch {
	case a.err != nil:
		s.fail(a.err)
		return
	case !looked && !a.fresh && a.index < s.index:
		return // a look has overtaken it
	}
	s.index = a.index
	if err := s.cache.apply(a.pairs, now); err != nil {
		s.fail(err)
		return
	}
	if s.err != nil {
		s.log.Info("keys are readable again", "path", PathOf(s.cfg.Prefix))
	}
	some := s.cache.set.Len() > 0
	if !some && (!s.live || s.hadManifests) {
		s.log.Warn("no manifest below the prefix: push some, or check --consul-kv-prefix", "path", PathOf(s.cfg.Prefix), "code", CodeNoKeys)
	}
	s.hadManifests = some
	s.err, s.read, s.live = nil, now, true
	if !s.cache.changed && s.out == nil {
		s.out = s.last // a second reading
	}
}

// fail notes that not everything can be read. The last known keys stay.
func (s *Source) fail(err error) {
	if s.err == nil || s.err.Error() != err.Error() {
		s.log.Error("source is unavailable", "path", PathOf(s.cfg.Prefix), "err", err, "last_good_keys", s.cache.set.Len())
	}
	s.err = err
	s.mark()
}

// mark keeps when everything was last read, if what was read is kept.
func (s *Source) mark() {
	if s.live && s.marked.Before(s.read) && s.cache.set.Saved() {
		s.marked = s.read
		s.persister.Mark(s.read)
	}
}

// compose makes a fragment if there is something new.
func (s *Source) compose(now time.Time) {
	if s.last == nil && s.restored != nil {
		away := !s.live && !s.damaged && (s.err != nil || !now.Before(s.startedAt.Add(startTimeout)))
		if away {
			s.send(s.restored)
		}
	}
	if !s.live || !s.cache.changed && s.last != nil {
		return
	}
	if s.out != nil && s.out == s.restored || s.last == nil && s.cache.uncertain() != "" {
		return // it goes first, or is not known
	}
	s.cache.changed = false
	s.assembly = s.cache.set.Assemble()
	if s.last == nil && lastgood.Lost(s.restored, s.assembly.Fragment) {
		// The guard has to decide about what was lost while the server was stopped, by who
		// knows what was there before.
		s.cache.changed = true
		s.send(s.restored)
		return
	}
	s.restored = nil
	if s.last != nil && lastgood.Same(s.assembly.Fragment, s.last) {
		return
	}
	s.cache.counts.Fragments++
	s.cache.saved = nil
	s.send(s.assembly.Fragment)
}

// Release takes what a person confirms: values that are cut off are whole, and values with errors are complete
// although the versions that were saved of them are damaged. It reports whether there was anything.
func (s *Source) Release() bool {
	if !s.releasable.Load() {
		return false
	}
	select {
	case s.releases <- struct{}{}:
	default: // one waits already
	}
	return true
}

func (s *Source) send(f *mesh.Fragment) { s.last, s.out = f, f }
