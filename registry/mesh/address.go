package mesh

import (
	"fmt"
	"net/netip"
	"slices"
)

// addressNames are the addresses and ranges that a service declares, an IP address
// that is its host among them. 0.0.0.0 says that there is none.
func addressNames(svc *Service) []Hostname {
	out := make([]Hostname, 0, len(svc.Addresses))
	for _, a := range append(slices.Clone(svc.Addresses), string(svc.Hostname.canonical())) {
		if ip, err := netip.ParseAddr(a); err == nil && ip.Is6() && ip.Unmap().IsUnspecified() {
			out = append(out, "::/0") // a listener there has all of IPv6
		}
		if p, is := prefixOf(Hostname(a)); is && (!p.IsSingleIP() || !p.Addr().IsUnspecified()) {
			out = append(out, nameOf(p))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// declaresAddress reports whether exactly this address or range is among a service's
// addresses, and not only its host name.
func declaresAddress(svc *Service, a Hostname) bool {
	return slices.ContainsFunc(svc.Addresses, func(x string) bool {
		p, is := prefixOf(Hostname(x))
		return is && nameOf(p) == a
	})
}

// inlineNames are the addresses of a service's inline endpoints.
func inlineNames(svc *Service) []Hostname {
	var out []Hostname
	for _, w := range svc.Inline {
		out = append(out, workloadNames(w)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// workloadNames is the address of a workload, if it is an IP address.
func workloadNames(w *Workload) []Hostname {
	if p, is := prefixOf(Hostname(w.Address)); is && p.IsSingleIP() {
		return []Hostname{nameOf(p)}
	}
	return nil
}

// subnetNames are the destination addresses that a VirtualService matches.
func subnetNames(vs *VirtualService) []Hostname {
	var out []Hostname
	add := func(list []string) {
		for _, s := range list {
			if p, is := prefixOf(Hostname(s)); is {
				out = append(out, nameOf(p))
			}
		}
	}
	for _, r := range vs.Spec.GetTcp() {
		for _, m := range r.GetMatch() {
			add(m.GetDestinationSubnets())
		}
	}
	for _, r := range vs.Spec.GetTls() {
		for _, m := range r.GetMatch() {
			add(m.GetDestinationSubnets())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// claimant is who wants an address.
type claimant struct {
	source    int
	namespace string
}

// serviceAddress returns the first address of a bound source's service that another one
// owns, and its owner; nil if the source owns all of them.
func (o *owners) serviceAddress(source int, svc *Service) (Hostname, *rival) {
	for _, a := range addressNames(svc) {
		if r := o.address(source, svc.Namespace, a); r != nil {
			return a, r
		}
	}
	return "", nil
}

// address returns who owns an address or range that a bound source uses for other
// namespaces; nil if the source does, by a pattern or by a grant. A range conflicts with
// everything that it overlaps.
func (o *owners) address(source int, namespace string, a Hostname) *rival {
	return cached(o.cache, func(a *decisionCache) map[nameKey]*rival { return a.addresses }, nameKey{claimant{source, namespace}, a}, func() *rival {
		return o.findRival(source, namespace, a)
	})
}

func (o *owners) findRival(source int, namespace string, a Hostname) *rival {
	b := o.bindings[source]
	mine := b.covers(a)
	if r := o.addressOfUnbound(a, !mine, func(svc *Service) bool { return !svc.Catalog && svc.Namespace != namespace }); r != nil || mine {
		return r
	}
	if r := o.pattern(source, a); r != nil {
		return r
	}
	if isWide(a) && isVirtual(a) {
		return hostsOfControlPlane()
	}
	if r := o.addressOfUnbound(a, true, func(svc *Service) bool { return svc.Namespace != namespace }); r != nil {
		return r
	}
	for i := range o.claims {
		if o.bindings[i] != nil {
			continue
		}
		if r := o.endpointAt(i, a, namespace); r != nil {
			return r
		}
	}
	return o.notTitled(b, a, "")
}

// addressOfUnbound looks for a service of an unbound source with an address or, with all, with an
// overlapping one.
func (o *owners) addressOfUnbound(a Hostname, all bool, wanted func(*Service) bool) *rival {
	for i := range o.claims {
		if o.bindings[i] != nil {
			continue
		}
		if r := o.addressDeclared(i, a, all, wanted); r != nil {
			return r
		}
	}
	return nil
}

// addressDeclared looks for a service of a source with an address or, with all, with an
// overlapping one.
func (o *owners) addressDeclared(source int, a Hostname, all bool, wanted func(*Service) bool) *rival {
	var found *rival
	index := &o.claims[source].addresses
	index.names(a, all, func(name Hostname) bool {
		for _, svc := range o.sample(index, name) {
			if wanted(svc) {
				found = by(&svc.Meta, describeOwner(svc))
				return false
			}
		}
		return true
	})
	return found
}

func describeOwner(svc *Service) string {
	if svc.Catalog {
		return "the catalog, where a service has it,"
	}
	return "namespace " + svc.Namespace + ", whose service has it,"
}

// isInstance reports whether a workload of an unbound source is an instance of a catalog's
// service: anybody who can register with the catalog can add it.
func isInstance(w *Workload) bool { return w.Labels[LabelConsulService] != "" }

// endpointAt looks for an endpoint of an unbound source, in other namespaces, at an address
// or in a range. Instances of a catalog do not count.
func (o *owners) endpointAt(source int, a Hostname, namespace string) *rival {
	var found *rival
	c := &o.claims[source]
	c.workloads.find(a, true, func(w *Workload) bool {
		if w.Namespace != namespace && !isInstance(w) {
			found = by(&w.Meta, "namespace "+w.Namespace+", which has a workload there,")
		}
		return found == nil
	})
	if found != nil {
		return found
	}
	c.inline.find(a, true, func(svc *Service) bool {
		if svc.Namespace != namespace {
			found = by(&svc.Meta, "namespace "+svc.Namespace+", which has an endpoint there,")
		}
		return found == nil
	})
	return found
}

// routesAddress is routes for a host that is an IP address.
func (o *owners) routesAddress(source int, vs *VirtualService, a Hostname) *rival {
	if isVirtual(a) {
		return hostsOfControlPlane()
	}
	for svc := range o.declared(a, false) {
		if svc.Namespace != vs.Namespace {
			return by(&svc.Meta, "namespace "+svc.Namespace)
		}
	}
	if o.hasAddress(source, vs.Namespace, a) {
		return nil
	}
	if r := o.address(source, vs.Namespace, a); r != nil {
		return r
	}
	return o.routedElsewhere(vs, a)
}

// matchedAddress is routesAddress for an address or range that routes match.
func (o *owners) matchedAddress(source int, vs *VirtualService, a Hostname) *rival {
	switch {
	case isVirtual(a) && !o.bindings[source].covers(a):
		return hostsOfControlPlane()
	case o.hasAddress(source, vs.Namespace, a):
		return nil
	default:
		return o.address(source, vs.Namespace, a)
	}
}

// hasAddress reports whether a service of the source, or of the namespace, owns exactly
// this address. Then its routes may use it too.
func (o *owners) hasAddress(source int, namespace string, a Hostname) bool {
	question := nameKey{claimant{source: source, namespace: namespace}, a}
	return cached(o.cache, func(a *decisionCache) map[nameKey]bool { return a.holds }, question, func() bool {
		return o.findAddress(source, namespace, a)
	})
}

func (o *owners) findAddress(source int, namespace string, a Hostname) bool {
	for i := range o.claims {
		for _, svc := range o.claims[i].addresses.get(a) {
			if svc.Namespace != namespace && (i != source || !o.bindings[source].has(svc.Namespace)) {
				continue
			}
			if o.bindings[i] == nil {
				return true
			}
			if !o.isRestricted(i, svc) {
				return true
			}
		}
	}
	return false
}

// privateAddresses are services that only other namespaces see, with addresses or endpoints
// that overlap with a bound source's addresses. Addresses of the source's own patterns do
// not count.
func (o *owners) privateAddresses(source int, namespace string, addresses []Hostname) []*Service {
	b := o.bindings[source]
	var out []*Service
	for _, a := range addresses {
		if b.covers(a) {
			continue
		}
		question := nameKey{claimant{source: source, namespace: namespace}, a}
		out = append(out, cached(o.cache, func(a *decisionCache) map[nameKey][]*Service { return a.private }, question, func() []*Service {
			return o.privateAt(b, namespace, a)
		})...)
	}
	return out
}

// privateAt is privateAddresses of one address.
func (o *owners) privateAt(b *Binding, namespace string, a Hostname) []*Service {
	var out []*Service
	for i := range o.claims {
		index := &o.claims[i].private
		index.names(a, true, func(name Hostname) bool {
			for _, svc := range o.sample(index, name) {
				if svc.Namespace != namespace && !b.has(svc.Namespace) && slices.ContainsFunc(append(addressNames(svc), inlineNames(svc)...), func(x Hostname) bool {
					return overlapping(x, a)
				}) {
					out = append(out, svc)
				}
			}
			return true
		})
	}
	return out
}

func namespacesOf(list []*Service) []string {
	out := make([]string, 0, len(list))
	for _, svc := range list {
		out = append(out, svc.Namespace)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addressNames are the addresses that a service declares for other namespaces.
func (w *restricter) addressNames(svc *Service) []Hostname {
	if len(w.serviceHosts(svc)) == 0 {
		return nil
	}
	return addressNames(svc)
}

// inlineNames are the addresses of the endpoints of a service that other namespaces
// see.
func (w *restricter) inlineNames(svc *Service) []Hostname {
	if len(w.serviceHosts(svc)) == 0 {
		return nil
	}
	return inlineNames(svc)
}

func (w *restricter) workloadNames(x *Workload) []Hostname {
	if x == nil {
		return nil
	}
	return workloadNames(x)
}

// subnetNames are the addresses that a VirtualService matches in other namespaces.
func (w *restricter) subnetNames(vs *VirtualService) []Hostname {
	if len(w.routeHosts(vs)) == 0 {
		return nil
	}
	return subnetNames(vs)
}

// foreignAddressConflict is the conflict of an object that names an address of another
// owner.
func foreignAddressConflict(m *Meta, a Hostname, r *rival, advice Advice) Conflict {
	return Conflict{
		Key: m.Key, Host: a, Kept: r.origin, Dropped: m.Origin, Foreign: true,
		Reason: fmt.Sprintf("the address %q belongs to %s: this object, whose source is bound to namespaces, applies only to clients in the namespace %s; %s",
			a, r, m.Namespace, advice.Text),
	}
}
