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

// memo keeps what proxies of one snapshot have in common. It holds results of
// pure functions under everything that these depend on, so that it makes no
// difference but time; it ends with its Index.
type memo struct {
	outbound sync.Map // outboundKey to func() *outboundView
	ports    sync.Map // portKey to []Part
}

// outboundKey is everything that a proxy's own requests depend on.
type outboundKey struct {
	namespace    string
	sidecar      *mesh.Sidecar
	router       bool
	interception Interception
	place        mesh.Locality
	domain       string
	labels       string
	taken        string
}

// outboundView is the half of a view that is about the proxy's own requests.
type outboundView struct {
	clusters, listeners, tables []Part
	warnings                    []Warning
}

// outboundOf finds or makes the outbound half. Equal proxies wait for the one
// that makes it.
func (st *site) outboundOf(taken []listenerKey) *outboundView {
	key := outboundKey{
		namespace: st.namespace(), sidecar: st.sidecar, router: st.proxy.Type == Router,
		interception: st.proxy.Interception, place: st.proxy.Locality, domain: st.dnsDomain(), labels: st.labels(),
	}
	taken = st.relevant(taken)
	var b strings.Builder
	for _, k := range taken {
		b.WriteString(k.bind + " " + strconv.FormatUint(uint64(k.port), 10) + ",")
	}
	key.taken = b.String()
	once, _ := st.memo.outbound.LoadOrStore(key, sync.OnceValue(func() *outboundView {
		return newScope(st).outboundView(taken)
	}))
	get, _ := once.(func() *outboundView)
	return get()
}

func (sc *scope) outboundView(taken []listenerKey) *outboundView {
	out := &outboundView{clusters: append(sc.clusters(), sc.fixedClusters()...)}
	if sc.proxy.Type == Router { // gateways listen where Gateways say, which are not built yet
		return out
	}
	var names []string
	out.listeners, names = sc.outboundListeners(taken, &out.warnings)
	for _, name := range names {
		if t := sc.routeTable(name); t != nil {
			out.tables = append(out.tables, t)
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
