package xds

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// class is what all proxies with equal views share. It holds its parts, and so
// keeps their bytes while a stream uses it.
type class struct {
	once        sync.Once
	generation  *stream.Generation
	parts       []*part
	diagnostics []envoy.Diagnostic
	encryption  Encryption
}

// part is the resources of one part of a view, built once.
type part struct {
	once        sync.Once
	resources   []envoy.Resource
	diagnostics []envoy.Diagnostic
	built       bool // false where the builder met a fault
}

type classKey struct {
	hash mesh.Hash
	// hold makes a class of its own: when removals are allowed again, streams
	// have to be told.
	hold bool
}

// classes makes views and shares what is equal in them.
type classes struct {
	slots chan struct{} // as many builds at a time as there are processors

	// last is the index that was made last, or nil: the next one takes over what
	// has not changed.
	last atomic.Pointer[view.Index]

	mu      sync.Mutex // guards all following fields
	of      *mesh.Snapshot
	index   func() *view.Index // of the snapshot of
	classes map[classKey]weak.Pointer[class]
	parts   map[mesh.Hash]weak.Pointer[part]
}

func newClasses() *classes {
	return &classes{
		slots:   make(chan struct{}, runtime.GOMAXPROCS(0)),
		classes: map[classKey]weak.Pointer[class]{},
		parts:   map[mesh.Hash]weak.Pointer[part]{},
	}
}

// get gives the class of a proxy, and its view's warnings. A fault in a
// builder is an error of this proxy alone: its last configuration stands.
func (c *classes) get(ctx context.Context, s *mesh.Snapshot, p view.Proxy) (cl *class, warnings []view.Warning, err error) {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	defer func() { <-c.slots }()
	defer func() {
		if r := recover(); r != nil {
			buf := make([]byte, 8<<10)
			err = fmt.Errorf("building the view of %q: panic: %v\n%s", p.ID, r, buf[:runtime.Stack(buf, false)])
		}
	}()
	v := c.indexOf(s)().Build(p)
	cl = c.classOf(classKey{v.Class, s.Incomplete})
	cl.once.Do(func() { c.fill(cl, s, v) })
	if cl.generation == nil {
		return nil, nil, fmt.Errorf("building the view of %q: another proxy of its class met a fault", p.ID)
	}
	return cl, v.Warnings, nil
}

// indexOf gives the index of a snapshot, which is made once.
func (c *classes) indexOf(s *mesh.Snapshot) func() *view.Index {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == s {
		return c.index
	}
	index := sync.OnceValue(func() *view.Index {
		x := c.last.Load().Next(s)
		c.last.Store(x)
		return x
	})
	if c.of == nil || s.Generation > c.of.Generation {
		c.of, c.index = s, index
		c.sweep()
	}
	return index
}

// sweep forgets what nobody holds any more. Called with mu held.
func (c *classes) sweep() {
	for k, p := range c.classes {
		if p.Value() == nil {
			delete(c.classes, k)
		}
	}
	for k, p := range c.parts {
		if p.Value() == nil {
			delete(c.parts, k)
		}
	}
}

func (c *classes) classOf(k classKey) *class {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl := c.classes[k].Value(); cl != nil {
		return cl
	}
	cl := &class{}
	c.classes[k] = weak.Make(cl)
	return cl
}

func (c *classes) partOf(h mesh.Hash) *part {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.parts[h].Value(); p != nil {
		return p
	}
	p := &part{}
	c.parts[h] = weak.Make(p)
	return p
}

// fill makes the generation of a class from the parts of a view.
func (c *classes) fill(cl *class, s *mesh.Snapshot, v *view.View) {
	g := &stream.Generation{
		Number:       s.Generation,
		HoldRemovals: s.Incomplete,
	}
	seen := map[stream.TypeURL]map[string]bool{}
	lists := map[stream.TypeURL][]*stream.Resource{}
	for vp := range v.Parts() {
		p := c.partOf(vp.Hash())
		p.once.Do(func() {
			p.resources, p.diagnostics = envoy.Build(vp)
			p.built = true
		})
		if !p.built { // without the part, what is made from it would be removed
			panic("a part of it met a fault when another proxy's view was built")
		}
		cl.parts = append(cl.parts, p)
		cl.diagnostics = append(cl.diagnostics, p.diagnostics...)
		refs := routesOf(vp)
		for _, r := range p.resources {
			t := stream.TypeURL(r.TypeURL)
			if seen[t] == nil {
				seen[t] = map[string]bool{}
			}
			if seen[t][r.Name] {
				cl.diagnostics = append(cl.diagnostics, envoy.Diagnostic{Message: fmt.Sprintf("two parts make the %s %q; the first one counts", t.Short(), r.Name)})
				continue
			}
			seen[t][r.Name] = true
			lists[t] = append(lists[t], stream.NewResource(t, stream.Resource{Name: r.Name, Version: r.Version, Body: r.Body, Refs: refs}))
		}
	}
	layer := &stream.Layer{Types: map[stream.TypeURL]*stream.Set{}}
	for t, list := range lists {
		layer.Types[t] = stream.NewSet(list)
	}
	g.Layers = []*stream.Layer{layer}
	cl.encryption = encryptionOf(v)
	cl.generation = g
}

// routesOf are the route configurations that a listener asks for.
func routesOf(p view.Part) []string {
	l, ok := p.(*view.Listener)
	if !ok {
		return nil
	}
	refs := []string{}
	for _, c := range l.Chains {
		refs = addRoute(refs, c)
	}
	return addRoute(refs, l.Default)
}

func addRoute(refs []string, c *view.Chain) []string {
	if c == nil || c.HTTP == nil || c.HTTP.RouteName == "" {
		return refs
	}
	return append(refs, c.HTTP.RouteName)
}

// Encryption says whether a proxy takes traffic for its application encrypted.
type Encryption string

// The kinds of Encryption.
const (
	EncryptionNone  Encryption = "none"  // plaintext only
	EncryptionMixed Encryption = "mixed" // both: PERMISSIVE
	EncryptionFull  Encryption = "mtls"  // mTLS only: STRICT
	EncryptionNA    Encryption = "-"     // it takes no traffic
)

func encryptionOf(v *view.View) Encryption {
	tls, plain := false, false
	for p := range v.Parts() {
		l, ok := p.(*view.Listener)
		if !ok || !l.Inbound {
			continue
		}
		for _, c := range l.Chains {
			if c.TCP != nil && c.TCP.Destinations[0].Cluster.Kind == view.BlackHoleCluster {
				continue
			}
			tls = tls || c.TLS != nil
			plain = plain || c.TLS == nil
		}
	}
	switch {
	case tls && plain:
		return EncryptionMixed
	case tls:
		return EncryptionFull
	case plain:
		return EncryptionNone
	default:
		return EncryptionNA
	}
}
