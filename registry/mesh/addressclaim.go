package mesh

import (
	"cmp"
	"slices"
)

// addressClass says how somebody names an address; the lesser counts.
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

// addressClaim is that of a namespace to a very address, or range.
type addressClaim struct {
	name      Hostname
	class     addressClass
	namespace string
	meta      *Meta
}

// compareAddressClaims is the order in which claims to addresses that overlap count,
// where none is on record: what is narrower first, so that a range takes what is
// nobody's.
func compareAddressClaims(a, b addressClaim) int {
	return cmp.Or(narrower(a.name, b.name), cmp.Compare(a.class, b.class), cmp.Compare(a.namespace, b.namespace))
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

// isInstance reports whether a workload of an unbound source is an instance of a
// catalog's service: whoever may register with the catalog has put it there.
func isInstance(w *Workload) bool { return w.Labels[LabelConsulService] != "" }

// standing reports whether a bound source's service may have its names at all, but for
// other bound sources' addresses. What does not stand is seen by nobody else and holds no
// address.
func (o *owners) standing(source int, svc *Service) bool {
	return remembered(o.answers, func(a *answers) map[*Service]bool { return a.standing }, svc, func() bool {
		return o.host(source, svc) == nil && !slices.ContainsFunc(addressNames(svc), func(a Hostname) bool {
			return o.barred(source, svc.Namespace, a) != nil
		})
	})
}

// claimsAt are the claims of one source to a very address: of each namespace and class
// one, in no order. Of an unbound source they are the instances of catalogs; all else
// bars others anyway.
func (o *owners) claimsAt(source int, a Hostname) []addressClaim {
	return remembered(o.answers, func(a *answers) map[claimQuestion][]addressClaim { return a.claims }, claimQuestion{source, a}, func() []addressClaim {
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

// firstAt is the claim to a very address that counts first of those of the namespaces of
// a binding; of all, if that is nil.
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

// addressOfOthers looks for who else has an address that is on no record, and comes
// before what the namespaces of a binding have there.
func (o *owners) addressOfOthers(b *Binding, a Hostname) *rival {
	own, found := o.firstAt(b, a)
	if !found {
		own = addressClaim{name: a, class: addressNamed + 1}
	}
	return o.rivalClaim(b, a, func(c addressClaim) bool { return compareAddressClaims(c, own) < 0 })
}

// addressOfRoutes is addressOfOthers for who only has routes for an address: they come
// behind all services and endpoints of others there, but where a range of their own
// namespaces has it.
func (o *owners) addressOfRoutes(by asker, a Hostname) *rival {
	b := o.bindings[by.source]
	if o.holdsAround(by.source, a) {
		return nil
	}
	return o.rivalClaim(b, a, func(addressClaim) bool { return true })
}

// holdsAround reports whether the namespaces of a bound source have an address, or a
// range around it, by more than routes.
func (o *owners) holdsAround(source int, a Hostname) bool {
	b, holds := o.bindings[source], false
	for i := range o.claims {
		look := func(x Hostname) bool {
			for _, c := range o.claimsAt(i, x) {
				holds = holds || b.has(c.namespace) && o.address(asker{source: source, namespace: c.namespace}, x) == nil
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

// rivalClaim looks for a claim of other namespaces than a binding's to what overlaps with
// an address.
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

// grantAddress is the owner to be put on record for an address, or a range: the first
// of those that declare it or have an endpoint there, if it has it, and else who has
// routes for it.
//
// Everybody who has the address regards the first one as its own, or would have lost it
// to it: that is why the record changes nothing.
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
	var routing []string
	for i, b := range o.bindings {
		if b == nil || b.covers(a) {
			continue
		}
		for _, vs := range o.claims[i].routes.get(a) {
			if o.routes(i, vs, a) == nil {
				routing = append(routing, vs.Namespace)
			}
		}
	}
	switch {
	case len(routing) == 0:
		return Owner{}, false
	case slices.Contains(routing, was.Namespace):
		return was, true
	default:
		return Owner{Namespace: slices.Min(routing), Routes: true}, true
	}
}

// mayKeep reports whether a claim is of something that others see, so that it belongs
// on record.
func (o *owners) mayKeep(source int, a Hostname, c addressClaim) bool {
	if o.bindings[source] == nil { // an instance
		_, _, known := o.record.holder(a)
		return !known && !o.unsettled
	}
	if o.address(asker{source: source, namespace: c.namespace}, a) != nil {
		return false
	}
	seen := func(svc *Service) bool { return svc.Namespace == c.namespace && !o.clipped(source, svc) }
	claims := &o.claims[source]
	return c.class == endpointThere || slices.ContainsFunc(claims.addresses.get(a), seen)
}

// clipped reports whether others do not see a bound source's service.
func (o *owners) clipped(source int, svc *Service) bool {
	if o.bindings[source] == nil {
		return false
	}
	return remembered(o.answers, func(a *answers) map[*Service]bool { return a.clipped }, svc, func() bool {
		if o.host(source, svc) != nil {
			return true
		}
		_, r := o.serviceAddress(source, svc)
		return r != nil
	})
}
