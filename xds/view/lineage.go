package view

import (
	"reflect"
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

	clusters  parts[Cluster, *Cluster]
	endpoints parts[Endpoints, *Endpoints]
	listeners parts[Listener, *Listener]
	routes    parts[Route, *Route]
	hosts     parts[VirtualHost, *VirtualHost]
	tables    parts[RouteTable, *RouteTable]
	layers    weakmap.Map[mesh.Hash, Layer]

	count struct{ viewsBuilt, viewsKept, layersBuilt atomic.Uint64 }
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
		Clusters: l.clusters.made.Load(), Endpoints: l.endpoints.made.Load(), Listeners: l.listeners.made.Load(),
		VirtualHosts: l.hosts.made.Load(), Tables: l.tables.made.Load(),
	}
}

// parts are those of one kind that somebody has, by the hash of their content.
type parts[T any, P interface {
	*T
	seal(h mesh.Hash)
}] struct {
	weakmap.Map[mesh.Hash, T]
	made atomic.Uint64 // those too that turned out to be what is there already
}

// of is a part with the hash of its content, or the one that there is already if it has
// the same.
func (k *parts[T, P]) of(p P) *T {
	k.made.Add(1)
	h := contentHash(reflect.TypeFor[T]().Name(), p)
	p.seal(h)
	one, _ := k.Keep(h, p)
	return one
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
