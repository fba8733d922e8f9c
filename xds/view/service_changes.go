package view

import (
	"cmp"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// maxServiceChanges is how many services are added or removed one by one. Each costs a
// search in all virtual hosts, so for more it is cheaper to build them all again.
const maxServiceChanges = 4

// isolated reports whether a service that was added, removed or changed affects its own
// clusters, virtual hosts and listeners only.
func (sc *sidecarScope) isolated(c mesh.Delta[*mesh.Service], next *proxyContext) bool {
	if len(sc.egress) != 1 || sc.egress[0].hasPort() {
		return false
	}
	host := hostOf(c)
	list := next.s.ServicesOn(host)
	if host.IsWildcard() || len(list) > 1 || len(list) == 1 && list[0] != c.New {
		return false // another service of the host takes its place, or shares it
	}
	return !slices.ContainsFunc(sc.egress[0].virtualServices, func(vs *virtualService) bool {
		if slices.ContainsFunc(vs.hosts, host.Overlaps) {
			return true
		}
		_, leads := slices.BinarySearchFunc(vs.destinations(sc.namespace()), host, compareDestination)
		return leads
	})
}

// revealsCatalogService reports whether a changed service hid, or will hide, a catalog's
// service of the same host that the scope includes.
func (sc *sidecarScope) revealsCatalogService(c mesh.Delta[*mesh.Service], next *proxyContext) bool {
	host := hostOf(c)
	for _, s := range []*mesh.Snapshot{sc.s, next.s} {
		for _, svc := range s.ServicesOn(host) {
			if svc != c.Old && svc != c.New && svc.Catalog && sc.includes(svc) {
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

// applyServiceChanges adds and removes isolated services.
func (ss *scopeState) applyServiceChanges(changes []mesh.Delta[*mesh.Service]) {
	if len(changes) == 0 {
		return
	}
	sc, e := ss.scope, ss.scope.egress[0]
	for _, c := range changes {
		if c.Old != nil {
			is := func(s *service) bool { return s.Service == c.Old }
			e.services = slices.DeleteFunc(e.services, is)
			if i := slices.IndexFunc(sc.services, is); i >= 0 {
				sc.services, ss.parts = slices.Delete(sc.services, i, i+1), slices.Delete(ss.parts, i, i+1)
			}
		}
		if c.New == nil || !sc.seesService(c.New, sc.namespace()) || !e.importsService(c.New) {
			continue
		}
		s := &service{Service: c.New, Ports: c.New.Ports}
		s.rule = sc.lookupRule(s)
		i, _ := slices.BinarySearchFunc(e.services, s, sc.compareRank)
		e.services = slices.Insert(e.services, i, s)
		i, _ = slices.BinarySearchFunc(sc.services, s.Hostname, compareHosts)
		sc.services, ss.parts = slices.Insert(sc.services, i, s), slices.Insert(ss.parts, i, sc.partsOf(s))
	}
	if ss.key.router || sc.egressProxy != nil { // else nothing leads to isolated services
		ss.clusterVersion++
	}
	ss.invalidateLayers()
}

// compareRank is the order of what a namespace sees.
func (sc *sidecarScope) compareRank(a, b *service) int {
	defaults := sc.config.GetDefaultServiceExportTo()
	class := func(s *service) int { return visibility(s.ExportTo, defaults, s.Namespace, sc.namespace()) }
	return cmp.Or(cmp.Compare(class(a), class(b)), comparePrecedence(a.Service, b.Service))
}

// applyServiceChanges adds and removes isolated services.
func (r *routingState) applyServiceChanges(sc *sidecarScope, changes []mesh.Delta[*mesh.Service]) {
	sc = r.scopeFor(sc)
	v := &routingView{listeners: r.view.listeners, warnings: r.view.warnings}
	if slices.ContainsFunc(changes, func(c mesh.Delta[*mesh.Service]) bool { return !r.listenersUnaffected(sc, c) }) {
		o := &outboundListenerBuilder{sc: sc, reserved: r.key.reserved.all(), prev: r.view.listenersByName()}
		listeners, names := o.listeners()
		if !slices.Equal(names, r.routeNames) {
			r.build(sc)
			return
		}
		v.listeners, v.warnings = sc.layer(ListenersLayer, listeners), o.warnings
	}
	changed := map[hostListID]bool{}
	for id, list := range r.hostLists {
		next := newVirtualHostBuilder(sc, id).withServiceChanges(list, changes)
		if next != list {
			r.hostLists[id], changed[id] = next, true
		}
	}
	r.rebuildRouteConfigurations(sc, changed, v)
}

// listenersUnaffected reports whether a service makes no difference to the listeners: other
// services need those of its ports too, and they are the same with and without it.
func (r *routingState) listenersUnaffected(sc *sidecarScope, c mesh.Delta[*mesh.Service]) bool {
	e := sc.egress[0]
	if e.spec.GetBind() != "" {
		return false
	}
	there := r.view.listenersByName()
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

// withServiceChanges returns a list with isolated services added and removed; the list
// itself if it has none of them.
func (b *virtualHostBuilder) withServiceChanges(list *virtualHostList, changes []mesh.Delta[*mesh.Service]) *virtualHostList {
	out := *list
	out.hosts = slices.Clone(list.hosts)
	b.prev = list
	changed := false
	for _, c := range changes {
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
			vh, ok := b.serviceHost(svc, p, &out)
			if !ok {
				return newVirtualHostBuilder(b.sc, b.id()).list(list)
			}
			i, _ := slices.BinarySearchFunc(out.hosts, vh.Name, compareNames)
			out.hosts, changed = slices.Insert(out.hosts, i, vh), true
		}
	}
	switch {
	case !changed || slices.Equal(out.hosts, list.hosts):
		return list
	case list.hasConflict || b.port == 0:
		return newVirtualHostBuilder(b.sc, b.id()).list(list)
	default:
		return &out
	}
}

// serviceHost is the virtual host of a service without a VirtualService. It reports false
// if one of its domains belongs to another virtual host.
func (b *virtualHostBuilder) serviceHost(svc *service, p mesh.Port, list *virtualHostList) (*VirtualHost, bool) {
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
	vh := &VirtualHost{Name: vhostName(d.name, p.Number), Domains: d.domains, Routes: []*Route{r}, NoAttemptCount: b.sc.headers.noAttemptCount()}
	if have := b.prev.find(vh.Name); have != nil && slices.Equal(have.Domains, vh.Domains) && slices.Equal(have.Routes, vh.Routes) {
		return have, true
	}
	vh.origins = originsOf(append(slices.Clone(r.origins), svc.Origin)...)
	return b.sc.virtualHosts.intern(vh), true
}
