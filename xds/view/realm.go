package view

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// realmKey is everything in a proxy that decides what it sees of the mesh.
type realmKey struct {
	namespace string
	sidecar   *mesh.Sidecar
	labels    *labelSet // those of its labels that make a difference; or nil
	router    bool
}

func (k realmKey) build(e *epoch) *realm { return &realm{epoch: e, key: k} }

// realm is what proxies see that see the same. It goes with the newest index and
// does again only what differs.
type realm struct {
	epoch *epoch
	key   realmKey

	mu sync.Mutex // guards all following fields, and routings and scopes below
	x  *Index     // that the rest is of; nil if there is none, or it is half done
	sc *scope
	// parts are those of sc.services, for proxies of no place.
	parts []*serviceParts
	local bool // the place of a proxy makes a difference

	routings memo[routingKey, *realm, routing]
	outs     memo[halfKey, *realm, half]
	// places are what proxies of each place have; if it makes no difference, all
	// have the zero place's. Halves keep them: a place goes with its proxies, for
	// they may name any number of places.
	places memo[placeKey, *realm, placed]
}

// placed is what the proxies of a place have of the services. Guarded by the
// realm's mu.
type placed struct {
	place          mesh.Locality
	*serviceLayers // nil if they are to be made anew
	// of are the realm's parts, and parts what there is here instead: else nobody
	// would hold them. Both are nil for the zero place.
	of, parts []*serviceParts
}

// placeKey is what a place is known by.
type placeKey struct{ mesh.Locality }

func (k placeKey) build(*realm) *placed { return &placed{place: k.Locality} }

type serviceLayers struct{ clusters, endpoints *Layer }

// halfKey is everything that a proxy's own requests depend on in a realm.
type halfKey struct {
	routingKey
	place mesh.Locality
}

func (k halfKey) build(r *realm) *half {
	o := &half{realm: r, key: k, fixed: r.epoch.fixed.of(r.epoch, fixedInput{router: r.key.router, mode: k.interception})}
	if !r.key.router {
		o.routing = r.routings.of(r, k.routingKey)
	}
	return o
}

// half is the half of a view that is about the proxy's own requests, as
// several proxies have it, from one index to the next.
type half struct {
	realm   *realm
	key     halfKey
	routing *routing // nil for routers
	fixed   *Layer
	placed  *placed // guarded by the realm's mu; nil until there is a view
	now     atomic.Pointer[halfAt]
}

type halfAt struct {
	seq  uint64
	view *outboundView
}

// outboundView is that half in one snapshot, or in several where it is the same.
type outboundView struct {
	serviceHalf
	*routingView

	stacks memo[stackInput, *outboundView, Stack]
}

// serviceHalf is its layers of what it may reach.
type serviceHalf struct{ clusters, endpoints, fixed *Layer }

// outboundOf finds the outbound half of a proxy.
func (st *site) outboundOf(taken []listenerKey) *half {
	rk := realmKey{
		namespace: st.namespace(), sidecar: st.sidecar, router: st.proxy.Type == Router,
		labels: st.chosenLabels(),
	}
	r := st.realms.of(st.epoch, rk)
	key := halfKey{place: st.proxy.Locality}
	if !rk.router { // gateways listen where Gateways say, which are not built yet
		key.routingKey = routingKey{interception: st.proxy.Interception, domain: st.domain}
		if taken = st.relevant(taken); len(taken) > 0 {
			key.taken = st.taken.of(addressSet{taken})
		}
	}
	return r.outs.of(r, key)
}

// chosenLabels are those of the proxy's labels that make a difference.
func (st *site) chosenLabels() *labelSet {
	if labels := st.labels.chosen(st.namespace(), st.proxy.Labels); len(labels) > 0 {
		return st.epoch.labels.of(labelSet{labels})
	}
	return nil
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
	if len(binds) == 0 {
		return nil
	}
	var out []listenerKey
	for _, k := range taken {
		if binds[k.Bind] || binds[wildcard] || k.Bind == wildcard {
			out = append(out, k)
		}
	}
	return out
}

// at is what it is in a snapshot. Equal proxies wait for the one that works it
// out.
func (o *half) at(x *Index) *outboundView {
	if now := o.now.Load(); now != nil && now.seq == x.seq {
		return now.view
	}
	r := o.realm
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.x != nil && r.x.seq > x.seq { // somebody is late
		aside := r.key.build(r.epoch)
		aside.advance(x)
		return aside.view(o.key.build(aside))
	}
	r.advance(x)
	v := r.view(o)
	if now := o.now.Load(); now != nil && now.view.same(v) {
		v = now.view
	}
	o.now.Store(&halfAt{x.seq, v})
	return v
}

func (v *outboundView) same(o *outboundView) bool {
	return v.serviceHalf == o.serviceHalf && v.routingView == o.routingView
}

// view puts together what is there. Called with mu held.
func (r *realm) view(o *half) *outboundView {
	o.placed = r.placedAt(o.key.place)
	l := r.layersFor(o.placed)
	v := &outboundView{serviceHalf: serviceHalf{l.clusters, l.endpoints, o.fixed}, routingView: &routingView{}}
	if o.routing != nil {
		if o.routing.view == nil {
			o.routing.build(r.sc)
		}
		v.routingView = o.routing.view
	}
	return v
}

// placedAt is what proxies of a place have. Called with mu held.
func (r *realm) placedAt(place mesh.Locality) *placed {
	if !r.local {
		place = mesh.Locality{}
	}
	return r.places.of(r, placeKey{place})
}

// layersFor are the layers of the services for proxies of a place. Called with
// mu held.
func (r *realm) layersFor(at *placed) *serviceLayers {
	if at.serviceLayers != nil {
		return at.serviceLayers
	}
	parts := r.parts
	if at.place != (mesh.Locality{}) {
		parts = r.partsIn(at)
		at.of, at.parts = slices.Clone(r.parts), parts
	}
	at.serviceLayers = &serviceLayers{
		clusters:  r.sc.gather(ClustersLayer, parts, func(p *serviceParts) []Part { return p.clusters }),
		endpoints: r.sc.gather(EndpointsLayer, parts, func(p *serviceParts) []Part { return p.endpoints }),
	}
	return at.serviceLayers
}

// partsIn are the parts for proxies of a place. What it was made from and is the
// same, is the same there too.
func (r *realm) partsIn(was *placed) []*serviceParts {
	sc := r.sc.in(was.place)
	have := func(i int) *serviceParts {
		if was.of[i] == r.parts[i] {
			return was.parts[i]
		}
		return nil
	}
	if len(was.of) != len(r.parts) {
		known := map[*serviceParts]*serviceParts{}
		for i, p := range was.of {
			if p.local {
				known[p] = was.parts[i]
			}
		}
		have = func(i int) *serviceParts { return known[r.parts[i]] }
	}
	parts := slices.Clone(r.parts)
	for i, p := range r.parts {
		if !p.local {
			continue
		}
		if parts[i] = have(i); parts[i] == nil {
			parts[i] = sc.partsOf(r.sc.services[i])
		}
	}
	return parts
}

// gather makes a layer of the parts of all services. As a rule another realm has
// the same: to see that costs less than to hash them.
func (x *Index) gather(name string, services []*serviceParts, of func(*serviceParts) []Part) *Layer {
	n := 0
	for _, p := range services {
		n += len(of(p))
	}
	for _, l := range x.recent.of(name) {
		if len(l.Parts) == n && madeOf(l.Parts, services, of) {
			return l
		}
	}
	parts := make([]Part, 0, n)
	for _, p := range services {
		parts = append(parts, of(p)...)
	}
	l := x.layer(name, parts)
	x.recent.add(l)
	return l
}

func madeOf(parts []Part, services []*serviceParts, of func(*serviceParts) []Part) bool {
	for _, p := range services {
		list := of(p)
		if len(list) > 0 && (len(list) > len(parts) || !slices.Equal(parts[:len(list)], list)) {
			return false
		}
		parts = parts[len(list):]
	}
	return len(parts) == 0
}

// in is the scope for proxies of a place.
func (sc *scope) in(place mesh.Locality) *scope {
	st, out := *sc.site, *sc
	st.proxy.Locality = place
	out.site = &st
	return &out
}

// advance goes on to an index. Called with mu held.
func (r *realm) advance(x *Index) {
	if r.x == x {
		return
	}
	prev := r.x
	r.x = nil // in case that something panics
	st := &site{Index: x, sidecar: r.key.sidecar, proxy: Proxy{
		Type: Sidecar, Labels: r.key.labels.all(), ServiceAccount: mesh.ServiceAccount{Namespace: r.key.namespace},
	}}
	if r.key.router {
		st.proxy.Type = Router
	}
	if prev == nil || !r.follow(prev, st) {
		r.rebuild(st)
	}
	r.x = x
}

// rebuild works everything out; what there is already is found again.
func (r *realm) rebuild(st *site) {
	r.sc = newScope(st, r.sc)
	parts := make([]*serviceParts, len(r.sc.services))
	for i, svc := range r.sc.services {
		parts[i] = r.sc.partsOf(svc)
	}
	r.parts = parts // and until here it held those of before
	r.partsChanged()
	for _, rt := range r.routings.All() {
		if rt.view != nil {
			rt.build(r.sc)
		}
	}
}

// partsChanged lets layers be made anew.
func (r *realm) partsChanged() {
	for _, at := range r.places.All() {
		at.serviceLayers = nil
	}
	r.local = slices.ContainsFunc(r.parts, func(p *serviceParts) bool { return p.local })
}

// follow makes the changes since prev where nothing but endpoints, rules and
// what routes do with requests has changed. It reports false where there is more
// to it.
func (r *realm) follow(prev *Index, st *site) bool {
	d := st.since(prev)
	if d.unknown {
		return false
	}
	sc := r.sc
	ns := r.key.namespace
	var swaps, moves []mesh.Delta[*mesh.Service]
	for _, c := range d.services {
		concerns := func(svc *mesh.Service) bool {
			return svc != nil && (svc.Namespace == ns || st.seesService(svc, ns)) && sc.wants(svc)
		}
		switch {
		case sc.unveils(c.Delta, st):
			return false
		case !concerns(c.Old) && !concerns(c.New):
		case c.alike:
			swaps = append(swaps, c.Delta)
		case len(moves) < maxMoves && sc.movable(c.Delta, st):
			moves = append(moves, c.Delta)
		default:
			return false
		}
	}
	var edits []mesh.Delta[*virtualService]
	for _, c := range d.routes {
		sees := func(vs *virtualService) bool {
			return vs != nil && st.seesRoutes(vs, ns) &&
				slices.ContainsFunc(sc.egress, func(e *egress) bool { return e.importsRoutes(vs) })
		}
		switch {
		case !sees(c.Old) && !sees(c.New):
		case !c.inPlace || !sc.leadsAlike(c.Delta, st.s):
			return false
		default:
			edits = append(edits, c.Delta)
		}
	}
	sc.site = st
	if len(swaps) > 0 {
		sc.swap(swaps)
	}
	r.move(moves)
	reroute := r.refresh(d)
	for _, c := range edits {
		sc.edit(c)
		reroute = reroute || c.Old.layer4() || c.New.layer4()
	}
	for _, rt := range r.routings.All() {
		switch {
		case rt.view == nil:
		case reroute || len(swaps) > 0 && len(rt.view.warnings) > 0: // origins move
			rt.build(sc)
		default:
			if len(moves) > 0 {
				rt.move(sc, moves)
			}
			if len(edits) > 0 {
				rt.edit(sc, edits)
			}
		}
	}
	return true
}

// refresh looks again at the services that a delta names. It reports whether
// that makes a difference to routes.
func (r *realm) refresh(d *delta) bool {
	sc := r.sc
	reroute, changed := false, false
	look := func(i int) {
		svc := sc.services[i]
		rule := sc.lookupRule(svc)
		reroute = reroute || !routesAlike(svc.rule, rule)
		svc.rule = rule
		if p := sc.partsOf(svc); p != r.parts[i] {
			r.parts[i], changed = p, true
		}
	}
	if d.allRules || len(d.peers) > 0 {
		for i, svc := range sc.services {
			if d.allRules || d.peers[svc.Namespace] {
				look(i)
			}
		}
	}
	for _, h := range d.hosts {
		if i, ok := slices.BinarySearchFunc(sc.services, h, compareHosts); ok {
			look(i)
		}
	}
	if changed {
		r.partsChanged()
	}
	return reroute
}

// swap puts the new state of services in the place of the old one.
func (sc *scope) swap(changes []mesh.Delta[*mesh.Service]) {
	with := map[*mesh.Service]*mesh.Service{}
	for _, c := range changes {
		with[c.Old] = c.New
	}
	each := func(list []*service) {
		for _, s := range list {
			if instead := with[s.Service]; instead != nil {
				if sameList(s.Ports, s.Service.Ports) {
					s.Ports = instead.Ports
				}
				s.Service = instead
			}
		}
	}
	each(sc.services)
	for _, e := range sc.egress {
		each(e.services)
	}
}

// edit puts the new state of a VirtualService in the place of the old one.
func (sc *scope) edit(c mesh.Delta[*virtualService]) {
	for _, e := range sc.egress {
		if i := slices.Index(e.virtualServices, c.Old); i >= 0 {
			e.virtualServices[i] = c.New
		}
	}
}

// leadsAlike reports whether the scope needs the same services for two states
// of a VirtualService, the new one in the next snapshot.
func (sc *scope) leadsAlike(c mesh.Delta[*virtualService], next *mesh.Snapshot) bool {
	from, to := c.Old.destinations(sc.namespace()), c.New.destinations(sc.namespace())
	differs := func(x, in []routeTo) bool {
		return slices.ContainsFunc(x, func(r routeTo) bool {
			if slices.ContainsFunc(in, func(o routeTo) bool { return o.host == r.host && slices.Equal(o.ports, r.ports) }) {
				return false
			}
			return !sc.imports(r.host) || !slices.Equal(sc.s.ServicesOn(r.host), next.ServicesOn(r.host))
		})
	}
	return !differs(from, to) && !differs(to, from)
}

// imports reports whether a host is there, or not there, whatever routes lead to
// it.
func (sc *scope) imports(h mesh.Hostname) bool {
	switch services := sc.s.ServicesOn(h); len(services) {
	case 0:
		return true
	case 1:
		svc := sc.find(h)
		return svc != nil && svc.whollySeen() &&
			slices.ContainsFunc(sc.egress, func(e *egress) bool { return slices.Contains(e.services, svc) })
	default:
		return false
	}
}
