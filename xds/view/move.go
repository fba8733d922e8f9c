package view

import (
	"cmp"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// maxMoves is how many services are put in and out one by one: each costs a look
// at all hosts, and from some number on it is cheaper to make all of them anew.
const maxMoves = 4

// movable reports whether a service that came, went or changed stands for
// itself: nothing but its own clusters, hosts and listeners is concerned.
func (sc *scope) movable(c mesh.Delta[*mesh.Service], next *site) bool {
	if len(sc.egress) != 1 || sc.egress[0].hasPort() {
		return false
	}
	host := hostOf(c)
	alone := func(s *mesh.Snapshot, svc *mesh.Service) bool {
		list := s.ServicesOn(host)
		return len(list) == 0 || len(list) == 1 && list[0] == svc
	}
	if host.IsWildcard() || !alone(sc.s, c.Old) || !alone(next.s, c.New) {
		return false
	}
	return !slices.ContainsFunc(sc.egress[0].virtualServices, func(vs *virtualService) bool {
		if slices.ContainsFunc(vs.hosts, host.Overlaps) {
			return true
		}
		_, leads := slices.BinarySearchFunc(vs.destinations(sc.namespace()), host, compareTo)
		return leads
	})
}

// unveils reports whether a change of a service may show, or hide, a catalog's
// of the same host, which the scope may want though it does not want the other.
func (sc *scope) unveils(c mesh.Delta[*mesh.Service], next *site) bool {
	host := hostOf(c)
	for _, s := range []*mesh.Snapshot{sc.s, next.s} {
		for _, svc := range s.ServicesOn(host) {
			if svc != c.Old && svc != c.New && svc.Catalog && sc.wants(svc) {
				return true
			}
		}
	}
	return false
}

func hostOf(c mesh.Delta[*mesh.Service]) mesh.Hostname {
	if c.Old != nil {
		return c.Old.Hostname
	}
	return c.New.Hostname
}

// move puts services in and out.
func (r *realm) move(moves []mesh.Delta[*mesh.Service]) {
	if len(moves) == 0 {
		return
	}
	sc, e := r.sc, r.sc.egress[0]
	for _, c := range moves {
		if c.Old != nil {
			is := func(s *service) bool { return s.Service == c.Old }
			e.services = slices.DeleteFunc(e.services, is)
			if i := slices.IndexFunc(sc.services, is); i >= 0 {
				sc.services, r.parts = slices.Delete(sc.services, i, i+1), slices.Delete(r.parts, i, i+1)
			}
		}
		if c.New == nil || !sc.seesService(c.New, sc.namespace()) || !e.importsService(c.New) {
			continue
		}
		s := &service{Service: c.New, Ports: c.New.Ports}
		s.rule = sc.lookupRule(s)
		i, _ := slices.BinarySearchFunc(e.services, s, sc.byRank)
		e.services = slices.Insert(e.services, i, s)
		i, _ = slices.BinarySearchFunc(sc.services, s.Hostname, compareHosts)
		sc.services, r.parts = slices.Insert(sc.services, i, s), slices.Insert(r.parts, i, sc.partsOf(s))
	}
	r.partsChanged()
}

// byRank is the order of what a namespace sees.
func (sc *scope) byRank(a, b *service) int {
	defaults := sc.config.GetDefaultServiceExportTo()
	class := func(s *service) int { return visibility(s.ExportTo, defaults, s.Namespace, sc.namespace()) }
	return cmp.Or(cmp.Compare(class(a), class(b)), byPrecedence(a.Service, b.Service))
}

// move makes the changes that services bring which stand for themselves.
func (r *routing) move(sc *scope, moves []mesh.Delta[*mesh.Service]) {
	sc = r.scopeOf(sc)
	v := &routingView{listeners: r.view.listeners, warnings: r.view.warnings}
	if slices.ContainsFunc(moves, func(c mesh.Delta[*mesh.Service]) bool { return !r.listensAlready(sc, c) }) {
		o := &outbound{sc: sc, taken: r.key.taken.all(), prev: r.view.byName()}
		listeners, names := o.listeners()
		names = slices.DeleteFunc(names, func(name string) bool {
			_, _, ok := sc.listOf(name)
			return !ok
		})
		if !slices.Equal(names, r.names) {
			r.build(sc)
			return
		}
		v.listeners, v.warnings = sc.layer(ListenersLayer, listeners), o.warnings
	}
	touched := map[listID]bool{}
	for id, list := range r.lists {
		next := newTableBuilder(sc, id).moved(list, moves)
		if next != list {
			r.lists[id], touched[id] = next, true
		}
	}
	r.relist(sc, touched, v)
}

// listensAlready reports whether a service makes no difference to listeners:
// those of its ports are there for others, and the same with it or without.
func (r *routing) listensAlready(sc *scope, c mesh.Delta[*mesh.Service]) bool {
	e := sc.egress[0]
	if e.listener.GetBind() != "" {
		return false
	}
	there := r.view.byName()
	plain := func(svc *mesh.Service, p mesh.Port) bool {
		return (p.Protocol == mesh.HTTP || p.Protocol == mesh.HTTP2 || p.Protocol == mesh.GRPC) &&
			svc.Resolution != mesh.ResolutionDynamicDNS
	}
	for _, svc := range []*mesh.Service{c.Old, c.New} {
		if svc == nil {
			continue
		}
		for _, p := range svc.Ports {
			if !plain(svc, p) {
				return false
			}
			others := false
			if there[listenerName(wildcard, p.Number)] == nil {
				return false
			}
			for _, s := range e.services {
				q, ok := s.port(p.Number)
				if ok && !plain(s.Service, q) {
					return false
				}
				others = others || ok && s.Service != c.New
			}
			if !others {
				return false
			}
		}
	}
	return true
}

// moved is a list with services put in and out that stand for themselves; the
// list itself if it has none of them.
func (b *tableBuilder) moved(list *hostList, moves []mesh.Delta[*mesh.Service]) *hostList {
	out := *list
	out.hosts = slices.Clone(list.hosts)
	b.prev = list
	changed := false
	for _, c := range moves {
		if c.Old != nil {
			n := len(out.hosts)
			out.hosts = slices.DeleteFunc(out.hosts, func(vh *VirtualHost) bool {
				return slices.ContainsFunc(c.Old.Ports, func(p mesh.Port) bool { return vh.Name == vhostName(string(c.Old.Hostname), p.Number) })
			})
			changed = changed || len(out.hosts) != n
		}
		if c.New == nil {
			continue
		}
		svc := b.service(c.New.Hostname)
		if svc == nil {
			continue
		}
		for _, p := range svc.Ports {
			if !routable(p) {
				continue
			}
			vh, ok := b.host(svc, p, &out)
			if !ok {
				return newTableBuilder(b.sc, b.id()).list(list)
			}
			i, _ := slices.BinarySearchFunc(out.hosts, vh.Name, compareNames)
			out.hosts, changed = slices.Insert(out.hosts, i, vh), true
		}
	}
	switch {
	case !changed || slices.Equal(out.hosts, list.hosts):
		return list
	case list.crowded || b.port == 0:
		return newTableBuilder(b.sc, b.id()).list(list)
	default:
		return &out
	}
}

// host is the virtual host of a service that no VirtualService takes. It reports
// false if one of its names is another's.
func (b *tableBuilder) host(svc *service, p mesh.Port, list *hostList) (*VirtualHost, bool) {
	d := b.domainsOf(svc, p.Number)
	lower := make([]string, len(d.domains))
	for i, domain := range d.domains {
		lower[i] = strings.ToLower(domain)
		if slices.Contains(lower[:i], lower[i]) {
			return nil, false
		}
	}
	for _, have := range list.hosts {
		for _, domain := range have.Domains {
			if slices.Contains(lower, strings.ToLower(domain)) {
				return nil, false
			}
		}
	}
	r := b.defaultRoute(svc, p.Number)
	vh := &VirtualHost{Name: vhostName(d.name, p.Number), Domains: d.domains, Routes: []*Route{r}}
	if have := b.prev.find(vh.Name); have != nil && slices.Equal(have.Domains, vh.Domains) && slices.Equal(have.Routes, vh.Routes) {
		return have, true
	}
	vh.origins = originsOf(append(slices.Clone(r.origins), svc.Origin)...)
	return b.sc.hosts.of(vh), true
}
