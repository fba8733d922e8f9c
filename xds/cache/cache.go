package cache

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// Resources is everything that proxies with equal views are sent. It is immutable.
type Resources struct {
	Generation  *stream.Generation
	Diagnostics []envoy.Diagnostic
	Encryption  Encryption

	layers []*layer
}

// resourcesInput is everything that Resources are made from.
type resourcesInput struct {
	Stack *view.Stack
	// Hold makes separate Resources while removals are held: when they are allowed again,
	// streams have to be notified.
	Hold   bool
	Routes Routes
}

// Indexed is a snapshot with its index, which is made once.
type Indexed struct {
	*mesh.Snapshot
	index func() *view.Index
}

// Prepare makes the index, if it is not there yet.
func (x *Indexed) Prepare() { x.index() }

// Cache makes views, and shares equal content: encoded parts, layers and Resources. Each is
// found by its content, as long as somebody uses it.
type Cache struct {
	Work Work

	settings  view.Settings
	encoded   memo[*builder, encoded]
	layers    memo[layerContext, layer]
	resources memo[resourcesContext, Resources]

	mu        sync.Mutex // guards all following fields
	newest    *Indexed
	lastIndex *view.Index // or nil; the next index takes over what did not change
}

// New returns an empty cache.
func New(settings view.Settings) *Cache { return &Cache{settings: settings} }

// At indexes a snapshot. If there is a newer snapshot already, it returns that one: nobody
// goes back.
func (c *Cache) At(s *mesh.Snapshot) *Indexed {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.newest != nil && (c.newest.Snapshot == s || c.newest.Generation > s.Generation) {
		return c.newest
	}
	c.newest = &Indexed{Snapshot: s, index: sync.OnceValue(func() *view.Index { return c.indexOf(s) })}
	return c.newest
}

func (c *Cache) indexOf(s *mesh.Snapshot) *view.Index {
	c.mu.Lock()
	last := c.lastIndex
	c.mu.Unlock()
	var x *view.Index
	if last == nil {
		x = c.settings.NewIndex(s)
	} else {
		x = last.Next(s)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.newest == nil || s.Generation >= c.newest.Generation {
		c.lastIndex = x
	}
	return x
}

// Configuration is what a proxy should have. The next one reuses what did not change. The
// zero value is for a proxy that has nothing yet.
type Configuration struct {
	View      *view.View
	Resources *Resources
	// ReportedForms are the forms in which the proxy reports that it has route
	// configurations, by the names of their layers; or nil. They apply to the next
	// Configuration.
	ReportedForms map[string]vhds.Form

	input resourcesInput
}

// Get returns what a proxy should have, given what it had before. If nothing differs, the
// result is equal. A panic of a builder is an error for this proxy alone, which keeps its
// last configuration.
func (c *Cache) Get(x *Indexed, p view.Proxy, r Routes, had Configuration) (now Configuration, err error) {
	defer func() {
		if r := recover(); r != nil {
			buf := make([]byte, 8<<10)
			now, err = Configuration{}, fmt.Errorf("building the view of %q: panic: %v\n%s", p.ID, r, buf[:runtime.Stack(buf, false)])
		}
	}()
	v := x.index().Rebuild(had.View, p)
	r = r.keepForms(v, had)
	now = Configuration{View: v, Resources: had.Resources, input: resourcesInput{v.Stack, x.Incomplete, r}}
	if v == had.View {
		c.Work.ViewsKept.Add(1)
	} else {
		c.Work.ViewsBuilt.Add(1)
	}
	if now.input != had.input {
		now.Resources = c.resources.get(resourcesContext{c, x.Generation, had.Resources}, now.input)
	}
	return now, nil
}

// resourcesContext is what Resources are built with besides their input: the generation of
// the snapshot, and the proxy's previous Resources, or nil.
type resourcesContext struct {
	*Cache
	generation uint64
	prev       *Resources
}

func (in resourcesInput) build(c resourcesContext) Resources {
	was := map[string]*layer{}
	if c.prev != nil {
		for _, l := range c.prev.layers {
			was[l.Layer.Name] = l
		}
	}
	g := &stream.Generation{Number: c.generation, HoldRemovals: in.Hold, Layers: make([]*stream.Layer, 0, len(in.Stack.Layers))}
	out := Resources{Generation: g, Encryption: EncryptionNA}
	for _, vl := range in.Stack.Layers {
		l, of := was[vl.Name], layerInput{vl, in.Routes.of(vl)}
		if l == nil || l.layerInput != of {
			l = c.layers.get(layerContext{c.Cache, l}, of)
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

// VirtualHosts are the route configurations whose virtual hosts are sent by VHDS.
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

// Origins are the origins of the wanted resources of a type, by name.
func (res *Resources) Origins(url stream.TypeURL, wanted func(name string) bool) map[string][]string {
	out := map[string][]string{}
	for _, l := range res.layers {
		for i := range l.parts {
			for _, r := range l.served(i) {
				if r.url != url || out[r.Name] != nil || !wanted(r.Name) {
					continue
				}
				if l.routeConfiguration != nil && url == stream.VirtualHostType && i == len(l.routeConfiguration.VirtualHosts) {
					continue // the catch-all virtual host comes from no object
				}
				for _, o := range l.at(i).Origins() {
					out[r.Name] = append(out[r.Name], o.String())
				}
			}
		}
	}
	return out
}

// Encryption says whether a proxy accepts encrypted traffic for its application.
type Encryption string

// The kinds of Encryption.
const (
	EncryptionNone  Encryption = "none"  // plaintext only
	EncryptionMixed Encryption = "mixed" // both: PERMISSIVE
	EncryptionFull  Encryption = "mtls"  // mTLS only: STRICT
	EncryptionNA    Encryption = "-"     // it accepts no traffic
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
