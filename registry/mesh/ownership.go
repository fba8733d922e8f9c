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
	// gateways are VirtualServices for gateways alone. They make no one the owner of a host.
	gateways nameIndex[*VirtualService]
	// written are all VirtualServices, by key.
	written persistentMap[Key, []*VirtualService]
	// addresses are the services by their addresses, and subnets the VirtualServices
	// by the addresses that they match.
	addresses nameIndex[*Service]
	subnets   nameIndex[*VirtualService]
	// workloads and inline have the addresses of endpoints: those of workloads, and of
	// services that are written in them.
	workloads nameIndex[*Workload]
	inline    nameIndex[*Service]
	// opaque and http are the services by their ports, as proxies see connections there
	// or requests.
	opaque, http persistentMap[uint32, []*Service]
	// aliases are the services by their other names, see [aliasesOf].
	aliases persistentMap[Hostname, []*Service]
	// private are the services that only their own namespace sees, by all names and
	// the addresses of their endpoints.
	private nameIndex[*Service]
}

// owners decides who owns a host. It is a pure function of the claims, the bindings and the
// record. The decision for a host depends only on claims and records of hosts that overlap
// with it.
type owners struct {
	bindings []*Binding // by source; nil may speak for the whole mesh
	claims   []claims
	record   *Owners
	// defaults are the exports of a service without exportTo.
	defaults []string
	// unsettled means that hosts that are not on record have no owner yet.
	unsettled bool
	cache     *decisionCache // or nil
}

// bound reports whether a bound source may write for a namespace.
func (o *owners) bound(namespace string) bool {
	return slices.ContainsFunc(o.bindings, func(b *Binding) bool { return b != nil && b.has(namespace) })
}

// rival is who owns a host instead.
type rival struct {
	origin *Origin // or nil
	who    string
}

func (r *rival) String() string { return r.who }

func by(m *Meta, what string) *rival {
	return &rival{m.Origin, fmt.Sprintf("%s (%s, %s)", what, m.Key, m.Origin)}
}

// service returns who owns the host of a bound source's service; nil if the source does.
func (o *owners) service(source int, svc *Service) *rival {
	if r := o.host(source, svc); r != nil {
		return r
	}
	if h := svc.Hostname.canonical(); isAddress(h) {
		return o.address(claimant{source: source, namespace: svc.Namespace}, h)
	}
	return nil
}

// host is service for hosts that are not addresses. Their owner does not depend on
// addresses.
func (o *owners) host(source int, svc *Service) *rival {
	return cached(o.cache, func(a *decisionCache) map[*Service]*rival { return a.services }, svc, func() *rival {
		if r := o.named(source, svc); r != nil {
			return r
		}
		return o.alias(source, svc.Namespace, svc.Hostname.canonical())
	})
}

// named is service as far as it depends on exactly that name.
func (o *owners) named(source int, svc *Service) *rival {
	h, b := svc.Hostname.canonical(), o.bindings[source]
	mine := b.covers(h)
	if r := o.unbound(svc, mine); r != nil {
		return r
	}
	if mine {
		return nil
	}
	if r := o.pattern(source, h); r != nil {
		return r
	}
	if b.HostsOnly {
		return &rival{nil, "nobody whom the settings name"}
	}
	for other := range o.declared(h, true) {
		if other.Catalog && !merges(svc, other) && (other.Hostname.canonical() == h || other.Namespace != svc.Namespace) {
			return by(&other.Meta, "the catalog")
		}
	}
	switch {
	case isAddress(h):
		return nil
	case h.IsWildcard():
		return o.wildcard(source, svc)
	default:
		return o.notOwner(b, h)
	}
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
			return &rival{nil, fmt.Sprintf("the source of %s, by its pattern %q", namespaces(b), p)}
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

// wildcard looks for a host below a wildcard, or overlapping with it, that a
// bound source of another namespace has. A wildcard on record has what is below it
// and on no record; any other takes what is nobody's.
func (o *owners) wildcard(source int, svc *Service) *rival {
	question := nameKey{claimant{source: source, namespace: svc.Namespace}, svc.Hostname.canonical()}
	return cached(o.cache, func(a *decisionCache) map[nameKey]*rival { return a.wildcards }, question, func() *rival {
		return o.wildcardRival(source, svc)
	})
}

func (o *owners) wildcardRival(source int, svc *Service) *rival {
	h, b := svc.Hostname.canonical(), o.bindings[source]
	if _, _, known := o.record.holder(h); known {
		return o.recorded(b, h)
	}
	for i, other := range o.bindings {
		if i == source || other == nil {
			continue
		}
		var found *Service
		o.claims[i].services.find(h, true, func(svc2 *Service) bool {
			if x := svc2.Hostname.canonical(); !b.has(svc2.Namespace) && beats(x, svc2.Namespace, h, svc.Namespace) && o.counts(i, x) {
				found = svc2
			}
			return found == nil
		})
		if found != nil {
			return by(&found.Meta, "namespace "+found.Namespace)
		}
	}
	return o.recorded(b, h)
}

// counts reports whether a bound source's service of a host may be the one that others
// see. It looks at no wildcards but those on record.
func (o *owners) counts(source int, h Hostname) bool {
	b := o.bindings[source]
	switch {
	case b.covers(h):
		return true
	case b.HostsOnly || o.pattern(source, h) != nil:
		return false
	case h.IsWildcard() || isAddress(h):
		return true
	}
	owner, known := o.ownerOf(h)
	return !known || b.has(owner.Namespace)
}

// beats reports whether of two hosts that overlap, the second one a wildcard, the
// first one counts: it is no wildcard, or a longer one, or its namespace comes
// first.
func beats(h Hostname, namespace string, wildcard Hostname, than string) bool {
	switch {
	case !h.IsWildcard():
		return true
	case len(h) != len(wildcard):
		return len(h) > len(wildcard)
	default:
		return namespace < than
	}
}

// recorded looks for who has a name on record that overlaps with another one: it, or
// the narrowest wildcard or range above it, or, of a wildcard or range, any below.
func (o *owners) recorded(b *Binding, h Hostname) *rival {
	if name, owner, known := o.record.holder(h); known && !b.has(owner.Namespace) {
		return onRecord(name, owner)
	}
	if !isWide(h) || o.record == nil {
		return nil
	}
	var found *rival
	o.record.order.below(h, func(x Hostname) bool {
		if owner, _ := o.record.Of(x); !owner.Routes && !b.has(owner.Namespace) {
			found = onRecord(x, owner)
		}
		return found == nil
	})
	return found
}

func onRecord(h Hostname, owner Owner) *rival {
	return &rival{nil, fmt.Sprintf("namespace %s, which has %q on record", owner.Namespace, h)}
}

func notYet() *rival {
	return &rival{nil, "nobody yet: not all sources have been read, and it is not on record"}
}

// notOwner is who owns a host that is no wildcard; nil if the binding does.
func (o *owners) notOwner(b *Binding, h Hostname) *rival {
	owner, known := o.ownerOf(h)
	switch {
	case !known:
		return notYet()
	case b.has(owner.Namespace):
		return nil
	default:
		return &rival{nil, fmt.Sprintf("namespace %s, which had it first", owner.Namespace)}
	}
}

// ownerOf is the namespace of a bound source that owns a host which is no
// wildcard: the one on record, else the first by name of those that declare it,
// or, where no bound source does, that have routes for it.
func (o *owners) ownerOf(h Hostname) (Owner, bool) {
	is := cached(o.cache, func(a *decisionCache) map[Hostname]cachedOwner { return a.hosts }, h, func() cachedOwner {
		owner, known := o.findOwner(h)
		return cachedOwner{owner, known}
	})
	return is.owner, is.known
}

func (o *owners) findOwner(h Hostname) (Owner, bool) {
	declaring := o.namespaces(func(i int, yield func(string)) {
		for _, svc := range o.claims[i].services.get(h) {
			if !isAddress(h) && !o.bindings[i].HostsOnly && o.unbound(svc, false) == nil {
				yield(svc.Namespace)
			}
		}
	})
	if owner, ok := o.record.Of(h); ok && (!owner.Routes || len(declaring) == 0 || slices.Contains(declaring, owner.Namespace)) {
		return owner, true
	}
	if name, owner, known := o.record.holder(h); known && name != h {
		return owner, true
	}
	if o.unsettled {
		return Owner{}, false
	}
	if len(declaring) > 0 {
		return Owner{Namespace: declaring[0]}, true
	}
	routing := o.namespaces(func(i int, yield func(string)) {
		for _, vs := range o.claims[i].routes.get(h) {
			yield(vs.Namespace)
		}
	})
	if len(routing) > 0 {
		return Owner{Namespace: routing[0], Routes: true}, true
	}
	return Owner{}, false
}

// namespaces are those of bound sources, sorted.
func (o *owners) namespaces(of func(source int, yield func(string))) []string {
	var out []string
	for i, b := range o.bindings {
		if b != nil {
			of(i, func(ns string) { out = append(out, ns) })
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (o *owners) owns(source int, h Hostname) bool {
	return slices.ContainsFunc(o.claims[source].services.get(h), func(svc *Service) bool { return o.service(source, svc) == nil })
}
