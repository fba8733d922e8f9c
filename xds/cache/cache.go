package cache

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/fold"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// Resources is all that proxies with equal views are sent. Immutable.
type Resources struct {
	Generation  *stream.Generation
	Diagnostics []envoy.Diagnostic
	Encryption  Encryption

	layers []*layer
}

// resourcesInput is everything that Resources are made from.
type resourcesInput struct {
	Stack *view.Stack
	// Hold makes Resources of their own: when removals are allowed again, streams
	// have to be told.
	Hold   bool
	Routes Routes
}

// Indexed is a snapshot, and the index of it, which is made once.
type Indexed struct {
	*mesh.Snapshot
	index func() *view.Index
}

// Prepare makes the index, unless somebody has already.
func (x *Indexed) Prepare() { x.index() }

// Cache makes views and shares what is equal in them: encoded parts, layers of parts,
// and Resources of layers, each by its content and for as long as somebody uses it.
type Cache struct {
	Work Work

	settings  view.Settings
	encoded   shared[*builder, encoded]
	layers    shared[takeover, layer]
	resources shared[change, Resources]

	mu   sync.Mutex // guards all following fields
	now  *Indexed
	last *view.Index // or nil: the next one takes over what has not changed
}

// New makes a cache that has nothing.
func New(settings view.Settings) *Cache { return &Cache{settings: settings} }

// At indexes a snapshot; or the newest one, if there is a newer one already: what is
// made for it is kept, and nobody goes back.
func (c *Cache) At(s *mesh.Snapshot) *Indexed {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil && (c.now.Snapshot == s || c.now.Generation > s.Generation) {
		return c.now
	}
	c.now = &Indexed{Snapshot: s, index: sync.OnceValue(func() *view.Index { return c.indexOf(s) })}
	return c.now
}

func (c *Cache) indexOf(s *mesh.Snapshot) *view.Index {
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	var x *view.Index
	if last == nil {
		x = c.settings.NewIndex(s)
	} else {
		x = last.Next(s)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == nil || s.Generation >= c.now.Generation {
		c.last = x
	}
	return x
}

// Configuration is what a proxy shall have. The next one takes from it what did not
// change. The zero value is that of a proxy that has nothing yet.
type Configuration struct {
	View      *view.View
	Resources *Resources
	// Listed is how the proxy itself says that it has tables, by the names of their
	// layers; or nil. It counts for the next Configuration.
	Listed map[string]fold.Form

	from resourcesInput
}

// Get gives what a proxy shall have that had something before. Where nothing differs
// that is what it had. A fault in a builder is an error of this proxy alone: its last
// configuration stands.
func (c *Cache) Get(x *Indexed, p view.Proxy, r Routes, had Configuration) (now Configuration, err error) {
	defer func() {
		if r := recover(); r != nil {
			buf := make([]byte, 8<<10)
			now, err = Configuration{}, fmt.Errorf("building the view of %q: panic: %v\n%s", p.ID, r, buf[:runtime.Stack(buf, false)])
		}
	}()
	v := x.index().Rebuild(had.View, p)
	r = r.keeping(v, had)
	now = Configuration{View: v, Resources: had.Resources, from: resourcesInput{v.Stack, x.Incomplete, r}}
	if v == had.View {
		c.Work.ViewsKept.Add(1)
	} else {
		c.Work.ViewsBuilt.Add(1)
	}
	if now.from != had.from {
		now.Resources = c.resources.of(change{c, x.Generation, had.Resources}, now.from)
	}
	return now, nil
}

// change is how Resources are made for a snapshot, from what the same proxy had before,
// or nil.
type change struct {
	*Cache
	generation uint64
	before     *Resources
}

func (in resourcesInput) build(c change) Resources {
	was := map[string]*layer{}
	if c.before != nil {
		for _, l := range c.before.layers {
			was[l.Layer.Name] = l
		}
	}
	g := &stream.Generation{Number: c.generation, HoldRemovals: in.Hold, Layers: make([]*stream.Layer, 0, len(in.Stack.Layers))}
	out := Resources{Generation: g, Encryption: EncryptionNA}
	for _, vl := range in.Stack.Layers {
		l, of := was[vl.Name], layerInput{vl, in.Routes.of(vl)}
		if l == nil || l.layerInput != of {
			l = c.layers.of(takeover{c.Cache, l}, of)
		}
		out.layers = append(out.layers, l)
		g.Layers = append(g.Layers, l.stream)
		out.Diagnostics = append(out.Diagnostics, l.diagnostics...)
		if l.encryption != EncryptionNA {
			out.Encryption = l.encryption
		}
	}
	for url, name := range g.Duplicates() {
		out.Diagnostics = append(out.Diagnostics, duplicate(url, name))
	}
	out.Diagnostics = slices.Clip(out.Diagnostics)
	c.Work.Resources.Add(1)
	return out
}

// VirtualHosts are the tables whose virtual hosts travel by themselves.
func (res *Resources) VirtualHosts() []string {
	var out []string
	for _, l := range res.Generation.Layers {
		for r := range l.Types[stream.RouteType].All() {
			if r.Hosts {
				out = append(out, r.Name)
			}
		}
	}
	return out
}

// Origins are where the resources of a type come from that are wanted, by name.
func (res *Resources) Origins(url stream.TypeURL, wanted func(name string) bool) map[string][]string {
	out := map[string][]string{}
	for _, l := range res.layers {
		for i := range l.parts {
			for _, r := range l.served(i) {
				if r.url != url || out[r.Name] != nil || !wanted(r.Name) {
					continue
				}
				if l.table != nil && url == stream.VirtualHostType && i == len(l.table.VirtualHosts) {
					continue // nobody has written what is for everything else
				}
				for _, o := range l.at(i).Origins() {
					out[r.Name] = append(out[r.Name], o.String())
				}
			}
		}
	}
	return out
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

func encryptionOf(source *view.Layer) Encryption {
	tls, plain := false, false
	for _, p := range source.Parts {
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
