package view

import (
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Stats counts the work that an Index, and those before it, have done.
type Stats struct {
	// ViewsBuilt differ from what their proxy had before; ViewsKept are those
	// that did not.
	ViewsBuilt, ViewsKept uint64
	// LayersBuilt are those that no proxy had.
	LayersBuilt uint64
	// Parts that were worked out, by kind, those too that turned out to be what
	// is there already. A virtual host counts for itself, its table besides.
	Clusters, Endpoints, Listeners, VirtualHosts, Tables uint64
}

// Minus is what was done since an earlier count.
func (s Stats) Minus(o Stats) Stats {
	return Stats{
		ViewsBuilt: s.ViewsBuilt - o.ViewsBuilt, ViewsKept: s.ViewsKept - o.ViewsKept,
		LayersBuilt: s.LayersBuilt - o.LayersBuilt,
		Clusters:    s.Clusters - o.Clusters, Endpoints: s.Endpoints - o.Endpoints, Listeners: s.Listeners - o.Listeners,
		VirtualHosts: s.VirtualHosts - o.VirtualHosts, Tables: s.Tables - o.Tables,
	}
}

// lineage is what one Index hands to the next, whatever changes: equal content
// is one pointer.
type lineage struct {
	settings Settings
	seq      atomic.Uint64 // of the newest Index

	clusters  weakMap[mesh.Hash, Cluster]
	endpoints weakMap[mesh.Hash, Endpoints]
	listeners weakMap[mesh.Hash, Listener]
	routes    weakMap[mesh.Hash, Route]
	hosts     weakMap[mesh.Hash, VirtualHost]
	tables    weakMap[mesh.Hash, RouteTable]
	layers    weakMap[layerKey, Layer]
	stacks    weakMap[mesh.Hash, stack]

	count struct {
		viewsBuilt, viewsKept, layersBuilt                   atomic.Uint64
		clusters, endpoints, listeners, virtualHosts, tables atomic.Uint64
	}
}

type layerKey struct {
	name string
	hash mesh.Hash
}

// stack is the layers of a view.
type stack struct {
	layers []*Layer
	class  mesh.Hash
}

// epoch is what one Index hands to the next as long as MeshConfig is the same,
// on which everything depends.
type epoch struct {
	*lineage
	realms   weakMap[realmKey, realm]
	services weakMap[serviceKey, serviceParts]
	inbound  weakMap[string, Layer]
	fixed    weakMap[Interception, Layer] // none for routers
	rules    weakMap[ruleID, Route]
	defaults weakMap[defaultID, Route]
	domains  weakMap[domainsKey, domainsIn]
	recent   recentLayers
	scratch  sync.Pool // of *tableScratch
}

// ruleID is what a route is made from, but for where its destinations are.
type ruleID struct {
	rule  *networking.HTTPRoute
	match *networking.HTTPMatchRequest
	retry *networking.HTTPRetry
	by    mesh.Key
	port  uint32
}

// defaultID is all that the default route of a service is made from.
type defaultID struct {
	host  mesh.Hostname
	port  uint32
	hash  *networking.LoadBalancerSettings_ConsistentHashLB
	retry *networking.HTTPRetry
}

// recentLayers are the last few layers of each name.
type recentLayers struct {
	mu   sync.Mutex // guards list
	list map[string][]weak.Pointer[Layer]
}

const maxRecent = 8

func (r *recentLayers) add(l *Layer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.list == nil {
		r.list = map[string][]weak.Pointer[Layer]{}
	}
	list := r.list[l.Name]
	list = append(list[max(0, len(list)+1-maxRecent):], weak.Make(l))
	r.list[l.Name] = list
}

// of are those of a name, the newest first.
func (r *recentLayers) of(name string) []*Layer {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*Layer
	for _, p := range slices.Backward(r.list[name]) {
		if l := p.Value(); l != nil {
			out = append(out, l)
		}
	}
	return out
}

// Stats tells what was done up to now.
func (l *lineage) Stats() Stats {
	c := &l.count
	return Stats{
		ViewsBuilt: c.viewsBuilt.Load(), ViewsKept: c.viewsKept.Load(), LayersBuilt: c.layersBuilt.Load(),
		Clusters: c.clusters.Load(), Endpoints: c.endpoints.Load(), Listeners: c.listeners.Load(),
		VirtualHosts: c.virtualHosts.Load(), Tables: c.tables.Load(),
	}
}

// The following finish a part: they give it its hash, and return the one that
// there is already if it has the same.

func (l *lineage) cluster(c *Cluster) *Cluster {
	l.count.clusters.Add(1)
	c.hash = contentHash("cluster", c)
	c, _ = l.clusters.keep(c.hash, c)
	return c
}

func (l *lineage) loadAssignment(e *Endpoints) *Endpoints {
	l.count.endpoints.Add(1)
	e.hash = contentHash("endpoints", e)
	e, _ = l.endpoints.keep(e.hash, e)
	return e
}

func (l *lineage) listener(p *Listener) *Listener {
	l.count.listeners.Add(1)
	p.hash = contentHash("listener", p)
	p, _ = l.listeners.keep(p.hash, p)
	return p
}

func (l *lineage) route(r *Route) *Route {
	r.hash = contentHash("route", r)
	r, _ = l.routes.keep(r.hash, r)
	return r
}

func (l *lineage) virtualHost(h *VirtualHost) *VirtualHost {
	l.count.virtualHosts.Add(1)
	h.hash = h.content()
	h, _ = l.hosts.keep(h.hash, h)
	return h
}

func (l *lineage) table(t *RouteTable) *RouteTable {
	l.count.tables.Add(1)
	t.hash = t.content()
	t, _ = l.tables.keep(t.hash, t)
	return t
}

// layer makes a layer of parts, which nobody writes to any more.
func (l *lineage) layer(name string, parts []Part) *Layer {
	h := hashParts(parts)
	key := layerKey{name, h}
	if have := l.layers.get(key); have != nil {
		return have
	}
	out, added := l.layers.keep(key, &Layer{Name: name, Parts: parts, hash: h})
	if added {
		l.count.layersBuilt.Add(1)
	}
	return out
}

// stackOf shares a list of layers between the views that have it.
func (l *lineage) stackOf(layers []*Layer) *stack {
	class := hashLayers(layers)
	if have := l.stacks.get(class); have != nil {
		return have
	}
	out, _ := l.stacks.keep(class, &stack{layers, class})
	return out
}
