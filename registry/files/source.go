package files

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Source reads directories. It is a source of package registry.
type Source struct {
	// Constant after New.
	cfg    Config
	log    *slog.Logger
	keeper *lastgood.Keeper

	status    atomic.Pointer[Status]
	watchDown atomic.Pointer[error]
	running   atomic.Bool

	// The loop owns all following fields.
	tree          *tree
	storeFaults   []manifest.Fault
	toldUnwatched string
	made          lastgood.Assembly // the present state
	last          *mesh.Fragment    // the last one made for sending, or nil
	out           *mesh.Fragment    // what waits to be sent, or nil
	restored      *mesh.Fragment    // what the state directory had, until the first is made; or nil
	sent          time.Time         // when last was made
	began         time.Time
}

// New checks the configuration. It touches no file.
func New(c Config) (*Source, error) {
	cfg, err := c.withDefaults()
	roots, rootErr := newRoots(cfg)
	if err := errors.Join(err, rootErr); err != nil {
		return nil, err
	}
	cfg.Logger = cfg.Logger.With("source", cfg.Name)
	s := &Source{
		cfg: cfg, log: cfg.Logger, tree: newTree(cfg, roots),
	}
	dir := ""
	if cfg.StateDir != "" {
		dir = filepath.Join(cfg.StateDir, "files", url.PathEscape(cfg.Name))
	}
	s.keeper = lastgood.NewKeeper(lastgood.KeeperConfig{Dir: dir, AwaitSettled: cfg.AwaitSettled, Logger: cfg.Logger})
	s.made = s.tree.set.Assemble()
	st := &Status{Source: cfg.Name, State: Starting, Reason: "not everything has been read yet"}
	for _, r := range roots {
		st.Roots = append(st.Roots, RootStatus{Path: r.Path, Reason: "not read yet"})
	}
	s.status.Store(st)
	return s, nil
}

// Settled says that the receiver has judged a fragment, and how many of its
// removals it holds back. With Config.AwaitSettled the state directory keeps
// what was there before, until none is held: a restart shows it again.
func (s *Source) Settled(reading *mesh.Fragment, held int) {
	s.keeper.Settled(reading, held)
}

// Name is the name of the source.
func (s *Source) Name() string { return s.cfg.Name }

// Run reads until ctx is done. It sends a Fragment when the directories, or the
// state directory in place of one that is away, have been read whole, and again
// when something changed. After a scan that could read everything it sends the
// same Fragment once more, so that the receiver knows of a second reading. Run
// may be called once.
func (s *Source) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	if s.running.Swap(true) {
		return fmt.Errorf("running source %q: it ran already", s.cfg.Name)
	}
	if err := s.keeper.Open(); err != nil {
		return fmt.Errorf("starting source %q: %w", s.cfg.Name, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	w, err := s.cfg.newWatcher(s.keeper.Dir())
	if err != nil {
		// Too few inotify instances, perhaps: scanning does without.
		s.watchDown.Store(&err)
	} else {
		s.tree.watch = w
		g.Go(func() error {
			if err := w.run(ctx); err != nil {
				s.watchDown.Store(&err)
			}
			return nil
		})
	}
	// The keeper ends after the loop, so that the last change is written too.
	saving, saved := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		s.keeper.Run(saving)
		return nil
	})
	g.Go(func() error {
		defer saved()
		s.loop(ctx, out)
		return nil
	})
	return g.Wait()
}

// loop owns the tree: it looks when an event, the clock or a change under
// observation asks for it, and hands out fragments.
func (s *Source) loop(ctx context.Context, out chan<- *mesh.Fragment) {
	scan := time.NewTicker(s.cfg.ScanInterval)
	defer scan.Stop()
	wake := time.NewTimer(0)
	defer wake.Stop()
	var bell <-chan struct{}
	if s.tree.watch != nil {
		bell = s.tree.watch.bell()
	}
	s.start(time.Now())
	var settled time.Time // when the events that rang are taken, or zero
	for {
		now := time.Now()
		if !settled.IsZero() && !settled.After(now) {
			settled = time.Time{}
			s.tree.handle(s.tree.watch.take(), now)
		}
		next := s.tree.step(now)
		if settled.IsZero() && rung(bell) {
			settled = time.Now().Add(settleFor)
		}
		next = soonest(settled, next, s.compose(now, !settled.IsZero()))
		if s.out == nil { // what is new goes out first
			s.keeper.Save(s.tree.set, s.last)
		}
		s.publish(now)
		if next.IsZero() {
			wake.Stop()
		} else {
			wake.Reset(time.Until(next))
		}
		ring, send := bell, out
		if !settled.IsZero() {
			ring = nil
		}
		if s.out == nil {
			send = nil
		}
		select {
		case <-ctx.Done():
			s.keeper.Save(s.tree.set, s.last)
			return
		case <-ring:
			settled = time.Now().Add(settleFor)
		case <-wake.C:
		case <-s.keeper.Told():
		case <-scan.C:
			s.rescan(time.Now())
		case send <- s.out:
			s.out = nil
		}
	}
}

// rung reports whether there are events, without waiting for them.
func rung(bell <-chan struct{}) bool {
	select {
	case <-bell:
		return true
	default:
		return false
	}
}

// start takes what the state directory has and looks at everything.
func (s *Source) start(now time.Time) {
	s.began = now
	t := s.tree
	list, _, err := s.keeper.Load()
	if err != nil {
		s.storeFaults = append(s.storeFaults, s.keeper.LostFault(s.cfg.Name, err))
	}
	t.restore(list, now)
	if len(t.files) > 0 {
		s.made = t.set.Assemble()
		s.restored = s.made.Fragment
	}
	t.changed = now
	t.starting = true
	t.scan(now)
	t.starting = false
}

// rescan looks at everything. If all could be read and is as it was, the
// fragment is sent again.
func (s *Source) rescan(now time.Time) {
	s.tree.scan(now)
	if s.tree.whole() && s.tree.changed.IsZero() && s.out == nil {
		s.out = s.last
	}
}

// compose makes a fragment if it is time for one, and returns when it will be;
// zero means not before something happens. While more events are there already,
// what they tell of is to be in it.
func (s *Source) compose(now time.Time, more bool) time.Time {
	t := s.tree
	if t.changed.IsZero() {
		return time.Time{}
	}
	if waitUntil := s.began.Add(startFor); s.last == nil && !t.delivered(!now.Before(waitUntil)) {
		if now.Before(waitUntil) {
			return waitUntil
		}
		return time.Time{}
	}
	at := sendAt(s.sent, t.changed, t.urgent || s.last == nil, t.writing())
	if more {
		at = later(at, t.changed.Add(moreFor))
	}
	if at.After(now) {
		return at
	}
	if s.out != nil && s.out == s.restored {
		return time.Time{} // it goes first
	}
	s.made = t.set.Assemble()
	if s.last == nil && lastgood.Lost(s.restored, s.made.Fragment) {
		// What was lost while nobody looked is judged like any other loss, by
		// who knows what was there before.
		s.last, s.out, s.sent = s.restored, s.restored, now
		return now.Add(spacing)
	}
	if s.last != nil {
		s.restored = nil
	}
	t.changed, t.urgent = time.Time{}, false
	if lastgood.Same(s.made.Fragment, s.last) {
		return time.Time{}
	}
	s.last, s.out, s.sent = s.made.Fragment, s.made.Fragment, now
	t.counts.Fragments++
	return time.Time{}
}

// soonest is the earliest of the times that are not zero.
func soonest(times ...time.Time) time.Time {
	var at time.Time
	for _, t := range times {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}
