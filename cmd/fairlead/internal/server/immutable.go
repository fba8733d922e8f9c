package server

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// immutableSettings is the source of the mesh configuration. It keeps the trust domain of the
// authority, whatever the file says: every certificate has it, so it cannot change during the
// life of a mesh.
type immutableSettings struct {
	files  *files.Source
	domain string // constant once the authority is known
	// closed are the namespaces that cannot become the root namespace because a source is
	// bound to them, and root is the one that is kept instead.
	closed []string
	root   string

	fault, rootFault atomic.Pointer[manifest.Fault] // or nil
}

// Name implements [registry.Source].
func (p *immutableSettings) Name() string { return p.files.Name() }

// Unsaved implements saved.
func (p *immutableSettings) Unsaved() string { return p.files.Unsaved() }

// Run implements [registry.Source].
func (p *immutableSettings) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
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
				if f != was { // the same fragment is a second reading
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

func (p *immutableSettings) fragment(f *mesh.Fragment) *mesh.Fragment {
	if f.MeshConfig == nil {
		return f
	}
	g := *f
	g.MeshConfig = p.keep(f.MeshConfig)
	return &g
}

// keep returns the settings with the trust domain of the authority, and a root namespace that
// no source is bound to, and records faults.
func (p *immutableSettings) keep(c *mesh.MeshConfig) *mesh.MeshConfig {
	return p.keepDomain(p.keepRoot(c))
}

func (p *immutableSettings) keepRoot(c *mesh.MeshConfig) *mesh.MeshConfig {
	root := c.Spec.GetRootNamespace()
	if !slices.Contains(p.closed, root) {
		p.root = root
		p.rootFault.Store(nil)
		return c
	}
	p.rootFault.Store(&manifest.Fault{
		Origin: c.Origin, Key: c.Key, Field: "rootNamespace", Code: manifest.CodeNotInForce, Severity: manifest.Error,
		Message: fmt.Sprintf("%q is not in force: a source is bound to that namespace, and what it writes there would hold for the whole mesh; "+
			"%q stays; if that is meant, restart the server with --bind-root-namespace", root, p.root),
	})
	return manifest.WithRootNamespace(c, p.root)
}

func (p *immutableSettings) keepDomain(c *mesh.MeshConfig) *mesh.MeshConfig {
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

// faults are those of the settings that are not in force.
func (p *immutableSettings) faults() []manifest.Fault {
	var out []manifest.Fault
	for _, f := range []*manifest.Fault{p.fault.Load(), p.rootFault.Load()} {
		if f != nil {
			out = append(out, *f)
		}
	}
	return out
}
