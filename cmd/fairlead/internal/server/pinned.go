package server

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// pinned is the source of the mesh configuration, with the trust domain of the
// authority whatever the file says: every certificate carries it, so it cannot
// change while the mesh lives.
type pinned struct {
	files  *files.Source
	domain string // constant once the authority is known

	fault atomic.Pointer[manifest.Fault] // or nil
}

// Name implements [registry.Source].
func (p *pinned) Name() string { return p.files.Name() }

// Run implements [registry.Source].
func (p *pinned) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	in := make(chan *mesh.Fragment)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.files.Run(ctx, in) })
	g.Go(func() error {
		var was, now *mesh.Fragment
		for {
			select {
			case <-ctx.Done():
				return nil
			case f := <-in:
				if f != was { // the same again is a second reading
					was, now = f, p.fragment(f)
				}
			}
			select {
			case <-ctx.Done():
				return nil
			case out <- now:
			}
		}
	})
	return g.Wait()
}

func (p *pinned) fragment(f *mesh.Fragment) *mesh.Fragment {
	if f.MeshConfig == nil {
		return f
	}
	g := *f
	g.MeshConfig = p.pin(f.MeshConfig)
	return &g
}

// pin gives the settings the domain of the authority, and notes whether they had
// it.
func (p *pinned) pin(c *mesh.MeshConfig) *mesh.MeshConfig {
	if c.Spec.GetTrustDomain() == p.domain {
		p.fault.Store(nil)
		return c
	}
	p.fault.Store(&manifest.Fault{
		Origin: c.Origin, Key: c.Key, Field: "trustDomain", Code: manifest.CodeNotInForce, Severity: manifest.Error,
		Message: fmt.Sprintf("%q is not in force: the authority of this mesh is of trust domain %q, which stays; "+
			"set it back, or begin a new mesh: restart with an empty --state-dir, and let every host join again", c.Spec.GetTrustDomain(), p.domain),
	})
	return manifest.WithTrustDomain(c, p.domain)
}

// faults is what is wrong with the settings besides their text.
func (p *pinned) faults() []manifest.Fault {
	if f := p.fault.Load(); f != nil {
		return []manifest.Fault{*f}
	}
	return nil
}
