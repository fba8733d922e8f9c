package mesh

import (
	"cmp"
	"slices"
)

// addressClass is the way in which an address is claimed; the lower one wins.
type addressClass uint8

const (
	// instanceThere: a catalog has an instance there.
	instanceThere addressClass = iota
	// addressDeclared: a service has it among its addresses.
	addressDeclared
	// endpointThere: a workload is there, or an endpoint of a service. It is a machine of
	// the namespace, whether others see the service or not.
	endpointThere
	// addressNamed: it is the host of a service.
	addressNamed
)

// addressClaim is the claim of a namespace to exactly one address or range.
type addressClaim struct {
	name      Hostname
	class     addressClass
	namespace string
	meta      *Meta
}

// compareAddressClaims is the precedence of claims to overlapping addresses that are not on
// record: the narrower wins, so a range gets what has no owner.
func compareAddressClaims(a, b addressClaim) int {
	return cmp.Or(compareWidth(a.name, b.name), cmp.Compare(a.class, b.class), cmp.Compare(a.namespace, b.namespace))
}

func (c addressClaim) rival() *rival {
	switch c.class {
	case instanceThere:
		return by(c.meta, "the catalog, which has an instance there,")
	case endpointThere:
		return by(c.meta, "namespace "+c.namespace+", which has an endpoint there,")
	default:
		return by(c.meta, "namespace "+c.namespace+", whose service has it,")
	}
}

// isInstance reports whether a workload of an unbound source is an instance of a catalog's
// service: anybody who can register with the catalog can add it.
func isInstance(w *Workload) bool { return w.Labels[LabelConsulService] != "" }

// standing reports whether a bound source's service may have its names, apart from
// addresses of other bound sources. If not, no other namespace sees it, and it owns no
// address.
func (o *owners) standing(source int, svc *Service) bool {
	return cached(o.cache, func(a *decisionCache) map[*Service]bool { return a.standing }, svc, func() bool {
		return o.host(source, svc) == nil && !slices.ContainsFunc(addressNames(svc), func(a Hostname) bool {
			return o.barred(source, svc.Namespace, a) != nil
		})
	})
}

// claimsAt are the claims of one source to exactly one address: one for each namespace and
// class, in no particular order. For an unbound source they are the instances of catalogs;
// everything else bars others anyway.
func (o *owners) claimsAt(source int, a Hostname) []addressClaim {
	return cached(o.cache, func(a *decisionCache) map[claimKey][]addressClaim { return a.claims }, claimKey{source, a}, func() []addressClaim {
		return o.findClaims(source, a)
	})
}

func (o *owners) findClaims(source int, a Hostname) []addressClaim {
	b, c := o.bindings[source], &o.claims[source]
	var out []addressClaim
	add := func(class addressClass, m *Meta, counts func() bool) {
		if !slices.ContainsFunc(out, func(x addressClaim) bool { return x.class == class && x.namespace == m.Namespace }) && counts() {
			out = append(out, addressClaim{a, class, m.Namespace, m})
		}
	}
	free := func(m *Meta) func() bool { return func() bool { return o.barred(source, m.Namespace, a) == nil } }
	for _, w := range c.workloads.get(a) {
		switch {
		case b != nil:
			add(endpointThere, &w.Meta, free(&w.Meta))
		case isInstance(w):
			add(instanceThere, &w.Meta, func() bool { return true })
		}
	}
	if b == nil || b.HostsOnly {
		return out
	}
	for _, svc := range c.addresses.get(a) {
		class := addressNamed
		if declaresAddress(svc, a) {
			class = addressDeclared
		}
		add(class, &svc.Meta, func() bool { return o.standing(source, svc) })
	}
	for _, svc := range c.inline.get(a) {
		add(endpointThere, &svc.Meta, free(&svc.Meta))
	}
	return out
}

// firstAt is the claim with the highest precedence, to exactly one address, of the
// namespaces of a binding; of all namespaces, if that is nil.
func (o *owners) firstAt(b *Binding, a Hostname) (addressClaim, bool) {
	var first addressClaim
	found := false
	for i := range o.claims {
		for _, c := range o.claimsAt(i, a) {
			if (b == nil || b.has(c.namespace)) && (!found || compareAddressClaims(c, first) < 0) {
				first, found = c, true
			}
		}
	}
	return first, found
}

// addressOfOthers looks for another owner of an address that is not on record, with
// precedence over the namespaces of a binding.
func (o *owners) addressOfOthers(b *Binding, a Hostname) *rival {
	own, found := o.firstAt(b, a)
	if !found {
		own = addressClaim{name: a, class: addressNamed + 1}
	}
	return o.rivalClaim(b, a, func(c addressClaim) bool { return compareAddressClaims(c, own) < 0 })
}

// addressOfRoutes is addressOfOthers for a claimant that only has routes for an address.
// Services and endpoints of others there have precedence, unless a range of its own
// namespaces covers the address.
func (o *owners) addressOfRoutes(by claimant, a Hostname) *rival {
	b := o.bindings[by.source]
	if o.holdsAround(by.source, a) {
		return nil
	}
	return o.rivalClaim(b, a, func(addressClaim) bool { return true })
}

// holdsAround reports whether the namespaces of a bound source own an address, or a range
// around it, by more than routes.
func (o *owners) holdsAround(source int, a Hostname) bool {
	b, holds := o.bindings[source], false
	for i := range o.claims {
		look := func(x Hostname) bool {
			for _, c := range o.claimsAt(i, x) {
				holds = holds || b.has(c.namespace) && o.address(claimant{source: source, namespace: c.namespace}, x) == nil
			}
			return !holds
		}
		index := &o.claims[i]
		if look(a) {
			index.addresses.widths.above(a, look)
		}
		if holds {
			return true
		}
	}
	return false
}

// rivalClaim looks for a claim of namespaces outside a binding to something that overlaps
// with an address.
func (o *owners) rivalClaim(b *Binding, a Hostname, wanted func(addressClaim) bool) *rival {
	var found *rival
	for i := range o.claims {
		c := &o.claims[i]
		look := func(name Hostname) bool {
			for _, c := range o.claimsAt(i, name) {
				if found == nil && !b.has(c.namespace) && wanted(c) {
					found = c.rival()
				}
			}
			return found == nil
		}
		if c.addresses.names(a, true, look) && c.workloads.names(a, true, look) && o.bindings[i] != nil {
			c.inline.names(a, true, look)
		}
		if found != nil {
			break
		}
	}
	return found
}

// grantAddress is the owner to put on record for an address or range: the first that
// declares it or has an endpoint there, if it owns it, else who has routes for it.
//
// All claimants regard the same one as first, so the record does not change the result.
func (o *owners) grantAddress(a Hostname) (Owner, bool) {
	was, known := o.record.Of(a)
	known = known && !was.Routes
	holds := false
	for i, b := range o.bindings {
		if b != nil && b.covers(a) {
			continue
		}
		for _, c := range o.claimsAt(i, a) {
			switch {
			case known:
				holds = holds || c.namespace == was.Namespace
			default:
				holds = holds || o.mayKeep(i, a, c)
			}
		}
	}
	if known {
		return was, holds
	}
	if first, found := o.firstAt(nil, a); holds && found {
		_, above, known := o.record.holder(a)
		return Owner{Namespace: first.namespace}, !known || above.Namespace == first.namespace
	}
	var routing, refused []string
	for i, b := range o.bindings {
		if b == nil || b.covers(a) {
			continue
		}
		for _, vs := range o.claims[i].routes.get(a) {
			if o.routes(i, vs, a) == nil {
				routing = append(routing, vs.Namespace)
			} else {
				refused = append(refused, vs.Namespace)
			}
		}
	}
	// Of two sources for one namespace, the record would give the address to both.
	routing = slices.DeleteFunc(routing, func(ns string) bool { return slices.Contains(refused, ns) })
	switch {
	case len(routing) == 0:
		return Owner{}, false
	case slices.Contains(routing, was.Namespace):
		return was, true
	default:
		return Owner{Namespace: slices.Min(routing), Routes: true}, true
	}
}

// mayKeep reports whether other namespaces see what a claim is for, so that it belongs on
// record.
func (o *owners) mayKeep(source int, a Hostname, c addressClaim) bool {
	if o.bindings[source] == nil { // an instance
		_, _, known := o.record.holder(a)
		return !known && !o.unsettled
	}
	if o.address(claimant{source: source, namespace: c.namespace}, a) != nil {
		return false
	}
	seen := func(svc *Service) bool { return svc.Namespace == c.namespace && !o.isRestricted(source, svc) }
	claims := &o.claims[source]
	return c.class == endpointThere || slices.ContainsFunc(claims.addresses.get(a), seen)
}

// isRestricted reports whether a bound source's service is hidden from other namespaces.
func (o *owners) isRestricted(source int, svc *Service) bool {
	if o.bindings[source] == nil {
		return false
	}
	return cached(o.cache, func(a *decisionCache) map[*Service]bool { return a.restricted }, svc, func() bool {
		if o.host(source, svc) != nil {
			return true
		}
		_, r := o.serviceAddress(source, svc)
		return r != nil
	})
}
