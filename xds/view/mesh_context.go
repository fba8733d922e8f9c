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

// Stats counts the work of an Index and of all its predecessors.
type Stats struct {
	// ViewsBuilt are views that differ from the previous view of their proxy. ViewsKept are
	// those that do not.
	ViewsBuilt, ViewsKept uint64
	// LayersBuilt are layers that no proxy had.
	LayersBuilt uint64
	// Parts that were computed, by type, including those that are equal to an existing
	// part. A virtual host is counted by itself, and its route configuration besides.
	Clusters, Endpoints, Listeners, VirtualHosts, RouteConfigurations uint64
	// Judged are the virtual hosts and listeners in which findings were looked for.
	Judged uint64
}

// Minus is the work since an earlier count.
func (s Stats) Minus(o Stats) Stats {
	return Stats{
		ViewsBuilt: s.ViewsBuilt - o.ViewsBuilt, ViewsKept: s.ViewsKept - o.ViewsKept,
		LayersBuilt: s.LayersBuilt - o.LayersBuilt,
		Clusters:    s.Clusters - o.Clusters, Endpoints: s.Endpoints - o.Endpoints, Listeners: s.Listeners - o.Listeners,
		VirtualHosts: s.VirtualHosts - o.VirtualHosts, RouteConfigurations: s.RouteConfigurations - o.RouteConfigurations, Judged: s.Judged - o.Judged,
	}
}

// internPool is what an Index passes to its successor, whatever changed: the settings, and
// one copy of all equal content.
type internPool struct {
	settings Settings
	seq      atomic.Uint64 // of the newest Index

	clusters            internedParts[Cluster, *Cluster]
	endpoints           internedParts[Endpoints, *Endpoints]
	telemetries         internedParts[Telemetry, *Telemetry]
	extensions          hashedMemo[extensionInput, *meshContext, Extension]
	listeners           internedParts[Listener, *Listener]
	names               internedParts[Name, *Name]
	routes              internedParts[Route, *Route]
	virtualHosts        internedParts[VirtualHost, *VirtualHost]
	routeConfigurations internedParts[RouteConfiguration, *RouteConfiguration]
	layers              weakmap.Map[mesh.Hash, Layer]

	count struct{ viewsBuilt, viewsKept, layersBuilt, judged atomic.Uint64 }
}

// meshContext is what an Index passes to its successor as long as MeshConfig, on which
// everything depends, stays the same. It has MeshConfig, and the caches of all that is
// built under it. Builders take it besides their own input.
type meshContext struct {
	*internPool
	config       *meshconfig.MeshConfig
	defaults     MeshDefaults
	trustDomains []string
	counts       bool // metrics of requests are a default of the mesh
	traces       bool // some proxies may trace requests
	// authorizers and collectors are hosts of extension providers: of those that policies ask,
	// and of those that get what proxies report.
	authorizers, collectors map[mesh.Hostname]bool

	scopes           memo[scopeKey, *meshContext, scopeState]
	serviceParts     memo[serviceInput, *meshContext, serviceParts]
	serviceWorkloads memo[serviceWorkloads, *meshContext, serviceWorkloads]
	portSets         interned[portSet]
	labelSets        interned[labelSet]
	networkTables    interned[networkTable]
	addressSets      interned[addressSet]
	headerSettings   interned[proxyHeaders]
	gatewayPolicies  interned[gatewayPolicies]
	targetSets       interned[portTargets]
	topologies       interned[proxyTopology]
	findingSets      interned[Findings]
	inboundLayers    hashedMemo[*inboundInput, *meshContext, Layer]
	fixedLayers      memo[fixedInput, *meshContext, Layer]
	routeHints       hints[routeHint, Route]
	defaultRoutes    memo[defaultRouteInput, routeContext, Route]
	serviceDomains   memo[serviceDomainsInput, *meshContext, serviceDomains]
	recentLayers     recentLayers
	scratch          sync.Pool // of *builderScratch
}

func newMeshContext(pool *internPool, config *meshconfig.MeshConfig) *meshContext {
	return &meshContext{
		internPool: pool, config: config,
		defaults: MeshDefaults{
			ConnectTimeout: config.GetConnectTimeout().AsDuration(),
			DNSRefreshRate: config.GetDnsRefreshRate().AsDuration(),
			H2Upgrade:      config.GetH2UpgradePolicy().String() == "UPGRADE",
			Keepalive:      config.GetTcpKeepalive(),
			ECDHCurves:     config.GetTlsDefaults().GetEcdhCurves(),
			CipherSuites:   config.GetTlsDefaults().GetCipherSuites(),
		},
		trustDomains: slices.Compact(append([]string{config.GetTrustDomain()}, config.GetTrustDomainAliases()...)),
		counts:       countsMetrics(config),
		traces:       tracesRequests(config),
		authorizers:  mesh.ProviderHosts(config, mesh.AuthorizerServices),
		collectors:   collectorHosts(config),
	}
}

// recentLayers are the latest layers of each name.
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

// named returns the recent layers of a name, the newest first.
func (r *recentLayers) named(name string) []*Layer {
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

// Stats returns the work up to now.
func (pool *internPool) Stats() Stats {
	c := &pool.count
	return Stats{
		ViewsBuilt: c.viewsBuilt.Load(), ViewsKept: c.viewsKept.Load(), LayersBuilt: c.layersBuilt.Load(),
		Clusters: pool.clusters.made.Load(), Endpoints: pool.endpoints.made.Load(), Listeners: pool.listeners.made.Load(),
		VirtualHosts: pool.virtualHosts.made.Load(), RouteConfigurations: pool.routeConfigurations.made.Load(), Judged: c.judged.Load(),
	}
}

// internedParts are the parts of one type that are in use, by the hash of their content.
type internedParts[T any, P interface {
	*T
	seal(h mesh.Hash)
}] struct {
	weakmap.Map[mesh.Hash, T]
	made atomic.Uint64 // including those that are equal to an existing part
}

// intern sets the hash of a part. It returns the existing part with the same hash, if there
// is one.
func (k *internedParts[T, P]) intern(p P) *T {
	k.made.Add(1)
	h := contentHash(reflect.TypeFor[T]().Name(), p)
	p.seal(h)
	one, _ := k.Keep(h, p)
	return one
}

// layer makes a layer of parts. The slice must not be written to afterwards.
func (pool *internPool) layer(name string, parts []Part) *Layer {
	h := hashLayer(name, parts)
	if have := pool.layers.Get(h); have != nil {
		return have
	}
	out, added := pool.layers.Keep(h, &Layer{Name: name, Parts: parts, hash: h})
	if added {
		pool.count.layersBuilt.Add(1)
	}
	return out
}
