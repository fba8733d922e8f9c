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
	cfg       Config
	log       *slog.Logger
	persister *lastgood.Persister

	status     atomic.Pointer[Status]
	releasable atomic.Bool   // there is something for Release
	releases   chan struct{} // for the loop
	watchDown  atomic.Pointer[error]
	running    atomic.Bool

	// The loop owns all following fields.
	tree            *tree
	storeFaults     []manifest.Fault
	loggedUnwatched string
	made            lastgood.Assembly // the present state
	last            *mesh.Fragment    // the last one made for sending, or nil
	out             *mesh.Fragment    // what waits to be sent, or nil
	restored        *mesh.Fragment    // what the state directory had, until the first is made; or nil
	sent            time.Time         // when last was made
	began           time.Time
}

// New checks the configuration. It touches no file.
func New(c Config) (*Source, error) {
	cfg, err := c.withDefaults()
	roots, rootErr := newRoots(cfg)
	if err := errors.Join(err, rootErr); err != nil {
		return nil, err
	}
	cfg.Logger = cfg.Logger.With("component", "registry/files", "source", cfg.Name)
	s := &Source{
		cfg: cfg, log: cfg.Logger, tree: newTree(cfg, roots), releases: make(chan struct{}, 1),
	}
	dir := ""
	if cfg.StateDir != "" {
		dir = filepath.Join(cfg.StateDir, "files", url.PathEscape(cfg.Name))
	}
	s.persister = lastgood.NewPersister(lastgood.PersisterConfig{Dir: dir, AwaitDecision: cfg.AwaitDecision, Logger: cfg.Logger})
	s.made = s.tree.set.Assemble()
	st := &Status{Source: cfg.Name, State: Starting, Reason: "not everything has been read yet"}
	for _, r := range roots {
		st.Roots = append(st.Roots, RootStatus{Path: r.Path, Reason: "not read yet"})
	}
	s.status.Store(st)
	return s, nil
}

// Decided records that the guard has decided about a fragment, and how many of its removals it
// holds. With Config.AwaitDecision the state directory keeps the earlier content while some
// are held, so that a restart sends it again.
func (s *Source) Decided(reading *mesh.Fragment, held int) {
	s.persister.Decided(reading, held)
}

// Name is the name of the source.
func (s *Source) Name() string { return s.cfg.Name }

// Run reads until ctx is done. It sends a Fragment when the directories, or the state
// directory instead of one that is unavailable, have been read completely, and again after
// each change. After a complete scan without a change it sends the same Fragment again, so
// that the receiver knows of a second reading. Run may be called once.
func (s *Source) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	if s.running.Swap(true) {
		return fmt.Errorf("running source %q: it ran already", s.cfg.Name)
	}
	if err := s.persister.Open(); err != nil {
		return fmt.Errorf("starting source %q: %w", s.cfg.Name, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	w, err := s.cfg.newWatcher(s.persister.Dir())
	if err != nil {
		// Perhaps there are too few inotify instances: scanning works without.
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
	// The persister ends after the loop, so that the last change is written too.
	saving, saved := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		s.persister.Run(saving)
		return nil
	})
	g.Go(func() error {
		defer saved()
		s.loop(ctx, out)
		return nil
	})
	return g.Wait()
}

// loop owns the tree. It checks files after an event, at a time or for a pending change, and
// sends fragments.
func (s *Source) loop(ctx context.Context, out chan<- *mesh.Fragment) {
	scan := time.NewTicker(s.cfg.ScanInterval)
	defer scan.Stop()
	wake := time.NewTimer(0)
	defer wake.Stop()
	var changed <-chan struct{}
	if s.tree.watch != nil {
		changed = s.tree.watch.changed()
	}
	s.start(time.Now())
	var settled time.Time // when the pending events are taken, or zero
	for {
		now := time.Now()
		if !settled.IsZero() && !settled.After(now) {
			settled = time.Time{}
			s.tree.handle(s.tree.watch.take(), now)
		}
		next := s.tree.step(now)
		if settled.IsZero() && signalled(changed) {
			settled = time.Now().Add(settleFor)
		}
		next = soonest(settled, next, s.compose(now, !settled.IsZero()))
		// What is not known of damaged files must not seem to be known at the next start.
		if s.out == nil && (s.last != nil || s.tree.saved == nil) { // send new content first
			s.persister.Save(s.tree.set, s.last)
		}
		s.publish(now)
		if next.IsZero() {
			wake.Stop()
		} else {
			wake.Reset(time.Until(next))
		}
		events, send := changed, out
		if !settled.IsZero() {
			events = nil
		}
		if s.out == nil {
			send = nil
		}
		select {
		case <-ctx.Done():
			if s.last != nil || s.tree.saved == nil {
				s.persister.Save(s.tree.set, s.last)
			}
			return
		case <-events:
			settled = time.Now().Add(settleFor)
		case <-wake.C:
		case <-s.persister.DecisionChanged():
		case <-s.releases:
			s.tree.release(time.Now())
		case <-scan.C:
			s.rescan(time.Now())
		case send <- s.out:
			s.out = nil
		}
	}
}

// signalled reports whether there are events, without waiting for them.
func signalled(changed <-chan struct{}) bool {
	select {
	case <-changed:
		return true
	default:
		return false
	}
}

// start loads the state directory and scans everything.
func (s *Source) start(now time.Time) {
	s.began = now
	t := s.tree
	list, _, err := s.persister.Load()
	if err != nil {
		s.storeFaults = append(s.storeFaults, s.persister.LostFault(s.cfg.Name, err))
	}
	t.restore(list, now)
	if err != nil {
		t.saved = map[string]bool{}
		for path := range t.files {
			t.saved[path] = true
		}
	}
	if len(t.files) > 0 {
		s.made = t.set.Assemble()
		s.restored = s.made.Fragment
	}
	t.changed = now
	t.starting = true
	t.scan(now)
	t.starting = false
}

// rescan scans everything. If all could be read and nothing changed, the fragment is sent
// again.
func (s *Source) rescan(now time.Time) {
	s.tree.scan(now)
	if s.tree.whole() && s.tree.changed.IsZero() && s.out == nil {
		s.out = s.last
	}
}

// compose makes a fragment if it is time, and returns when it will be; zero means not before
// something happens. While there are more events, their files are to be in it.
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
		return time.Time{} // it is sent first
	}
	s.made = t.set.Assemble()
	if s.last == nil && lastgood.Lost(s.restored, s.made.Fragment) {
		// The guard has to decide about what was lost while the server was stopped.
		s.last, s.out, s.sent = s.restored, s.restored, now
		return now.Add(spacing)
	}
	if s.last != nil {
		s.restored = nil
	}
	composed := Composed{Source: s.cfg.Name, Noticed: t.noticed, Decoded: t.changed, Sent: now}
	t.changed, t.noticed, t.urgent = time.Time{}, time.Time{}, false
	if lastgood.Same(s.made.Fragment, s.last) {
		return time.Time{}
	}
	s.last, s.out, s.sent = s.made.Fragment, s.made.Fragment, now
	t.saved = nil
	t.counts.Fragments++
	if s.cfg.Observe != nil {
		s.cfg.Observe(composed)
	}
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
