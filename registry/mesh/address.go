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
	// routes says that it has nothing there but routes.
	routes bool
}

// serviceAddress tells of the first address of a bound source's service that is
// another's; no rival if all are the source's.
func (o *owners) serviceAddress(source int, svc *Service) (Hostname, *rival) {
	for _, a := range addressNames(svc) {
		if r := o.address(asker{source: source, namespace: svc.Namespace}, a); r != nil {
			return a, r
		}
	}
	return "", nil
}

// address tells whose an address, or a range, is that a bound source wants to have
// for other namespaces: nil if the source's. A range conflicts with all that it
// overlaps with, and takes what is nobody's.
//
// What it says must not change by being put on record, see [owners.grantAddress]: so
// what comes before the record, and the order of claims, know nothing of it.
func (o *owners) address(by asker, a Hostname) *rival {
	return remembered(o.answers, func(a *answers) map[nameQuestion]*rival { return a.addresses }, nameQuestion{by, a}, func() *rival {
		return o.findRival(by, a)
	})
}

func (o *owners) findRival(by asker, a Hostname) *rival {
	b := o.bindings[by.source]
	if r := o.barred(by.source, by.namespace, a); r != nil || b.covers(a) {
		return r
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
	if by.routes {
		return o.addressOfRoutes(by, a)
	}
	return o.addressOfOthers(b, a)
}

// barred tells why an address is nobody's of a bound source, whatever others that are
// bound say: an unbound source or the catalog declares it, or a pattern has it.
func (o *owners) barred(source int, namespace string, a Hostname) *rival {
	question := nameQuestion{asker{source: source, namespace: namespace}, a}
	return remembered(o.answers, func(a *answers) map[nameQuestion]*rival { return a.barred }, question, func() *rival {
		return o.findBar(source, namespace, a)
	})
}

func (o *owners) findBar(source int, namespace string, a Hostname) *rival {
	b := o.bindings[source]
	mine := b.covers(a)
	for i := range o.claims {
		if o.bindings[i] != nil {
			continue
		}
		if r := o.addressDeclared(i, a, !mine, func(svc *Service) bool {
			return !svc.Catalog && svc.Namespace != namespace
		}); r != nil {
			return r
		}
	}
	if mine {
		return nil
	}
	if r := o.pattern(source, a); r != nil {
		return r
	}
	switch {
	case b.HostsOnly:
		return &rival{nil, "nobody whom the settings name"}
	case tooWide(a):
		return &rival{nil, fmt.Sprintf("nobody: a range with a prefix shorter than %d bits belongs to a source only by --config-hosts", minRangeBits)}
	}
	for i := range o.claims {
		if o.bindings[i] != nil {
			continue
		}
		if r := o.addressDeclared(i, a, true, func(svc *Service) bool { return svc.Namespace != namespace }); r != nil {
			return r
		}
		if r := o.endpointAt(i, a, namespace); r != nil {
			return r
		}
	}
	return nil
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

// endpointAt looks among the endpoints of an unbound source for one at an address, or
// within a range, of other namespaces. Instances of a catalog are no such endpoints.
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
	for svc := range o.declared(a, false) {
		if svc.Namespace != vs.Namespace {
			return by(&svc.Meta, "namespace "+svc.Namespace)
		}
	}
	if o.hasAddress(source, vs.Namespace, a) {
		return nil
	}
	if r := o.address(asker{source, vs.Namespace, true}, a); r != nil || o.holdsAround(source, a) {
		return r
	}
	return o.routedElsewhere(source, vs, a)
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
		Reason: fmt.Sprintf("the address %q belongs to %s: this object, whose source is bound to namespaces, applies only to clients in the namespace %s; "+
			"if the address belongs to this source, set --config-hosts", a, r, m.Namespace),
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
