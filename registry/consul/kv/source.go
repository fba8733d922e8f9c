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
	// startFor is how long the first fragment waits for Consul when the state
	// directory has one.
	startFor = 3 * time.Second
	// markEvery is how often the state directory is told that all was read.
	markEvery = time.Minute
	// followEvery is the least time between two answers where they come all the
	// time. Each is the whole listing, and while there is nothing below the prefix
	// every write to the store is a reason for one.
	followEvery = 500 * time.Millisecond
)

// Source reads the keys below a prefix. It is a source of package registry.
type Source struct {
	// Constant after New.
	cfg    Config
	log    *slog.Logger
	reader reader
	keeper *lastgood.Keeper

	status  atomic.Pointer[lastgood.Status]
	running atomic.Bool
	ask     chan int     // the loop wants a look; how many answers it has had
	answers chan *answer // to the loop

	// The loop owns all following fields.
	picture     *picture
	storeFaults []manifest.Fault
	made        lastgood.Assembly
	last        *mesh.Fragment // the last one made for sending, or nil
	out         *mesh.Fragment // what waits to be sent, or nil
	restored    *mesh.Fragment // what the state directory had, or nil
	damaged     bool           // it is not all that there was
	began       time.Time
	followed    int       // answers of the blocking query
	index       uint64    // of the last listing
	read        time.Time // when all was last read, perhaps before the start, or zero
	live        bool      // since the start
	some        bool      // manifests there were, when last read
	err         error     // why it cannot be read, or nil
	marked      time.Time
	asked       bool // a look is on its way
}

// answer is what one question came to.
type answer struct {
	listing
	err error
	// over says that what went wrong is over, which is all it says.
	over bool
	// fresh says that nothing before it is comparable.
	fresh bool
	// looked is the number that came with the ask, or -1 for one of the blocking
	// query.
	looked int
}

// New checks the configuration. It asks nobody and touches no file.
func New(c Config) (*Source, error) {
	cfg, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	cl, err := client.New(cfg.Client)
	if err != nil {
		return nil, err
	}
	log := cfg.Logger.With("source", cfg.Name)
	dir := ""
	if cfg.StateDir != "" {
		dir = filepath.Join(cfg.StateDir, "consul-kv", url.PathEscape(cfg.Name))
	}
	s := &Source{
		cfg: cfg, log: log, reader: reader{cl, cfg.Prefix}, picture: newPicture(cfg, log),
		keeper: lastgood.NewKeeper(lastgood.KeeperConfig{Dir: dir, AwaitSettled: cfg.AwaitSettled, Logger: log}),
		ask:    make(chan int, 1), answers: make(chan *answer),
	}
	s.made = s.picture.set.Assemble()
	s.status.Store(&lastgood.Status{
		Source: cfg.Name, State: lastgood.Starting, Reason: notRead,
		Roots: []lastgood.RootStatus{{Path: PathOf(cfg.Prefix), Reason: notRead}},
	})
	return s, nil
}

// Name is the name of the source.
func (s *Source) Name() string { return s.cfg.Name }

// Settled says that the receiver has judged a fragment, and how many of its
// removals it holds back. With Config.AwaitSettled the state directory keeps
// what was there before, until none is held: a restart shows it again.
func (s *Source) Settled(reading *mesh.Fragment, held int) { s.keeper.Settled(reading, held) }

// Run reads until ctx is done. It sends a Fragment when everything, or the state
// directory in the place of a Consul that is away, has been read whole, and again
// when something changed. After a look at everything it sends the same Fragment
// once more, so that the receiver knows of a second reading. Run may be called
// once.
func (s *Source) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	if s.running.Swap(true) {
		return fmt.Errorf("running source %q: it ran already", s.cfg.Name)
	}
	if err := s.keeper.Open(); err != nil {
		return fmt.Errorf("starting source %q: %w", s.cfg.Name, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	// The keeper ends after the loop, so that the last change is written too.
	saving, saved := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		s.keeper.Run(saving)
		return nil
	})
	g.Go(func() error {
		s.follow(ctx)
		return nil
	})
	g.Go(func() error {
		s.look(ctx)
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

// tell hands an answer to the loop.
func (s *Source) tell(ctx context.Context, a *answer) {
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
		OnError: func(err error) { s.tell(ctx, &answer{err: err, over: err == nil, looked: -1}) },
	}, func(pairs api.KVPairs, m client.Meta) {
		a := &answer{fresh: m.Fresh, looked: -1}
		if a.listing, a.err = s.reader.judge(ctx, pairs, m); a.err == nil && len(pairs) == 0 {
			// What it may read was asked after the answer was given.
			a.listing, a.err = s.reader.read(ctx)
		}
		s.tell(ctx, a)
	})
}

// look reads everything when the loop asks for it.
func (s *Source) look(ctx context.Context) {
	for {
		select {
		case n := <-s.ask:
			l, err := s.reader.read(ctx)
			s.tell(ctx, &answer{listing: l, err: err, looked: n})
		case <-ctx.Done():
			return
		}
	}
}

// loop owns the picture and hands out fragments.
func (s *Source) loop(ctx context.Context, out chan<- *mesh.Fragment) {
	calm, trouble := time.NewTicker(s.cfg.LookEvery), time.NewTicker(s.cfg.LookEvery/6)
	defer calm.Stop()
	defer trouble.Stop()
	wait := time.NewTimer(startFor)
	defer wait.Stop()
	s.start(time.Now())
	for {
		now := time.Now()
		s.compose(now)
		if s.out == nil { // what is new goes out first
			s.keeper.Save(s.picture.set, s.last)
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
			s.take(a, time.Now())
		case send <- s.out:
			s.out = nil
		case <-wait.C:
		case <-s.keeper.Told():
		case <-calm.C:
			s.wantLook()
		case <-trouble.C:
			if s.err != nil || s.keeper.Held(s.last) > 0 {
				s.wantLook()
			}
		}
	}
}

// start takes what the state directory has.
func (s *Source) start(now time.Time) {
	s.began = now
	entries, read, err := s.keeper.Load()
	if err != nil {
		s.damaged = true
		s.storeFaults = append(s.storeFaults, s.keeper.LostFault(s.cfg.Name, err))
	}
	known := s.picture.restore(entries, now)
	if known || !read.IsZero() {
		s.read = read
		s.made = s.picture.set.Assemble()
		s.restored = s.made.Fragment
	}
}

// end writes what is to survive.
func (s *Source) end() {
	s.keeper.Save(s.picture.set, s.last)
	s.mark()
}

// wantLook asks for a look at everything, unless one is on its way.
func (s *Source) wantLook() {
	if !s.asked {
		s.asked = true
		s.ask <- s.followed // its one place is free
	}
}

// take believes an answer.
func (s *Source) take(a *answer, now time.Time) {
	looked := a.looked >= 0
	switch {
	case a.over:
		if s.err != nil {
			s.wantLook()
		}
		return
	case looked:
		s.asked = false
		if a.looked != s.followed {
			return // the blocking query knows better
		}
	default:
		s.followed++
		s.picture.counts.Events++
	}
	switch {
	case a.err != nil:
		s.fail(a.err)
		return
	case !looked && !a.fresh && a.index < s.index:
		return // a look has overtaken it
	}
	s.index = a.index
	if err := s.picture.apply(a.pairs, now); err != nil {
		s.fail(err)
		return
	}
	if s.err != nil {
		s.log.Info("keys are readable again", "path", PathOf(s.cfg.Prefix))
	}
	some := s.picture.set.Len() > 0
	if !some && (!s.live || s.some) {
		s.log.Warn("no manifest below the prefix: push some, or check --consul-kv-prefix", "path", PathOf(s.cfg.Prefix), "code", CodeNoKeys)
	}
	s.some = some
	s.err, s.read, s.live = nil, now, true
	if !s.picture.changed && s.out == nil {
		s.out = s.last // a second reading
	}
}

// fail notes that not everything can be read. What there is stands.
func (s *Source) fail(err error) {
	if s.err == nil || s.err.Error() != err.Error() {
		s.log.Error("source is unavailable", "path", PathOf(s.cfg.Prefix), "err", err, "last_good_keys", s.picture.set.Len())
	}
	s.err = err
	s.mark()
}

// mark keeps when everything was last read, if what was read is kept.
func (s *Source) mark() {
	if s.live && s.marked.Before(s.read) && s.picture.set.Saved() {
		s.marked = s.read
		s.keeper.Mark(s.read)
	}
}

// compose makes a fragment if there is something new.
func (s *Source) compose(now time.Time) {
	if s.last == nil && s.restored != nil {
		away := !s.live && !s.damaged && (s.err != nil || !now.Before(s.began.Add(startFor)))
		if away {
			s.send(s.restored)
		}
	}
	if !s.live || !s.picture.changed && s.last != nil {
		return
	}
	if s.out != nil && s.out == s.restored {
		return // it goes first
	}
	s.picture.changed = false
	s.made = s.picture.set.Assemble()
	if s.last == nil && lastgood.Lost(s.restored, s.made.Fragment) {
		// What was lost while nobody looked is judged like any other loss, by who
		// knows what was there before.
		s.picture.changed = true
		s.send(s.restored)
		return
	}
	s.restored = nil
	if s.last != nil && lastgood.Same(s.made.Fragment, s.last) {
		return
	}
	s.picture.counts.Fragments++
	s.send(s.made.Fragment)
}

func (s *Source) send(f *mesh.Fragment) { s.last, s.out = f, f }
