package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Read reads a datacenter once, and whole. What the token may not read is missing,
// and the status says so.
func Read(ctx context.Context, c Config) (*mesh.Fragment, *Status, error) {
	c.StateDir = ""
	s, err := New(c)
	if err != nil {
		return nil, nil, err
	}
	defer s.client.Close()
	l := newLoop(s, nil)
	names, m, err := client.GetLong(ctx, s.client, checked(s, queryNames))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the services of Consul: %w", err)
	}
	l.setListing(names, m, time.Now())
	if err := l.readDefaults(ctx); err != nil {
		return nil, nil, err
	}
	if err := l.readAll(ctx); err != nil {
		return nil, nil, err
	}
	if err := l.errNothingReadable(); err != nil {
		return nil, nil, fmt.Errorf("reading the services of Consul: %w", err)
	}
	l.live, l.delivered = true, true
	f := l.buildFragment()
	l.publishStatus(time.Now())
	return f, s.Status(), nil
}

// readDefaults reads Connect's defaults, if the token may.
func (l *loop) readDefaults(ctx context.Context) error {
	p := &protocols{}
	var err, err2 error
	p.of, _, err = client.Get(ctx, l.s.client, queryServiceDefaults)
	p.global, _, err2 = client.Get(ctx, l.s.client, queryProxyDefaults)
	for name, err := range map[string]error{queryDefaultsPath: err, queryProxyPath: err2} {
		if err == nil {
			continue
		}
		if errors.Is(err, client.ErrUnavailable) || ctx.Err() != nil {
			return fmt.Errorf("reading %s of Consul: %w", name, err)
		}
		l.faults[name] = err
	}
	l.setProtocols(p)
	return nil
}

func (l *loop) readAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	var mu sync.Mutex // guards the catalog cache
	for _, name := range slices.Sorted(namesOf(l.listed)) {
		g.Go(func() error {
			r := l.s.readService(ctx, name, 0)
			if r.err != nil && isGeneral(r.err) {
				return fmt.Errorf("reading service %q of Consul: %w", name, r.err)
			}
			mu.Lock()
			defer mu.Unlock()
			l.accept(r, time.Now())
			return nil
		})
	}
	return g.Wait()
}
