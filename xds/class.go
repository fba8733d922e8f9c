package xds

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/fold"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// class is what all proxies with equal views share: a list of layers, which it
// holds.
type class struct {
	once        sync.Once
	generation  *stream.Generation // nil where a builder met a fault
	layers      []*layer
	diagnostics []envoy.Diagnostic
	encryption  Encryption
}

// classKey is everything that a class depends on.
type classKey struct {
	hash mesh.Hash
	// hold makes a class of its own: when removals are allowed again, streams
	// have to be told.
	hold  bool
	forms forms
}

// forms is how the route tables of a proxy travel.
type forms struct {
	all form
	// whole are the layers of tables that are whole all the same, after a refusal:
	// their names, each with a line break behind it. kept are those of tables that
	// stay in the form in which the proxy has them, where another one would be given
	// the other.
	whole, kept string
}

func (f forms) isWhole(layer string) bool { return lists(f.whole, layer) }

// lists reports whether a name is among some, each with a line break behind it.
func lists(names, name string) bool {
	return names != "" && strings.Contains("\n"+names, "\n"+name+"\n")
}

// of is how a layer travels. Those that have no route table are the same in all
// forms, and shared by proxies of all kinds.
func (f forms) of(l *view.Layer) form {
	t := tableOf(l)
	switch {
	case t == nil || f.isWhole(l.Name):
		return inOne
	case f.all != byHost:
		return f.all
	case fold.Split(len(t.Hosts), fold.Unknown) != lists(f.kept, l.Name):
		return allByHost
	default:
		return inOne
	}
}

// keeping is the forms with what a proxy keeps of what it had.
func (f forms) keeping(v *view.View, had sight) forms {
	f.kept = ""
	if f.all != byHost || had.class == nil && had.listed == nil {
		return f
	}
	for i, l := range v.Layers {
		t := tableOf(l)
		if t == nil {
			continue
		}
		n := len(t.Hosts)
		if fold.Split(n, had.has(i, l.Name)) != fold.Split(n, fold.Unknown) {
			f.kept += l.Name + "\n"
		}
	}
	return f
}

// tableOf is the route table that a layer consists of, or nil.
func tableOf(l *view.Layer) *view.RouteTable {
	if !isRoutes(l.Name) || len(l.Parts) != 1 {
		return nil
	}
	t, _ := l.Parts[0].(*view.RouteTable)
	return t
}

// isRoutes reports whether a layer is a route table.
func isRoutes(layer string) bool { return strings.HasPrefix(layer, view.RoutesLayer) }

// epoch is a snapshot, and the index of it, which is made once.
type epoch struct {
	snapshot *mesh.Snapshot
	index    func() *view.Index
}

// classes makes views and shares what is equal in them: parts, layers of parts,
// and classes of layers, each by its content and for as long as somebody uses it.
type classes struct {
	settings view.Settings
	work     work
	parts    shared[mesh.Hash, part]
	layers   shared[layerKey, layer]
	classes  shared[classKey, class]

	mu   sync.Mutex // guards all following fields
	now  *epoch
	last *view.Index // or nil: the next one takes over what has not changed
}

// at gives the epoch of a snapshot; of the newest one, if there is a newer one
// already: what is made for it is kept, and nobody goes back.
func (c *classes) at(s *mesh.Snapshot) *epoch {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil && (c.now.snapshot == s || c.now.snapshot.Generation > s.Generation) {
		return c.now
	}
	c.now = &epoch{snapshot: s, index: sync.OnceValue(func() *view.Index { return c.indexOf(s) })}
	return c.now
}

func (c *classes) indexOf(s *mesh.Snapshot) *view.Index {
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
	if c.now == nil || s.Generation >= c.now.snapshot.Generation {
		c.last = x
	}
	return x
}

// sight is what a proxy had before: what did not change is taken from it. Zero
// at first.
type sight struct {
	view  *view.View
	class *class
	key   classKey
	// listed is how the proxy itself says that it has tables, by the names of their
	// layers; or nil.
	listed map[string]fold.Form
}

// has is how the proxy had the table of a layer, which most likely stood at i.
func (s sight) has(i int, name string) fold.Form {
	if is, ok := s.listed[name]; ok {
		return is
	}
	if s.class == nil {
		return fold.Unknown
	}
	layers := s.class.layers
	if i >= len(layers) || layers[i].source.Name != name {
		i = slices.IndexFunc(layers, func(l *layer) bool { return l.source.Name == name })
	}
	switch {
	case i < 0:
		return fold.Unknown
	case layers[i].form == allByHost:
		return fold.InPieces
	default:
		return fold.Whole
	}
}

// get gives what a proxy shall have. Where nothing differs that is what it had.
// A fault in a builder is an error of this proxy alone: its last configuration
// stands.
func (c *classes) get(e *epoch, p view.Proxy, f forms, had sight) (now sight, err error) {
	defer func() {
		if r := recover(); r != nil {
			buf := make([]byte, 8<<10)
			now, err = sight{}, fmt.Errorf("building the view of %q: panic: %v\n%s", p.ID, r, buf[:runtime.Stack(buf, false)])
		}
	}()
	v := e.index().Rebuild(had.view, p)
	f = f.keeping(v, had)
	key := classKey{v.Class, e.snapshot.Incomplete, f}
	if v == had.view {
		c.work.kept.Add(1)
	} else {
		c.work.views.Add(1)
	}
	if had.class != nil && key == had.key {
		return sight{view: v, class: had.class, key: key}, nil
	}
	cl := c.classes.get(key)
	cl.once.Do(func() { c.fill(cl, e.snapshot, v, had.class, f) })
	if cl.generation == nil {
		return sight{}, fmt.Errorf("building the view of %q: another proxy of its class met a fault", p.ID)
	}
	return sight{view: v, class: cl, key: key}, nil
}

// fill makes the generation of a class from the layers of a view. Layers that
// are new are made from those of another class, where it has such: that of the
// same proxy before.
func (c *classes) fill(cl *class, s *mesh.Snapshot, v *view.View, before *class, f forms) {
	was := map[string]*layer{}
	if before != nil {
		for _, l := range before.layers {
			was[l.source.Name] = l
		}
	}
	g := &stream.Generation{Number: s.Generation, HoldRemovals: s.Incomplete, Layers: make([]*stream.Layer, 0, len(v.Layers))}
	cl.encryption = EncryptionNA
	for _, vl := range v.Layers {
		l := c.layerOf(vl, f.of(vl), was[vl.Name])
		cl.layers = append(cl.layers, l)
		g.Layers = append(g.Layers, l.stream)
		cl.diagnostics = append(cl.diagnostics, l.diagnostics...)
		if l.encryption != EncryptionNA {
			cl.encryption = l.encryption
		}
	}
	cl.diagnostics = slices.Clip(append(cl.diagnostics, doubles(g.Layers)...))
	cl.generation = g
	c.work.classes.Add(1)
}

// doubles are the names that two layers have. Sets are compared by the smaller
// one: what is large is shared by many, and what is a proxy's own is small. Two
// route tables have none: what is in them begins with their names.
func doubles(layers []*stream.Layer) []envoy.Diagnostic {
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
						out = append(out, doubleName(url, r.Name))
					}
				}
			}
		}
	}
	return out
}

// virtualHosts are the tables whose virtual hosts travel by themselves.
func (cl *class) virtualHosts() []string {
	var out []string
	for _, l := range cl.generation.Layers {
		for r := range l.Types[stream.RouteType].All() {
			if r.Hosts {
				out = append(out, r.Name)
			}
		}
	}
	return out
}

// origins are where the resources of a type come from that are wanted, by name.
func (cl *class) origins(url stream.TypeURL, wanted func(name string) bool) map[string][]string {
	out := map[string][]string{}
	add := func(p *part, origins []*mesh.Origin) {
		for _, r := range p.resources {
			if r.url != url || out[r.Name] != nil || !wanted(r.Name) {
				continue
			}
			for _, o := range origins {
				out[r.Name] = append(out[r.Name], o.String())
			}
		}
	}
	for _, l := range cl.layers {
		for i, vp := range l.source.Parts {
			add(l.parts[i], vp.Origins())
			t, ok := vp.(*view.RouteTable)
			if !ok {
				continue
			}
			for j, h := range t.Hosts {
				if j < len(l.pieces[i]) {
					add(l.pieces[i][j], h.Origins())
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
