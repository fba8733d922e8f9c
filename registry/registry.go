package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/registry/mesh"
)

// ErrNothingHeld is returned by Release for a source without held removals.
var ErrNothingHeld = errors.New("nothing is on hold")

var errEnded = errors.New("the source ended")

// Registry merges the fragments of its sources. See the package's description.
type Registry struct {
	// Constant after New.
	cfg      Config
	log      *slog.Logger
	releases chan string
	granted  *grantSaver   // or nil
	places   *addressSaver // or nil

	snapshot atomic.Pointer[mesh.Snapshot]
	status   atomic.Pointer[Status]
	running  atomic.Bool
	// slow is the merge that runs, or the last one, if it took more than slowMerge; or nil.
	slow atomic.Pointer[SlowMerge]

	mu          sync.Mutex // guards the following field
	subscribers map[chan struct{}]bool
}

// New checks the configuration. It starts nothing.
func New(c Config) (*Registry, error) {
	cfg, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Registry{
		cfg:         cfg,
		log:         cfg.Logger.With("component", "registry"),
		releases:    make(chan string, len(cfg.Sources)),
		subscribers: map[chan struct{}]bool{},
	}
	if cfg.Grants != nil && len(cfg.Bindings) > 0 {
		r.granted = newGrantSaver(cfg.Grants, r.log)
	}
	if cfg.AddressStore != nil && cfg.AddressRange.IsValid() {
		r.places = newAddressSaver(cfg.AddressStore, r.log)
	}
	r.status.Store(newLoop(r, time.Time{}).report())
	return r, nil
}

// Snapshot is the latest state of the mesh, or nil before there is a first.
func (r *Registry) Snapshot() *mesh.Snapshot { return r.snapshot.Load() }

// Status is the latest state of the registry.
func (r *Registry) Status() Status {
	st := *r.status.Load()
	st.SlowMerge = r.slow.Load()
	if r.granted != nil {
		st.GrantsUnsaved = r.granted.why()
	}
	if r.places != nil {
		st.AddressesUnsaved = r.places.why()
	}
	return st
}

// Complete reports whether every source has delivered and what they delivered
// has been published. Until then nothing may be removed from a proxy.
func (r *Registry) Complete() bool {
	s := r.Snapshot()
	return s != nil && !s.Incomplete
}

// Subscribe returns a channel that signals a newer snapshot, and a function that ends the
// subscription. It signals at once if there is a snapshot already.
func (r *Registry) Subscribe() (changed <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	r.mu.Lock()
	r.subscribers[c] = true
	r.mu.Unlock()
	if r.Snapshot() != nil {
		notify(c)
	}
	return c, func() {
		r.mu.Lock()
		delete(r.subscribers, c)
		r.mu.Unlock()
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Release releases all removals of a source that are held now. It returns before that has
// taken effect, which is at once while Run runs.
func (r *Registry) Release(source string) error {
	i := slices.IndexFunc(r.cfg.Sources, func(s Source) bool { return s.Name() == source })
	if i < 0 {
		return fmt.Errorf("releasing %q: no such source", source)
	}
	released := false
	if s, ok := r.cfg.Sources[i].(Releaser); ok {
		released = s.Release()
	}
	if r.Status().Sources[i].HeldCount > 0 {
		released = true
		select {
		case r.releases <- source:
		default: // as many requests wait as there are sources
		}
	}
	if !released {
		return fmt.Errorf("releasing %q: %w", source, ErrNothingHeld)
	}
	return nil
}

// Run runs the sources and publishes snapshots until ctx is done, or until a source ends. It
// may be called once.
func (r *Registry) Run(ctx context.Context) error {
	if r.running.Swap(true) {
		return errors.New("running the registry: Run was called before")
	}
	g, ctx := errgroup.WithContext(ctx)
	reads := make(chan *mesh.Fragment)
	for _, s := range r.cfg.Sources {
		g.Go(func() error {
			err := cmp.Or(s.Run(ctx, reads), errEnded)
			select {
			case <-ctx.Done():
				return nil // the caller ended ctx
			default:
				return fmt.Errorf("running source %q: %w", s.Name(), err)
			}
		})
	}
	// Records are written after the loop, so that the last change is there, too.
	saving, saved := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		defer saved()
		return r.loop(ctx, reads)
	})
	if r.granted != nil {
		g.Go(func() error {
			r.granted.run(saving)
			return nil
		})
	}
	if r.places != nil {
		g.Go(func() error {
			r.places.run(saving)
			return nil
		})
	}
	return g.Wait()
}

// loop waits for a reading, a release, and the time to publish.
func (r *Registry) loop(ctx context.Context, reads <-chan *mesh.Fragment) error {
	l := newLoop(r, time.Now())
	if err := l.grants.load(r.cfg.Grants, len(r.cfg.Bindings) > 0); err != nil {
		why := err.Error()
		l.grants.fault = why
		r.log.ErrorContext(ctx, "reading the grants of hosts failed: no host is granted until it works, and the hosts of no pattern serve their own namespaces only", "err", err)
	}
	l.addresses.load(r.cfg.AddressRange, r.cfg.AddressStore, r.log)
	var keys <-chan struct{}
	if r.cfg.KeySets != nil {
		keys = r.cfg.KeySets.Changed()
	}
	var names <-chan struct{}
	if r.cfg.GatewayNames != nil {
		names = r.cfg.GatewayNames.Changed()
	}
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-reads:
			if err := l.read(f, time.Now()); err != nil {
				return err
			}
		case source := <-r.releases:
			l.release(source, time.Now())
		case <-keys:
			l.readKeys(time.Now())
		case <-names:
			l.readNames(time.Now())
		case <-wake.C:
		}
		now := time.Now()
		l.publishDue(ctx, now)
		if at := l.next(now); at.IsZero() {
			wake.Stop()
		} else {
			wake.Reset(at.Sub(now))
		}
		r.status.Store(l.report())
	}
}

// publish makes a snapshot visible and notifies the subscribers.
func (r *Registry) publish(s *mesh.Snapshot) {
	r.snapshot.Store(s)
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.subscribers {
		notify(c)
	}
}
