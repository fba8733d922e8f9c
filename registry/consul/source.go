package consul

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/persist"
)

// Source reads the catalog of one datacenter. It is a source of package
// registry.
type Source struct {
	// Constant after New.
	cfg         Config
	log         *slog.Logger
	client      *client.Client
	stateWriter *stateWriter // or nil

	status    atomic.Pointer[Status]
	protocols atomic.Pointer[protocols]
	running   atomic.Bool
	decision  *persist.Decision

	reads, sweeps, fragments atomic.Uint64
}

// New checks the configuration. It starts nothing and sends no query.
func New(c Config) (*Source, error) {
	cfg, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	cl, err := client.New(cfg.Client)
	if err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, log: cfg.Logger.With("component", "consul", "source", cfg.Name), client: cl, decision: persist.NewDecision()}
	if cfg.StateDir != "" {
		s.stateWriter = newStateWriter(store{filepath.Join(cfg.StateDir, "consul", url.PathEscape(cfg.Name))}, s.log)
	}
	s.status.Store(&Status{
		Source: cfg.Name, Datacenter: cfg.Client.Datacenter, Address: cfg.Client.Address, State: Starting, Reason: reasonStarting,
	})
	return s, nil
}

// Name is the name of the source.
func (s *Source) Name() string { return s.cfg.Name }

// Status is the present state of the source. It may be called from any
// goroutine.
func (s *Source) Status() *Status { return s.status.Load() }

// Decided records that the guard has decided about a fragment, and how many of its removals it
// holds. With Config.AwaitDecision the state directory keeps the earlier content while some
// are held, so that a restart sends it again.
func (s *Source) Decided(reading *mesh.Fragment, held int) { s.decision.Decided(reading, held) }

// Run reads until ctx is done. It sends the stored catalog, if there is one, then
// the catalog when everything in it has been read, and after that each change.
// After a recheck without a change it sends the same fragment once more, so that the
// receiver knows of a second reading. Run may be called once.
func (s *Source) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	if s.running.Swap(true) {
		return fmt.Errorf("running source %q: it ran already", s.cfg.Name)
	}
	if s.stateWriter != nil {
		if err := s.stateWriter.store.open(); err != nil {
			return fmt.Errorf("starting source %q: %w", s.cfg.Name, err)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	// The writer ends after the loop, so that the last change is written too.
	saving, saved := context.WithCancel(context.WithoutCancel(ctx))
	if s.stateWriter != nil {
		g.Go(func() error {
			s.stateWriter.Run(saving)
			return nil
		})
	}
	g.Go(func() error {
		defer saved()
		newLoop(s, g).run(ctx, out)
		return nil
	})
	return g.Wait()
}
