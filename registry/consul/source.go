package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Source reads the catalog of one datacenter. It is a source of package
// registry.
type Source struct {
	// Constant after New.
	cfg    Config
	log    *slog.Logger
	client *client.Client

	status  atomic.Pointer[Status]
	running atomic.Bool
}

// New checks the configuration. It starts nothing and asks nobody.
func New(c Config) (*Source, error) {
	cfg, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	cl, err := client.New(cfg.Client)
	if err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, log: cfg.Logger.With("source", cfg.Name), client: cl}
	s.status.Store(&Status{Source: cfg.Name, Datacenter: cfg.Client.Datacenter, Address: cfg.Client.Address, State: Starting, Reason: "not everything has been read yet"})
	return s, nil
}

// Name is the name of the source.
func (s *Source) Name() string { return s.cfg.Name }

// Status is the present state of the source. It may be called from any
// goroutine.
func (s *Source) Status() *Status { return s.status.Load() }

// Settled says that the receiver has judged a fragment, and how many of its
// removals it holds back. With Config.AwaitSettled the state directory keeps
// what was there before, until none is held: a restart shows it again.
func (s *Source) Settled(*mesh.Fragment, int) {}

// Run reads until ctx is done. It may be called once.
func (s *Source) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	if s.running.Swap(true) {
		return fmt.Errorf("running source %q: it ran already", s.cfg.Name)
	}
	for {
		f, st, err := s.read(ctx)
		if err == nil {
			s.status.Store(st)
			select {
			case out <- f:
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// Read reads a datacenter once, and whole.
func Read(ctx context.Context, c Config) (*mesh.Fragment, *Status, error) {
	s, err := New(c)
	if err != nil {
		return nil, nil, err
	}
	return s.read(ctx)
}

func (s *Source) read(ctx context.Context) (*mesh.Fragment, *Status, error) {
	st := *s.Status()
	names, _, err := client.Get(ctx, s.client, func(c *api.Client, q *api.QueryOptions) (map[string][]string, *api.QueryMeta, error) {
		return c.Catalog().Services(q)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("reading the services of Consul: %w", err)
	}
	out := &mesh.Fragment{Source: s.cfg.Name}
	for name := range names {
		entries, _, err := client.Get(ctx, s.client, func(c *api.Client, q *api.QueryOptions) ([]*api.ServiceEntry, *api.QueryMeta, error) {
			q.Filter = s.cfg.Filter
			return c.Health().Service(name, "", false, q)
		})
		if d, ok := errors.AsType[*client.Denied](err); ok {
			st.Denied = append(st.Denied, d.Rule)
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading service %q of Consul: %w", name, err)
		}
		r := s.cfg.Mapper.Map(&mapping.Input{Source: s.cfg.Name, Service: name, Datacenter: s.cfg.Client.Datacenter, Local: s.cfg.Local, Entries: entries})
		out.Append(r.Piece)
		st.Notes = append(st.Notes, r.Notes...)
		st.Services++
		st.Instances += len(entries)
	}
	slices.Sort(st.Denied)
	st.State, st.Reason, st.Read, st.Since = Live, "", time.Now(), time.Now()
	return out.Sorted(), &st, nil
}
