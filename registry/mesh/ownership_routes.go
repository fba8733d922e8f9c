package mesh

import "slices"

// routes returns who owns a host that a bound source's VirtualService has routes for; nil
// if the source does.
func (o *owners) routes(source int, vs *VirtualService, h Hostname) *rival {
	return cached(o.cache, func(a *decisionCache) map[routeKey]*rival { return a.routes }, routeKey{vs, h}, func() *rival {
		return o.routesRival(source, vs, h)
	})
}

func (o *owners) routesRival(source int, vs *VirtualService, h Hostname) *rival {
	b := o.bindings[source]
	if b.covers(h) {
		return nil
	}
	if r := o.pattern(source, h); r != nil {
		return r
	}
	if isAddress(h) && routesSidecars(vs) {
		return o.routesAddress(source, vs, h)
	}
	if !h.IsWildcard() {
		for _, svc := range o.claims[source].services.get(h) {
			if o.service(source, svc) == nil {
				return nil
			}
		}
	}
	if r := o.alias(source, vs.Namespace, h); r != nil {
		return r
	}
	if b.HostsOnly && !o.declaredIn(h, vs.Namespace) {
		return &rival{nil, "nobody whom the settings name"}
	}
	if declared, r := o.declaredElsewhere(source, vs, h); declared {
		return r
	}
	if r := o.routedAtGateways(vs, h); r != nil || !routesSidecars(vs) {
		return r
	}
	return o.routedElsewhere(source, vs, h)
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

// declaredIn reports whether an unbound source declares the host in a namespace.
func (o *owners) declaredIn(h Hostname, namespace string) bool {
	for other := range o.declared(h, false) {
		if other.Namespace == namespace {
			return true
		}
	}
	return false
}

// declaredElsewhere looks for services of a host. declared says that there are
// some of other sources; the rival is nil if they are of the VirtualService's
// namespace.
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
	// Of one host those that do not count are no rivals; and a wildcard of a bound
	// source takes none that is on record.
	owner, _ := o.record.Of(h)
	var elsewhere *Service
	for i := range o.claims {
		if i == source || o.bindings[i] != nil && !h.IsWildcard() && o.bindings[source].has(owner.Namespace) {
			continue
		}
		o.claims[i].services.find(h, true, func(svc *Service) bool {
			if svc.Hostname.canonical() == h && !h.IsWildcard() || o.bindings[i] != nil && o.host(i, svc) != nil {
				return true // the one is a winner, or does not count, and the other is seen by nobody else
			}
			declared = true
			if svc.Namespace != vs.Namespace && (o.bindings[i] == nil || !o.bindings[source].has(svc.Namespace)) {
				elsewhere = svc
			}
			return elsewhere == nil
		})
		if elsewhere != nil {
			return true, by(&elsewhere.Meta, "namespace "+elsewhere.Namespace)
		}
	}
	return declared, nil
}

// forAll reports whether every namespace sees a service.
func (o *owners) forAll(svc *Service) bool { return audience(svc, o.defaults).all }

// winners are the services of a host that is no wildcard which count: those of
// unbound sources and, where some do not see them, of catalogs; else those of the
// namespace that owns it.
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

// routedElsewhere looks for who else routes a host that no service has.
func (o *owners) routedElsewhere(source int, vs *VirtualService, h Hostname) *rival {
	b := o.bindings[source]
	for i := range o.claims {
		if i == source {
			continue
		}
		unbound := o.bindings[i] == nil
		var found *VirtualService
		o.claims[i].routes.find(h, true, func(other *VirtualService) bool {
			switch {
			case other.Namespace == vs.Namespace || !unbound && b.has(other.Namespace):
			case unbound:
				found = other
			case h.IsWildcard():
				for _, name := range other.Spec.GetHosts() {
					// What comes before is narrower, or of a namespace that does: the questions end.
					if x := Hostname(name).canonical(); x.Overlaps(h) && beats(x, other.Namespace, h, vs.Namespace) && o.routes(i, other, x) == nil {
						found = other
					}
				}
			}
			return found == nil
		})
		if found != nil {
			return by(&found.Meta, "namespace "+found.Namespace)
		}
	}
	if h.IsWildcard() {
		return o.recorded(b, h)
	}
	if o.ownWildcard(source, h) {
		return nil
	}
	return o.notOwner(b, h)
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
		if routesSidecars(vs) && len(c.routes.get(h)) > 0 ||
			routesGateways(vs) && (len(c.gateways.get(h)) > 0 || slices.ContainsFunc(c.routes.get(h), routesGateways)) {
			return true
		}
	}
	return false
}
