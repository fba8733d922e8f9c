package view

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// memo keeps what proxies have in common. It holds results of pure functions
// under everything that these depend on, so that it makes no difference but
// time.
type memo struct {
	outbound sync.Map // outboundKey to func() *outboundView; of this Index alone
	routing  cache    // routingKey to func() *routingView
	ports    cache    // portKey to []Part
}

// cache finds what this Index, or the one before, has worked out. What neither
// of two in a row needs is forgotten.
type cache struct{ now, before *sync.Map }

func newCache(before *sync.Map) cache { return cache{now: &sync.Map{}, before: before} }

// get finds a value, or keeps the other one if that is not nil.
func (c *cache) get(key, otherwise any) any {
	if have, ok := c.now.Load(key); ok {
		return have
	}
	if c.before != nil {
		if have, ok := c.before.Load(key); ok {
			otherwise = have
		}
	}
	if otherwise == nil {
		return nil
	}
	have, _ := c.now.LoadOrStore(key, otherwise)
	return have
}

// routingKey is everything that the routing of a proxy depends on, as long as
// nothing but workloads and policies for peers changes in the mesh.
type routingKey struct {
	namespace    string
	sidecar      *mesh.Sidecar
	interception Interception
	domain       string
	labels       string
	taken        string
}

// outboundKey is everything that a proxy's own requests depend on in one
// snapshot.
type outboundKey struct {
	routingKey
	router bool
	place  mesh.Locality
}

// outboundView is the half of a view that is about the proxy's own requests.
type outboundView struct {
	clusters, endpoints, fixed *Layer
	*routingView
}

// outboundOf finds or makes the outbound half. Equal proxies wait for the one
// that makes it.
func (st *site) outboundOf(taken []listenerKey) *outboundView {
	taken = st.relevant(taken)
	var b strings.Builder
	for _, k := range taken {
		b.WriteString(k.bind + " " + strconv.FormatUint(uint64(k.port), 10) + ",")
	}
	key := outboundKey{
		routingKey: routingKey{
			namespace: st.namespace(), sidecar: st.sidecar, interception: st.proxy.Interception,
			domain: st.dnsDomain(), labels: st.labels(), taken: b.String(),
		},
		router: st.proxy.Type == Router, place: st.proxy.Locality,
	}
	once, _ := st.memo.outbound.LoadOrStore(key, sync.OnceValue(func() *outboundView {
		sc := newScope(st)
		out := &outboundView{fixed: newLayer(FixedLayer, sc.fixedClusters()), routingView: &routingView{}}
		out.clusters, out.endpoints = split(sc.clusters())
		if !key.router { // gateways listen where Gateways say, which are not built yet
			out.routingView = sc.routingOf(key.routingKey, taken)
		}
		return out
	}))
	get, _ := once.(func() *outboundView)
	return get()
}

// routingView is the part of a view by which the proxy's own requests find their
// clusters. Endpoints have no part in it.
type routingView struct {
	listeners *Layer
	tables    []*Layer
	warnings  []Warning
}

// split sorts the parts of services into clusters and endpoints.
func split(parts []Part) (clusters, endpoints *Layer) {
	var c, e []Part
	for _, p := range parts {
		if _, ok := p.(*Endpoints); ok {
			e = append(e, p)
		} else {
			c = append(c, p)
		}
	}
	return newLayer(ClustersLayer, c), newLayer(EndpointsLayer, e)
}

func (sc *scope) routingOf(key routingKey, taken []listenerKey) *routingView {
	get, _ := sc.memo.routing.get(key, sync.OnceValue(func() *routingView { return sc.routing(taken) })).(func() *routingView)
	return get()
}

func (sc *scope) routing(taken []listenerKey) *routingView {
	out := &routingView{}
	listeners, names := sc.outboundListeners(taken, &out.warnings)
	out.listeners = newLayer(ListenersLayer, listeners)
	for _, name := range names {
		if t := sc.routeTable(name); t != nil {
			out.tables = append(out.tables, newLayer(RoutesLayer+name, []Part{t}))
		}
	}
	return out
}

// relevant are those addresses that an outbound listener could want. Where none
// binds there are none.
func (st *site) relevant(taken []listenerKey) []listenerKey {
	binds := map[string]bool{}
	add := func(bind string) { binds[cmp.Or(bind, localhost)] = true }
	var listeners []*networking.IstioEgressListener
	if st.sidecar != nil {
		listeners = st.sidecar.Spec.GetEgress()
	}
	for _, l := range listeners {
		if st.proxy.Interception == InterceptNone || l.GetCaptureMode() == networking.CaptureMode_NONE {
			add(l.GetBind())
		}
	}
	if len(listeners) == 0 && st.proxy.Interception == InterceptNone {
		add("")
	}
	var out []listenerKey
	for _, k := range taken {
		if binds[k.bind] || binds[wildcard] || (k.bind == wildcard && len(binds) > 0) {
			out = append(out, k)
		}
	}
	return out
}

// labels are those of the proxy that any selection looks at.
func (st *site) labels() string {
	var b strings.Builder
	for _, k := range st.labelKeys {
		if v, ok := st.proxy.Labels[k]; ok {
			b.WriteString(strconv.Quote(k) + "=" + strconv.Quote(v) + ",")
		}
	}
	return b.String()
}

// labelKeys are the labels by which rules and routes choose their clients.
func labelKeys(s *mesh.Snapshot, routes []*virtualService) []string {
	keys := map[string]bool{}
	add := func(m map[string]string) {
		for k := range m {
			keys[k] = true
		}
	}
	for _, dr := range s.DestinationRules {
		add(dr.Spec.GetWorkloadSelector().GetMatchLabels())
	}
	for _, vs := range routes {
		for _, r := range vs.http {
			for _, m := range r.GetMatch() {
				add(m.GetSourceLabels())
			}
		}
		for _, r := range vs.Spec.GetTcp() {
			for _, m := range r.GetMatch() {
				add(m.GetSourceLabels())
			}
		}
		for _, r := range vs.Spec.GetTls() {
			for _, m := range r.GetMatch() {
				add(m.GetSourceLabels())
			}
		}
	}
	return slices.Sorted(maps.Keys(keys))
}
