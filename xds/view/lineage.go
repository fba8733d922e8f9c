package view

import (
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/internal/weakmap"
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

	clusters  weakmap.Map[mesh.Hash, Cluster]
	endpoints weakmap.Map[mesh.Hash, Endpoints]
	listeners weakmap.Map[mesh.Hash, Listener]
	routes    weakmap.Map[mesh.Hash, Route]
	hosts     weakmap.Map[mesh.Hash, VirtualHost]
	tables    weakmap.Map[mesh.Hash, RouteTable]
	layers    weakmap.Map[mesh.Hash, Layer]

	count struct {
		viewsBuilt, viewsKept, layersBuilt                   atomic.Uint64
		clusters, endpoints, listeners, virtualHosts, tables atomic.Uint64
	}
}

// epoch is what one Index hands to the next as long as MeshConfig is the same,
// on which everything depends.
type epoch struct {
	*lineage
	config       *meshconfig.MeshConfig
	defaults     MeshDefaults
	trustDomains []string

	realms    memo[realmKey, *epoch, realm]
	services  memo[serviceInput, *epoch, serviceParts]
	backings  memo[backing, *epoch, backing]
	ports     content[portSet]
	labels    content[labelSet]
	taken     content[addressSet]
	inbound   digests[*inbound, *epoch, Layer]
	fixed     memo[fixedInput, *epoch, Layer]
	rules     hints[ruleID, Route]
	byDefault memo[defaultInput, sourced, Route]
	domains   memo[domainsInput, *epoch, domainsIn]
	recent    recentLayers
	scratch   sync.Pool // of *tableScratch
}

func newEpoch(l *lineage, mc *meshconfig.MeshConfig) *epoch {
	return &epoch{
		lineage: l, config: mc,
		defaults: MeshDefaults{
			ConnectTimeout: mc.GetConnectTimeout().AsDuration(),
			DNSRefreshRate: mc.GetDnsRefreshRate().AsDuration(),
			H2Upgrade:      mc.GetH2UpgradePolicy().String() == "UPGRADE",
			Keepalive:      mc.GetTcpKeepalive(),
		},
		trustDomains: slices.Compact(append([]string{mc.GetTrustDomain()}, mc.GetTrustDomainAliases()...)),
	}
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

// finished is a part with the hash of its content, or the one that there is already if
// it has the same.
func finished[T any, P interface {
	*T
	seal(h mesh.Hash)
}](all *weakmap.Map[mesh.Hash, T], kind string, p P) *T {
	h := contentHash(kind, p)
	p.seal(h)
	one, _ := all.Keep(h, p)
	return one
}

func (l *lineage) cluster(c *Cluster) *Cluster {
	l.count.clusters.Add(1)
	return finished(&l.clusters, "cluster", c)
}

func (l *lineage) loadAssignment(e *Endpoints) *Endpoints {
	l.count.endpoints.Add(1)
	return finished(&l.endpoints, "endpoints", e)
}

func (l *lineage) listener(p *Listener) *Listener {
	l.count.listeners.Add(1)
	return finished(&l.listeners, "listener", p)
}

func (l *lineage) route(r *Route) *Route { return finished(&l.routes, "route", r) }

func (l *lineage) virtualHost(h *VirtualHost) *VirtualHost {
	l.count.virtualHosts.Add(1)
	return finished(&l.hosts, "virtualhost", h)
}

func (l *lineage) table(t *RouteTable) *RouteTable {
	l.count.tables.Add(1)
	return finished(&l.tables, "routes", t)
}

// layer makes a layer of parts, which nobody writes to any more.
func (l *lineage) layer(name string, parts []Part) *Layer {
	h := hashLayer(name, parts)
	if have := l.layers.Get(h); have != nil {
		return have
	}
	out, added := l.layers.Keep(h, &Layer{Name: name, Parts: parts, hash: h})
	if added {
		l.count.layersBuilt.Add(1)
	}
	return out
}
