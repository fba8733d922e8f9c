package mesh

import (
	"fmt"
	"slices"
)

// claims are the names that one source claims for other namespaces. What only its own
// namespace sees claims nothing.
type claims struct {
	// services declare hosts, routes are VirtualServices for sidecars.
	services nameIndex[*Service]
	routes   nameIndex[*VirtualService]
	// gateways are VirtualServices for gateways alone.
	gateways nameIndex[*VirtualService]
	// written are all VirtualServices, by key.
	written persistentMap[Key, []*VirtualService]
	// addresses are the services by their addresses, and subnets the VirtualServices
	// by the addresses that they match.
	addresses nameIndex[*Service]
	subnets   nameIndex[*VirtualService]
	// workloads and inline have the addresses of endpoints of an unbound source: those of
	// workloads, and of services that are written in them.
	workloads nameIndex[*Workload]
	inline    nameIndex[*Service]
	// opaque and http are the services by their ports, as proxies see connections there
	// or requests.
	opaque, http persistentMap[uint32, []*Service]
	// aliases are the services by their other names, see [aliasesOf].
	aliases persistentMap[Hostname, []*Service]
	// short are the services of a bound source by the short forms that they may have.
	short nameIndex[*Service]
	// private are the services that only their own namespace sees, by all names and
	// the addresses of their endpoints.
	private nameIndex[*Service]
}

// owners decides who owns a host. It is a pure function of the claims, the bindings, what Gateways
// give to namespaces, and the grants. What bound sources claim gives no host to anybody, so that
// neither the order in which they come nor what was before makes a difference.
type owners struct {
	bindings []*Binding // by source; nil may speak for the whole mesh
	claims   []claims
	given    gifts
	grants   *Grants // or nil
	// defaults are the exports of a service without exportTo.
	defaults []string
	cache    *decisionCache // or nil
}

// bound reports whether a bound source may write for a namespace.
func (o *owners) bound(namespace string) bool {
	return slices.ContainsFunc(o.bindings, func(b *Binding) bool { return b != nil && b.has(namespace) })
}

// rival is who owns a host instead.
type rival struct {
	origin *Origin // or nil
	who    string
	nobody bool // nobody owns it
	// elsewhere are Gateways at which the source has it all the same.
	elsewhere []string
}

func (r *rival) String() string { return r.who }

func by(m *Meta, what string) *rival {
	return &rival{origin: m.Origin, who: fmt.Sprintf("%s (%s, %s)", what, m.Key, m.Origin)}
}

// service returns who owns the host of a bound source's service; nil if the source does.
func (o *owners) service(source int, svc *Service) *rival {
	if r := o.host(source, svc); r != nil {
		return r
	}
	if h := svc.Hostname.canonical(); isAddress(h) {
		return o.address(source, svc.Namespace, h)
	}
	return nil
}

// host is service for hosts that are not addresses. Their owner does not depend on
// addresses.
func (o *owners) host(source int, svc *Service) *rival {
	return cached(o.cache, func(a *decisionCache) map[*Service]*rival { return a.services }, svc, func() *rival {
		return o.named(source, svc)
	})
}

// named is service as far as it depends on exactly that name.
func (o *owners) named(source int, svc *Service) *rival {
	h, b := svc.Hostname.canonical(), o.bindings[source]
	if r := o.unbound(svc, o.settled(source, h)); r != nil {
		return r
	}
	if b.covers(h) {
		return nil
	}
	if r := o.pattern(source, h); r != nil {
		return r
	}
	replaces := false
	for other := range o.declared(h, true) {
		same := other.Hostname.canonical() == h
		switch {
		case !other.Catalog:
		case same && merges(svc, other):
			replaces = true
		case same || other.Namespace != svc.Namespace:
			return by(&other.Meta, "the catalog")
		}
	}
	if replaces || isAddress(h) {
		return nil
	}
	return o.notTitled(b, h, "")
}

// unbound looks for a service of an unbound source. A source with a pattern for the host
// gives way only to exactly that host.
func (o *owners) unbound(svc *Service, mine bool) *rival {
	h := svc.Hostname.canonical()
	for other := range o.declared(h, !mine) {
		if !other.Catalog && (other.Hostname.canonical() == h || other.Namespace != svc.Namespace) {
			return by(&other.Meta, "a source that is bound to no namespace")
		}
	}
	return nil
}

// pattern looks for another source's pattern.
func (o *owners) pattern(source int, h Hostname) *rival {
	for i, b := range o.bindings {
		if i == source || b == nil {
			continue
		}
		if p, ok := b.overlaps(h); ok {
			return &rival{who: fmt.Sprintf("the source of %s, by its pattern %q", namespaces(b), p)}
		}
	}
	return nil
}

// declared yields the services of unbound sources for a host; with overlapping,
// for all hosts that overlap with it.
func (o *owners) declared(h Hostname, overlapping bool) func(func(*Service) bool) {
	return func(yield func(*Service) bool) {
		for i := range o.claims {
			if o.bindings[i] != nil {
				continue
			}
			if !o.claims[i].services.find(h, overlapping, yield) {
				return
			}
		}
	}
}

func (o *owners) owns(source int, h Hostname) bool {
	return slices.ContainsFunc(o.claims[source].services.get(h), func(svc *Service) bool { return o.service(source, svc) == nil })
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
