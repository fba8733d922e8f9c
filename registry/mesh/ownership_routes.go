package mesh

import (
	"cmp"
	"slices"
)

// routes returns who owns a host that a bound source's VirtualService has routes for; nil
// if the source does.
func (o *owners) routes(source int, vs *VirtualService, h Hostname) *rival {
	return cached(o.cache, func(a *decisionCache) map[routeKey]*rival { return a.routes }, routeKey{vs, h}, func() *rival {
		return o.routesRival(source, vs, h)
	})
}

// routesSidecars is [routesSidecars], which reads all gateways, and is asked for each host.
func (o *owners) routesSidecars(vs *VirtualService) bool {
	return cached(o.cache, func(a *decisionCache) map[*VirtualService]bool { return a.sidecars }, vs, func() bool { return routesSidecars(vs) })
}

func (o *owners) routesRival(source int, vs *VirtualService, h Hostname) *rival {
	b := o.bindings[source]
	if b.covers(h) {
		return nil
	}
	if r := o.pattern(source, h); r != nil {
		return r
	}
	if isAddress(h) && o.routesSidecars(vs) {
		r := o.routesAddress(source, vs, h)
		seen := func(svc *Service) bool { return !o.isRestricted(source, svc) }
		if r == nil && !slices.ContainsFunc(o.claims[source].services.get(h), seen) {
			r = o.routedAtGateways(vs, h)
		}
		return r
	}
	if !h.IsWildcard() && o.owns(source, h) {
		return nil
	}
	declared, r := o.declaredElsewhere(source, vs, h)
	var partly *rival
	if r == nil && !declared {
		if r = o.notRouted(b, vs, h); r != nil && len(r.elsewhere) > 0 {
			r, partly = nil, r
		}
	}
	if r == nil {
		r = o.alias(source, vs.Namespace, h)
	}
	if r == nil {
		r = o.routedAtGateways(vs, h)
	}
	if r == nil && !declared && o.routesSidecars(vs) {
		r = o.routedElsewhere(vs, h)
	}
	return cmp.Or(r, partly)
}

// routedAtGateways looks for an unbound source that routes a host, or one below a wildcard, at gateways, if
// the VirtualService is for gateways, too. A wider wildcard of an unbound source takes no host from anybody: it
// may be the page for all hosts that nobody has.
func (o *owners) routedAtGateways(vs *VirtualService, h Hostname) *rival {
	if !routesGateways(vs) {
		return nil
	}
	var found *VirtualService
	note := func(other *VirtualService) bool {
		if other.Namespace != vs.Namespace && routesGateways(other) {
			found = other
		}
		return found == nil
	}
	for i := range o.claims {
		if o.bindings[i] != nil {
			continue
		}
		for _, x := range []*nameIndex[*VirtualService]{&o.claims[i].gateways, &o.claims[i].routes} {
			if more := x.find(h, false, note); more && h.IsWildcard() {
				x.order.below(h, func(below Hostname) bool { return x.find(below, false, note) })
			}
			if found != nil {
				return by(&found.Meta, "a source that is bound to no namespace and routes it at gateways")
			}
		}
	}
	return nil
}

// declaredElsewhere looks for services of a host that count. declared says that an unbound source has
// one in the VirtualService's namespace, which may route it; the rival is who has one in another namespace.
func (o *owners) declaredElsewhere(source int, vs *VirtualService, h Hostname) (declared bool, _ *rival) {
	if !h.IsWildcard() {
		if winners := o.winners(h); len(winners) > 0 {
			for _, svc := range winners {
				if svc.Namespace != vs.Namespace {
					return true, by(&svc.Meta, "namespace "+svc.Namespace)
				}
			}
			return true, nil
		}
	}
	var elsewhere *Service
	for i := range o.claims {
		if i == source {
			continue
		}
		o.claims[i].services.find(h, true, func(svc *Service) bool {
			x := svc.Hostname.canonical()
			switch {
			case x == h && !h.IsWildcard() || o.bindings[i] != nil && o.host(i, svc) != nil:
				return true // the one is a winner, or does not count, and the other is seen by nobody else
			case svc.Namespace != vs.Namespace && (o.bindings[i] == nil || !o.bindings[source].has(svc.Namespace) && !o.within(source, h, x)):
				elsewhere = svc
			case svc.Namespace == vs.Namespace && o.bindings[i] == nil && covering(x, h):
				declared = true
			}
			return elsewhere == nil
		})
		if elsewhere != nil {
			return true, by(&elsewhere.Meta, "namespace "+elsewhere.Namespace)
		}
	}
	return declared, nil
}

// within reports whether a name belongs to a source by a title, although it is below the wildcard of another:
// the narrower of the two titles counts.
func (o *owners) within(source int, h, wildcard Hostname) bool {
	own, _ := o.titled(o.bindings[source], h, "")
	return own && wildcard != h && covering(wildcard, h)
}

// forAll reports whether every namespace sees a service.
func (o *owners) forAll(svc *Service) bool { return audience(svc, o.defaults).all }

// winners are the services of a host that is no wildcard which count: those of
// unbound sources and, where some do not see them, of catalogs; else those of bound sources
// that own it.
func (o *owners) winners(h Hostname) []*Service {
	var written, derived []*Service
	for svc := range o.declared(h, false) {
		if svc.Catalog {
			derived = append(derived, svc)
		} else {
			written = append(written, svc)
		}
	}
	switch {
	case slices.ContainsFunc(written, o.forAll):
		return written
	case len(written)+len(derived) > 0:
		return append(written, derived...)
	}
	var out []*Service
	for i, b := range o.bindings {
		if b == nil {
			continue
		}
		for _, svc := range o.claims[i].services.get(h) {
			if o.service(i, svc) == nil {
				out = append(out, svc)
			}
		}
	}
	return out
}

// routedElsewhere looks for an unbound source that routes a host that no service has.
func (o *owners) routedElsewhere(vs *VirtualService, h Hostname) *rival {
	var found *VirtualService
	for i := range o.claims {
		if o.bindings[i] != nil {
			continue
		}
		o.claims[i].routes.find(h, true, func(other *VirtualService) bool {
			if other.Namespace != vs.Namespace {
				found = other
			}
			return found == nil
		})
		if found != nil {
			return by(&found.Meta, "namespace "+found.Namespace)
		}
	}
	return nil
}

// late reports whether a VirtualService of a bound source that may route a host
// comes behind those of others which may, too: an unbound source's, or those of the
// host's own source.
func (o *owners) late(source int, vs *VirtualService, h Hostname) bool {
	own := o.bindings[source].covers(h) || o.owns(source, h)
	for i := range o.claims {
		if i == source || o.bindings[i] != nil && (own || !o.bindings[i].covers(h) && !o.owns(i, h)) {
			continue
		}
		c := &o.claims[i]
		if o.routesSidecars(vs) && len(c.routes.get(h)) > 0 ||
			routesGateways(vs) && (len(c.gateways.get(h)) > 0 || slices.ContainsFunc(c.routes.get(h), routesGateways)) {
			return true
		}
	}
	return false
}
