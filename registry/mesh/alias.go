package mesh

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// plain is the one form of a name that clients write in several: without the dot
// that may end it, and an IP address as Go writes it.
func (h Hostname) plain() Hostname {
	s := strings.TrimSuffix(string(h), ".")
	if s != "" && s[0] != '*' && (s[len(s)-1] <= '9' || strings.Contains(s, ":")) {
		if ip, err := netip.ParseAddr(s); err == nil {
			s = ip.Unmap().WithZone("").String()
		}
	}
	return Hostname(s)
}

// aliasesOf are the other names by which clients reach a service: the short forms
// of NAME.NAMESPACE.svc.DOMAIN, if that is its namespace, and its addresses.
func aliasesOf(svc *Service) []Hostname {
	var out []Hostname
	h := string(svc.Hostname.plain())
	if name, rest, ok := strings.Cut(h, "."); ok && strings.HasPrefix(rest, svc.Namespace+".svc.") && name != "*" {
		short := name + "." + svc.Namespace
		out = append(out, Hostname(name), Hostname(short), Hostname(short+".svc"))
	}
	for _, a := range svc.Addresses {
		if ip, err := netip.ParseAddr(a); err == nil {
			out = append(out, Hostname(ip.String()).plain())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// declares reports whether a bound source declares the very host in a namespace.
func (o *owners) declares(h Hostname, namespace string) bool {
	for i, b := range o.bindings {
		if b != nil && slices.ContainsFunc(o.claims[i].services.get(h), func(svc *Service) bool { return svc.Namespace == namespace }) {
			return true
		}
	}
	return false
}

// alias tells whose a host is that is the other name of a service, unless the source
// declares the host itself and has it on record, or by a pattern.
func (o *owners) alias(source int, namespace string, h Hostname) *rival {
	b := o.bindings[source]
	if isAddress(h) {
		return nil // those are judged by themselves
	}
	if owner, known := o.record.Of(h); b.covers(h) || known && !owner.Routes && b.has(owner.Namespace) && o.declares(h, owner.Namespace) {
		return nil
	}
	var found *Service
	for i := range o.claims {
		for _, svc := range o.claims[i].aliases.get(h) {
			switch {
			case o.bindings[i] != nil && o.named(i, svc) != nil: // not for others
			case svc.Namespace == namespace || o.bindings[i] != nil && b.has(svc.Namespace):
				return nil
			case found == nil:
				found = svc
			}
		}
	}
	if found == nil {
		return nil
	}
	return by(&found.Meta, "namespace "+found.Namespace+", of whose "+string(found.Hostname)+" it is another name")
}

// ownWildcard reports whether a wildcard of the source itself has a host.
func (o *owners) ownWildcard(source int, h Hostname) bool {
	own := false
	o.claims[source].services.find(h, true, func(svc *Service) bool {
		own = svc.Hostname.IsWildcard() && o.service(source, svc) == nil
		return !own
	})
	return own
}

// serviceAliases are the other names of a service that other namespaces see.
func (w *clipper) serviceAliases(svc *Service) []Hostname {
	if len(w.serviceHosts(svc)) == 0 {
		return nil
	}
	return aliasesOf(svc)
}

// touchAliases has names decided anew that services have besides their hosts, if
// anything of those services may be decided anew: a service that lost its host, or has it
// again, holds no more, or again, its addresses.
func (w *clipper) touchAliases() {
	touched := map[Hostname]bool{}
	all := func(svc *Service) {
		for _, h := range slices.Concat(w.serviceAliases(svc), w.addressNames(svc)) {
			touched[h] = true
		}
	}
	for i := range w.inputs {
		for _, d := range w.services[i] {
			all(d.Old)
			all(d.New)
		}
	}
	w.touchOf(w.hosts, all)
	w.touchOf(maps.Clone(touched), all) // whose host is another name of one of those
	for h := range touched {
		w.hosts[h] = true
	}
}

// touchOf calls touch for all services that name one of the hosts.
func (w *clipper) touchOf(hosts map[Hostname]bool, touch func(*Service)) {
	for i := range w.inputs {
		c := &w.owners.claims[i]
		if c.aliases.size+c.addresses.named.size == 0 {
			continue
		}
		for svc := range concerned(hosts, &c.services, &c.addresses) {
			touch(svc)
		}
	}
}
