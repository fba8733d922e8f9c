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
	Generation  *stream.Generation // nil where a builder met a fault
	Diagnostics []envoy.Diagnostic
	Encryption  Encryption

	once   sync.Once
	layers []*layer
}

// resourcesKey is everything that Resources depend on.
type resourcesKey struct {
	hash mesh.Hash
	// hold makes Resources of their own: when removals are allowed again, streams
	// have to be told.
	hold   bool
	routes Routes
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
	encoded   shared[mesh.Hash, encoded]
	layers    shared[layerKey, layer]
	resources shared[resourcesKey, Resources]

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

	key resourcesKey
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
	key := resourcesKey{v.Class, x.Incomplete, r}
	if v == had.View {
		c.Work.ViewsKept.Add(1)
	} else {
		c.Work.ViewsBuilt.Add(1)
	}
	if had.Resources != nil && key == had.key {
		return Configuration{View: v, Resources: had.Resources, key: key}, nil
	}
	made := c.resources.get(key)
	made.once.Do(func() { c.fill(made, x.Snapshot, v, had.Resources, r) })
	if made.Generation == nil {
		return Configuration{}, fmt.Errorf("building the view of %q: another proxy of its class met a fault", p.ID)
	}
	return Configuration{View: v, Resources: made, key: key}, nil
}

// fill makes Resources from the layers of a view. Layers that are new are made from
// those of other Resources, where these have such: what the same proxy had before.
func (c *Cache) fill(made *Resources, s *mesh.Snapshot, v *view.View, before *Resources, r Routes) {
	was := map[string]*layer{}
	if before != nil {
		for _, l := range before.layers {
			was[l.source.Name] = l
		}
	}
	g := &stream.Generation{Number: s.Generation, HoldRemovals: s.Incomplete, Layers: make([]*stream.Layer, 0, len(v.Layers))}
	made.Encryption = EncryptionNA
	for _, vl := range v.Layers {
		l := c.layerOf(vl, r.of(vl), was[vl.Name])
		made.layers = append(made.layers, l)
		g.Layers = append(g.Layers, l.stream)
		made.Diagnostics = append(made.Diagnostics, l.diagnostics...)
		if l.encryption != EncryptionNA {
			made.Encryption = l.encryption
		}
	}
	made.Diagnostics = slices.Clip(append(made.Diagnostics, duplicates(g.Layers)...))
	made.Generation = g
	c.Work.Resources.Add(1)
}

// duplicates are the names that two layers have. Sets are compared by the smaller
// one: what is large is shared by many, and what is a proxy's own is small. Two
// route tables have none: what is in them begins with their names.
func duplicates(layers []*stream.Layer) []envoy.Diagnostic {
	var out []envoy.Diagnostic
	for i, l := range layers {
		for _, o := range layers[:i] {
			if isRoutes(l.Name) && isRoutes(o.Name) {
				continue
			}
			for url, a := range l.Types {
				b := o.Types[url]
				if a.Len() > b.Len() {
					a, b = b, a
				}
				for r := range a.All() {
					if b.Get(r.Name) != nil {
						out = append(out, duplicate(url, r.Name))
					}
				}
			}
		}
	}
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
	add := func(p *encoded, origins []*mesh.Origin) {
		for _, r := range p.resources {
			if r.url != url || out[r.Name] != nil || !wanted(r.Name) {
				continue
			}
			for _, o := range origins {
				out[r.Name] = append(out[r.Name], o.String())
			}
		}
	}
	for _, l := range res.layers {
		for i, vp := range l.source.Parts {
			add(l.parts[i], vp.Origins())
			t, ok := vp.(*view.RouteTable)
			if !ok {
				continue
			}
			for j, h := range t.Hosts {
				if j < len(l.hosts[i]) {
					add(l.hosts[i][j], h.Origins())
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
