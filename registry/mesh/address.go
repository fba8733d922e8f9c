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
	for _, a := range append(slices.Clone(svc.Addresses), string(svc.Hostname.plain())) {
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

// declaresAddress reports whether a service has a very address, or range, among its
// addresses, and not only as the name of its host.
func declaresAddress(svc *Service, a Hostname) bool {
	return slices.ContainsFunc(svc.Addresses, func(x string) bool {
		p, is := prefixOf(Hostname(x))
		return is && nameOf(p) == a
	})
}

// inlineNames are the addresses of the endpoints that are written in a service.
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

// subnetNames are the addresses that a VirtualService matches, by which it takes
// connections from others.
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

// asker is who wants to have an address.
type asker struct {
	source    int
	namespace string
	// strong says that a service declares it, and not only a host of that name or
	// routes: then it is theirs if nobody else's.
	strong bool
}

// serviceAddress tells of the first address of a bound source's service that is
// another's; no rival if all are the source's.
func (o *owners) serviceAddress(source int, svc *Service) (Hostname, *rival) {
	for _, a := range addressNames(svc) {
		if r := o.address(asker{source, svc.Namespace, declaresAddress(svc, a)}, a); r != nil {
			return a, r
		}
	}
	return "", nil
}

// address tells whose an address, or a range, is that a bound source wants to have
// for other namespaces: nil if the source's. A range conflicts with all that it
// overlaps with, and takes what is nobody's.
func (o *owners) address(by asker, a Hostname) *rival {
	return remembered(o.answers, func(a *answers) map[nameQuestion]*rival { return a.addresses }, nameQuestion{by, a}, func() *rival {
		return o.findRival(by, a)
	})
}

func (o *owners) findRival(by asker, a Hostname) *rival {
	b := o.bindings[by.source]
	mine := b.covers(a)
	for i := range o.claims {
		if o.bindings[i] != nil {
			continue
		}
		if r := o.addressDeclared(i, a, !mine, func(svc *Service) bool {
			return !svc.Catalog && svc.Namespace != by.namespace
		}); r != nil {
			return r
		}
	}
	if mine {
		return nil
	}
	if r := o.pattern(by.source, a); r != nil {
		return r
	}
	switch {
	case b.HostsOnly:
		return &rival{nil, "nobody whom the settings name"}
	case tooWide(a):
		return &rival{nil, fmt.Sprintf("nobody: a range with a prefix of less than %d bits is a source's by a pattern only", minRangeBits)}
	}
	for i := range o.claims {
		if o.bindings[i] != nil {
			continue
		}
		if r := o.addressDeclared(i, a, true, func(svc *Service) bool { return svc.Namespace != by.namespace }); r != nil {
			return r
		}
		if r := o.endpointAt(i, a, true, func(ns string) bool { return ns != by.namespace }); r != nil {
			return r
		}
	}
	if r := o.recorded(b, a); r != nil {
		return r
	}
	if _, _, known := o.record.holder(a); known {
		return nil
	}
	if o.unsettled {
		return notYet()
	}
	return o.addressOfOthers(by, a)
}

// addressOfOthers looks for who else that is bound has an address that is on no
// record: the first by name of those that declare it, else those that have
// endpoints there. A range gives way to what is narrower.
func (o *owners) addressOfOthers(by asker, a Hostname) *rival {
	b := o.bindings[by.source]
	for i, other := range o.bindings {
		if i == by.source || other == nil || other.HostsOnly && !other.covers(a) {
			continue
		}
		if r := o.addressDeclared(i, a, true, func(svc *Service) bool {
			return !b.has(svc.Namespace) && o.addressBeats(other, svc, a, by)
		}); r != nil {
			return r
		}
		if by.strong && !isWide(a) {
			continue
		}
		if r := o.endpointAt(i, a, true, func(ns string) bool { return !b.has(ns) }); r != nil {
			return r
		}
	}
	return nil
}

// addressBeats reports whether a service of another comes before who wants to have
// an address that overlaps with its own; b is the other's binding.
func (o *owners) addressBeats(b *Binding, svc *Service, a Hostname, by asker) bool {
	return slices.ContainsFunc(addressNames(svc), func(x Hostname) bool {
		if !overlapping(x, a) || tooWide(x) && !b.covers(x) {
			return false // such a range is nobody's
		}
		strong := declaresAddress(svc, x)
		switch c := narrower(x, a); {
		case strong != by.strong && (c == 0 || !by.strong):
			return strong
		case c != 0:
			return c < 0
		default:
			return svc.Namespace < by.namespace
		}
	})
}

// addressDeclared looks among the services of a source for one with an address or,
// with all, with one that overlaps.
func (o *owners) addressDeclared(source int, a Hostname, all bool, wanted func(*Service) bool) *rival {
	var found *rival
	index := &o.claims[source].addresses
	index.names(a, all, func(name Hostname) bool {
		for _, svc := range o.sample(index, name) {
			if wanted(svc) {
				found = by(&svc.Meta, ownerWords(svc))
				return false
			}
		}
		return true
	})
	return found
}

func ownerWords(svc *Service) string {
	if svc.Catalog {
		return "the catalog, where a service has it,"
	}
	return "namespace " + svc.Namespace + ", whose service has it,"
}

// endpointAt looks among the endpoints of a source for one at an address, or within a
// range.
func (o *owners) endpointAt(source int, a Hostname, all bool, wanted func(namespace string) bool) *rival {
	var found *rival
	c := &o.claims[source]
	c.workloads.find(a, all, func(w *Workload) bool {
		if wanted(w.Namespace) {
			found = by(&w.Meta, "namespace "+w.Namespace+", which has a workload there,")
		}
		return found == nil
	})
	if found != nil {
		return found
	}
	c.inline.find(a, all, func(svc *Service) bool {
		if wanted(svc.Namespace) {
			found = by(&svc.Meta, "namespace "+svc.Namespace+", which has an endpoint there,")
		}
		return found == nil
	})
	return found
}

// hasAddress reports whether a service that counts, of the source or of the
// namespace, has a very address: then its routes may be written there.
func (o *owners) hasAddress(source int, namespace string, a Hostname) bool {
	question := nameQuestion{asker{source: source, namespace: namespace}, a}
	return remembered(o.answers, func(a *answers) map[nameQuestion]bool { return a.holds }, question, func() bool {
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
			if _, r := o.serviceAddress(i, svc); r == nil && o.service(i, svc) == nil {
				return true
			}
		}
	}
	return false
}

// grantAddress is the owner to be put on record for an address, or a range: who
// declares it, else who has endpoints at it, and else who has routes for it.
func (o *owners) grantAddress(a Hostname) (Owner, bool) {
	was, known := o.record.Of(a)
	known = known && !was.Routes
	var kinds [3][]string
	for i, b := range o.bindings {
		if b == nil || b.covers(a) {
			continue
		}
		c := &o.claims[i]
		for _, svc := range c.addresses.get(a) {
			if _, r := o.serviceAddress(i, svc); r == nil && o.service(i, svc) == nil {
				kinds[0] = append(kinds[0], svc.Namespace)
			}
		}
		if !isWide(a) && !b.HostsOnly && o.pattern(i, a) == nil && o.recorded(b, a) == nil {
			for _, w := range c.workloads.get(a) {
				kinds[1] = append(kinds[1], w.Namespace)
			}
			for _, svc := range c.inline.get(a) {
				kinds[1] = append(kinds[1], svc.Namespace)
			}
		}
		for _, vs := range c.routes.get(a) {
			if o.routes(i, vs, a) == nil {
				kinds[2] = append(kinds[2], vs.Namespace)
			}
		}
	}
	if known {
		return Owner{Namespace: was.Namespace}, slices.Contains(kinds[0], was.Namespace) || slices.Contains(kinds[1], was.Namespace)
	}
	for kind, list := range kinds {
		if len(list) == 0 {
			continue
		}
		if routes := kind == 2; routes && slices.Contains(list, was.Namespace) {
			return was, true
		} else {
			return Owner{Namespace: slices.Min(list), Routes: routes}, true
		}
	}
	return Owner{}, false
}

// privateAddresses are services that other namespaces have to themselves, with
// addresses or endpoints that a bound source's addresses overlap with; none where
// these are of its pattern.
func (o *owners) privateAddresses(source int, namespace string, addresses []Hostname) []*Service {
	b := o.bindings[source]
	var out []*Service
	for _, a := range addresses {
		if b.covers(a) {
			continue
		}
		question := nameQuestion{asker{source: source, namespace: namespace}, a}
		out = append(out, remembered(o.answers, func(a *answers) map[nameQuestion][]*Service { return a.private }, question, func() []*Service {
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
func (w *clipper) addressNames(svc *Service) []Hostname {
	if len(w.serviceHosts(svc)) == 0 {
		return nil
	}
	return addressNames(svc)
}

// inlineNames are the addresses of the endpoints of a service that other namespaces
// see.
func (w *clipper) inlineNames(svc *Service) []Hostname {
	if len(w.serviceHosts(svc)) == 0 {
		return nil
	}
	return inlineNames(svc)
}

func (w *clipper) workloadNames(x *Workload) []Hostname {
	if x == nil {
		return nil
	}
	return workloadNames(x)
}

// subnetNames are the addresses that a VirtualService matches in other namespaces.
func (w *clipper) subnetNames(vs *VirtualService) []Hostname {
	if len(w.routeHosts(vs)) == 0 {
		return nil
	}
	return subnetNames(vs)
}

// foreignAddress is what is told of an object that names the address of another.
func foreignAddress(m *Meta, a Hostname, r *rival) Conflict {
	return Conflict{
		Key: m.Key, Host: a, Kept: r.origin, Dropped: m.Origin, Foreign: true,
		Reason: fmt.Sprintf("the address %q is that of %s: this object, whose source is bound to namespaces, holds for clients in the namespace %s only; "+
			"if the address is this source's, say so by --config-hosts", a, r, m.Namespace),
	}
}

func noteHosts(decided map[Hostname]bool, hosts []Hostname) {
	for _, h := range hosts {
		decided[h] = true
	}
}

// noteEndpoints notes the addresses of endpoints within an address or range: whether
// they are put on record may depend on it.
func (w *clipper) noteEndpoints(decided map[Hostname]bool, h Hostname) {
	if !isAddress(h) {
		return
	}
	for i, b := range w.owners.bindings {
		if b == nil {
			continue
		}
		w.owners.claims[i].workloads.find(h, true, func(x *Workload) bool {
			noteHosts(decided, workloadNames(x))
			return true
		})
		w.owners.claims[i].inline.find(h, true, func(svc *Service) bool {
			noteHosts(decided, inlineNames(svc))
			return true
		})
	}
}
