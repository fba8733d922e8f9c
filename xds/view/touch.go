package view

import (
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// delta is what differs between two indexes of one epoch, as far as it matters to
// the requests that proxies make.
type delta struct {
	*mesh.Diff

	// unknown means that objects differ of a kind of which nobody said what becomes of
	// it here.
	unknown  bool
	services []serviceDelta
	routes   []routesDelta
	// hosts are the services whose endpoints or rules may be others; sorted.
	// allRules means that any service may have another rule.
	hosts    []mesh.Hostname
	allRules bool
	// peers are the namespaces in which other things are demanded of peers.
	peers map[string]bool
}

// serviceDelta is a service that differs. alike is set if nothing but its endpoints
// does, and how a client takes their identities.
type serviceDelta struct {
	mesh.Delta[*mesh.Service]
	alike bool
}

// routesDelta is a VirtualService that differs. inPlace is set if nothing does but
// what becomes of requests.
type routesDelta struct {
	mesh.Delta[*virtualService]
	inPlace bool
}

// since is what differs from another index of the epoch.
func (x *Index) since(prev *Index) *delta {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.deltas[prev.seq]
	if d == nil {
		d = between(prev, x)
		x.deltas[prev.seq] = d
	}
	return d
}

func between(prev, x *Index) *delta {
	diff := x.s.Since(prev.s)
	d := &delta{
		Diff:    diff,
		unknown: !diff.Only(followed()...),
		peers:   map[string]bool{},
	}
	for _, c := range mesh.DeltasOf[*mesh.Service](diff) {
		d.services = append(d.services, serviceDelta{c, c.Old != nil && c.New != nil && routedAlike(*c.Old, *c.New)})
	}
	for _, c := range mesh.DiffLists(prev.virtualServices, x.virtualServices, byAgeOfRoutes) {
		d.routes = append(d.routes, routesDelta{c, c.Old != nil && c.New != nil && routesInPlace(*c.Old, *c.New)})
	}
	hosts := map[mesh.Hostname]bool{}
	for svc := range objects(mesh.DeltasOf[*mesh.Service](diff)) {
		hosts[svc.Hostname] = true
	}
	for _, c := range mesh.DeltasOf[*mesh.Workload](diff) {
		if c.Old != nil {
			addHosts(hosts, prev.s.ServicesOf(c.Old))
		}
		if c.New != nil {
			addHosts(hosts, x.s.ServicesOf(c.New))
		}
	}
	for dr := range objects(mesh.DeltasOf[*mesh.DestinationRule](diff)) {
		h := mesh.Hostname(dr.Spec.GetHost())
		d.allRules = d.allRules || h.IsWildcard()
		hosts[h] = true
	}
	d.hosts = slices.Sorted(maps.Keys(hosts))
	for _, ns := range peersChanged(prev.authn, x.authn, x.s) {
		d.peers[ns] = true
	}
	return d
}

// followed are the kinds of which a delta says what the requests of proxies depend on;
// Sidecars choose the realm of a proxy, and what is Unenforced or a template of
// workloads has no part in its requests.
func followed() []reflect.Type {
	return []reflect.Type{
		reflect.TypeFor[*mesh.Service](), reflect.TypeFor[*mesh.Workload](), reflect.TypeFor[*mesh.VirtualService](),
		reflect.TypeFor[*mesh.DestinationRule](), reflect.TypeFor[*mesh.PeerAuthentication](),
		reflect.TypeFor[*mesh.Sidecar](), reflect.TypeFor[*mesh.Unenforced](), reflect.TypeFor[*mesh.WorkloadGroup](),
	}
}

func addHosts(hosts map[mesh.Hostname]bool, services []*mesh.Service) {
	for _, svc := range services {
		hosts[svc.Hostname] = true
	}
}

// peersChanged are the namespaces with services in which other things are
// demanded of peers.
func peersChanged(prev, next *authn, s *mesh.Snapshot) []string {
	if prev == next {
		return nil
	}
	seen := map[string]bool{}
	var out []string
	for _, svc := range s.Services {
		if ns := svc.Namespace; !seen[ns] {
			seen[ns] = true
			if prev.in(ns) != next.in(ns) {
				out = append(out, ns)
			}
		}
	}
	return out
}

// touch is what a snapshot touched, as seen by a proxy: without it a proxy's own
// part, and which shared part it has, are as they were.
type touch struct {
	seq, from  uint64
	all        bool
	namespaces map[string]bool
	addresses  map[string]bool
}

// maxTouched is how many snapshots a proxy may sleep through.
const maxTouched = 32

func appendTouch(list []*touch, t *touch) []*touch {
	if len(list) >= maxTouched {
		list = list[len(list)-maxTouched+1:]
	}
	return append(slices.Clip(list), t)
}

// concerns reports whether anything between the snapshot at which a proxy was
// looked at and this one may be the proxy's own.
func (x *Index) concerns(seq uint64, p *Proxy) bool {
	at := x.seq
	for i := len(x.touched) - 1; at != seq; i-- {
		if i < 0 || x.touched[i].seq != at || x.touched[i].is(p) {
			return true
		}
		at = x.touched[i].from
	}
	return false
}

func (t *touch) is(p *Proxy) bool {
	if t.all || t.namespaces[p.ServiceAccount.Namespace] {
		return true
	}
	if len(t.addresses) == 0 {
		return false
	}
	return slices.ContainsFunc(p.Addresses, func(a string) bool { return t.addresses[a] })
}

// touch is what differs from the index before. It names no kind but those for which
// less is touched than by any other.
func (x *Index) touch(prev *Index, d *delta) *touch {
	t := &touch{
		seq: x.seq, from: prev.seq, all: !same(prev.labels, x.labels),
		namespaces: map[string]bool{}, addresses: map[string]bool{},
	}
	for m := range d.Policies() {
		t.namespaces[m.Namespace] = true
		t.all = t.all || m.Namespace == x.s.RootNamespace()
	}
	for svc := range objects(mesh.DeltasOf[*mesh.Service](d.Diff)) {
		t.namespaces[svc.Namespace] = true // there is nothing that they serve elsewhere
	}
	for w := range objects(mesh.DeltasOf[*mesh.Workload](d.Diff)) {
		t.addresses[w.Address] = true
	}
	return t
}

// objects are those that differ, as they were and as they are.
func objects[T any](deltas []mesh.Delta[*T]) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, c := range deltas {
			if c.Old != nil && !yield(c.Old) || c.New != nil && !yield(c.New) {
				return
			}
		}
	}
}

// routedAlike reports whether a service is named, seen and reached in the same ways.
func routedAlike(a, b mesh.Service) bool {
	for _, svc := range []*mesh.Service{&a, &b} {
		svc.Meta = forRouting(svc.Meta)
		svc.Selector, svc.Inline = nil, nil
		svc.External, svc.SubjectAltNames = false, nil
	}
	return same(&a, &b)
}

// forRouting is what of an object's metadata decides where it stands among others.
func forRouting(m mesh.Meta) mesh.Meta {
	m.Origin, m.Hash = nil, mesh.Hash{}
	return m
}

// routesInPlace reports whether two states of a VirtualService differ in nothing
// but what they do with requests: all else stays where it is. Where they lead is for
// leadsAlike to say.
func routesInPlace(a, b virtualService) bool {
	x, y := *a.VirtualService, *b.VirtualService
	for _, vs := range []*mesh.VirtualService{&x, &y} {
		vs.Meta, vs.Spec = forRouting(vs.Meta), nil
	}
	for _, vs := range []*virtualService{&a, &b} {
		vs.VirtualService, vs.http, vs.delegates, vs.labels = nil, nil, false, nil
		vs.to, vs.fromNamespaces = nil, false
	}
	return same(&a, &b) && same(&x, &y)
}

func compareHosts(a *service, h mesh.Hostname) int {
	return strings.Compare(string(a.Hostname), string(h))
}
