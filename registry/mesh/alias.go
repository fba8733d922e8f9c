package mesh

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// canonical is the canonical form of a name: without a final dot, and an IP address as Go
// writes it.
func (h Hostname) canonical() Hostname {
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
	out = append(out, ownShortForms(svc)...)
	for _, a := range svc.Addresses {
		if ip, err := netip.ParseAddr(a); err == nil {
			out = append(out, Hostname(ip.String()).canonical())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// alias returns who owns a host that is another name of a service. It returns nil if the
// source has the host itself, by a pattern or a title.
func (o *owners) alias(source int, namespace string, h Hostname) *rival {
	b := o.bindings[source]
	if isAddress(h) || b.covers(h) {
		return nil // addresses are judged by themselves
	}
	if own, _ := o.titled(b, h, ""); own {
		return nil
	}
	var found *Service
	for i := range o.claims {
		for _, svc := range o.claims[i].aliases.get(h) {
			switch {
			case o.bindings[i] != nil && (o.named(i, svc) != nil || o.lostNames(i, svc) != 0): // not for others
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

// markAliases marks the aliases and addresses of services that may be decided again: a
// service that lost its host, or got it back, loses or gets its addresses.
func (w *restricter) markAliases() {
	marked := map[Hostname]bool{}
	all := func(svc *Service) {
		if len(w.serviceHosts(svc)) > 0 {
			for _, h := range slices.Concat(aliasesOf(svc), w.addressNames(svc)) {
				marked[h] = true
			}
			if name, namespace, ok := shortForms(svc.Hostname); ok {
				marked[name], marked[namespace], marked[namespace+".svc"] = true, true, true
			}
		}
	}
	for i := range w.inputs {
		for _, d := range w.services[i] {
			all(d.Old) // d.New is among those that name one of w.hosts
		}
	}
	w.markServicesOf(w.hosts, all)
	w.markServicesOf(maps.Clone(marked), all) // whose host is another name of one of those
	for h := range marked {
		w.hosts[h] = true
	}
}

// markServicesOf calls mark for all services that name one of the hosts.
func (w *restricter) markServicesOf(hosts map[Hostname]bool, mark func(*Service)) {
	for i := range w.inputs {
		c := &w.owners.claims[i]
		if c.aliases.size+c.addresses.named.size == 0 {
			continue
		}
		for svc := range overlappingObjects(hosts, &c.services, &c.addresses) {
			mark(svc)
		}
	}
}
