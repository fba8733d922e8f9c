package mesh

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// What ends the name of what is split off a VirtualService: no object of a file is
// called so.
const (
	ownNamespacePart = "/own-namespace"
	elsewherePart    = "/elsewhere"
	// At the Gateways that give hosts to the namespace, and at the others.
	givenPart    = "/given"
	notGivenPart = "/not-given"
)

// hostParts are the hosts of a VirtualService by who gets its routes: everybody,
// everybody but the namespaces that have such a host to themselves, and its own
// namespace.
type hostParts struct {
	open, elsewhere, rest []string
	given                 []givenHosts
	without               []string // the namespaces
	late                  bool
	conflicts             []Conflict
}

// givenHosts are hosts that a VirtualService has at some of its Gateways only.
type givenHosts struct{ hosts, gateways []string }

// addGiven adds a host, to those with the same Gateways.
func (p *hostParts) addGiven(name string, gateways []string) {
	i := slices.IndexFunc(p.given, func(x givenHosts) bool { return slices.Equal(x.gateways, gateways) })
	if i < 0 {
		i, p.given = len(p.given), append(p.given, givenHosts{gateways: gateways})
	}
	p.given[i].hosts = append(p.given[i].hosts, name)
}

// withTLS joins the hosts: what rules for TLS match is names of hosts, too.
func (p *hostParts) withTLS(hosts []string) {
	switch {
	case len(p.rest) > 0, len(p.given) > 0 && len(p.elsewhere) > 0:
		p.open, p.elsewhere, p.given = nil, nil, nil
	case len(p.given) > 0:
		common := p.given[0].gateways
		for _, x := range p.given[1:] {
			common = slices.DeleteFunc(slices.Clone(common), func(g string) bool { return !slices.Contains(x.gateways, g) })
		}
		if p.open, p.given = nil, nil; len(common) > 0 {
			p.given = []givenHosts{{hosts, common}}
		}
	case len(p.elsewhere) > 0:
		p.open, p.elsewhere = nil, append(p.open, p.elsewhere...)
	}
}

// listGateways are Gateways for people.
func listGateways(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d other Gateways", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, " and ")
}

// withGateways are the routes at some Gateways.
func withGateways(spec *networking.VirtualService, gateways []string) *networking.VirtualService {
	out := proto.CloneOf(spec)
	out.Gateways = gateways
	return out
}

func (w *restricter) parts(source int, vs *VirtualService) hostParts {
	var p hostParts
	for _, name := range slices.Compact(slices.Sorted(slices.Values(vs.Spec.GetHosts()))) {
		h := Hostname(name).canonical()
		if r := w.owners.routes(source, vs, h); r != nil {
			switch {
			case len(r.elsewhere) > 0 && len(w.owners.privateOf(source, vs, h)) == 0:
				p.addGiven(name, r.elsewhere)
				p.late = p.late || w.owners.late(source, vs, h)
			default:
				p.rest = append(p.rest, name)
			}
			p.conflicts = append(p.conflicts, foreignHostConflict(&vs.Meta, h, r, w.owners.advise(source, h, vs.Namespace, false)))
			continue
		}
		p.late = p.late || w.owners.late(source, vs, h)
		private := w.owners.privateOf(source, vs, h)
		if len(private) == 0 {
			p.open = append(p.open, name)
			continue
		}
		p.elsewhere = append(p.elsewhere, name)
		p.conflicts = append(p.conflicts, privateHostConflict(&vs.Meta, h, private[0], w.owners.advise(source, h, vs.Namespace, false)))
		for _, svc := range private {
			p.without = append(p.without, svc.Namespace)
		}
	}
	if routesSidecars(vs) { // what reaches a gateway has the gateway's address
		w.subnets(source, vs, &p)
	}
	w.serverNames(source, vs, &p)
	if len(vs.Spec.GetTls()) > 0 {
		p.withTLS(vs.Spec.GetHosts())
	}
	return p
}

// subnets decides by the addresses that a VirtualService matches: one with another's
// is for its own namespace, and none reaches who has such addresses to itself.
func (w *restricter) subnets(source int, vs *VirtualService, p *hostParts) {
	names := subnetNames(vs)
	for _, a := range names {
		if r := w.owners.matchedAddress(source, vs, a); r != nil {
			p.conflicts = append(p.conflicts, foreignAddressConflict(&vs.Meta, a, r, w.owners.advise(source, a, vs.Namespace, true)))
			p.rest = append(append(p.rest, p.open...), p.elsewhere...)
			p.open, p.elsewhere = nil, nil
			return
		}
	}
	if private := w.owners.privateAddresses(source, vs.Namespace, names); len(private) > 0 {
		p.conflicts = append(p.conflicts, privateAddressConflict(&vs.Meta, names[0], private[0], w.owners.advise(source, names[0], vs.Namespace, true)))
		p.without = append(p.without, namespacesOf(private)...)
		p.open, p.elsewhere = nil, append(p.open, p.elsewhere...)
	}
}

// virtualService decides for a VirtualService of a bound source; nil means that it
// stays as it is. Of one with hosts of its own and others', the others' are split
// off: the routes of the own ones go on to hold for everybody.
func (w *restricter) virtualService(source int, vs *VirtualService, was *decision[*VirtualService]) *decision[*VirtualService] {
	if len(w.routeHosts(vs))+len(w.gatewayHosts(vs)) == 0 || w.overridden(source, vs.Key) {
		return nil // and nothing is split off what is not in force
	}
	if len(vs.Spec.GetHosts()) == 0 {
		return nil // it is for nobody, or included by others; and it is in force, so that no later source's is
	}
	p := w.parts(source, vs)
	if len(p.conflicts) == 0 && !p.late {
		return nil
	}
	v := &decision[*VirtualService]{conflicts: p.conflicts}
	own, without := ownOnly(vs.ExportTo, w.exports[1], vs.Namespace), exportsWithout(vs.ExportTo, w.exports[1], vs.Namespace, p.without)
	v.sign = fmt.Sprintf("routes %v %q %q %q %q %q", p.late, p.open, p.elsewhere, p.given, own, without) // the hashes of what comes out are made of it
	if was != nil && was.sign == v.sign {
		v.out = was.out
		return v
	}
	add := func(hosts []string, part string, change func(*VirtualService)) {
		if len(hosts) == 0 {
			return
		}
		out := *vs
		if change(&out); len(v.out) > 0 {
			out.Name += part
		}
		out.Hash = hashAs(vs.Hash, v.sign+part)
		if len(p.conflicts) > 0 {
			out.Spec = proto.CloneOf(out.Spec)
			out.Spec.Hosts = hosts
		}
		if p.late {
			out.Created = newestDate()
		}
		v.out = append(v.out, &out)
	}
	rest := p.rest
	if len(p.open)+len(p.elsewhere)+len(p.given) == 0 {
		rest = vs.Spec.GetHosts()
	}
	add(p.open, "", func(*VirtualService) {})
	add(p.elsewhere, elsewherePart, func(x *VirtualService) {
		x.ExportTo = without
	})
	for i, g := range p.given {
		here := func(there bool) []string {
			return slices.DeleteFunc(slices.Clone(vs.Spec.GetGateways()), func(x string) bool { return slices.Contains(g.gateways, x) != there })
		}
		add(g.hosts, fmt.Sprint(givenPart, i), func(x *VirtualService) {
			x.Spec = withGateways(vs.Spec, here(true))
		})
		add(g.hosts, fmt.Sprint(notGivenPart, i), func(x *VirtualService) {
			x.Spec, x.ExportTo, x.Created = withGateways(vs.Spec, here(false)), own, newestDate()
		})
	}
	add(rest, ownNamespacePart, func(x *VirtualService) {
		x.ExportTo, x.Created = own, newestDate()
	})
	return v
}

// privateNames are all names of a service that its own namespace alone sees.
func (w *restricter) privateNames(svc *Service) []Hostname {
	if svc == nil || len(w.serviceHosts(svc)) > 0 || !exportedTo(svc.ExportTo, w.exports[0], svc.Namespace, svc.Namespace) {
		return nil
	}
	out := append(aliasesOf(svc), svc.Hostname.canonical())
	out = append(append(out, addressNames(svc)...), inlineNames(svc)...)
	slices.Sort(out)
	return slices.Compact(out)
}

// privateOf are services that other namespaces have to themselves, and that a
// VirtualService of a bound source would route; none of a host of its pattern.
func (o *owners) privateOf(source int, vs *VirtualService, h Hostname) []*Service {
	b := o.bindings[source]
	if b.covers(h) {
		return nil
	}
	if isAddress(h) {
		return o.privateAddresses(source, vs.Namespace, []Hostname{h})
	}
	var out []*Service
	for i := range o.claims {
		note := func(svc *Service) bool {
			if svc.Namespace != vs.Namespace && !b.has(svc.Namespace) {
				out = append(out, svc)
			}
			return true
		}
		private := &o.claims[i].private
		private.find(h, false, note)
		if h.IsWildcard() {
			private.order.below(h, func(x Hostname) bool { return private.find(x, false, note) })
		}
		if o.bindings[i] == nil {
			continue
		}
		// So have those whose service is for nobody else, as the host is another's.
		o.claims[i].services.find(h, true, func(svc *Service) bool {
			x := svc.Hostname.canonical()
			return x == h && !h.IsWildcard() || svc.Namespace == vs.Namespace || b.has(svc.Namespace) || o.host(i, svc) == nil || note(svc)
		})
	}
	return out
}

// exportsWithout are exports but for some namespaces.
func exportsWithout(exports Exports, defaults []string, own string, without []string) Exports {
	to := audienceOf(exports, defaults, own)
	if to.all {
		out := Exports{"*"}
		for _, ns := range without {
			out = append(out, "!"+ns)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	out := slices.DeleteFunc(Exports(slices.Clone(to.namespaces)), func(ns string) bool { return slices.Contains(without, ns) })
	if len(out) == 0 {
		return Exports{"~"}
	}
	return out
}

// privateHostConflict is the conflict of a VirtualService for a host that another namespace
// has a private service for.
func privateHostConflict(m *Meta, h Hostname, private *Service, advice Advice) Conflict {
	return Conflict{
		Key: m.Key, Host: h, Kept: private.Origin, Dropped: m.Origin, Foreign: true,
		Reason: fmt.Sprintf("the namespace %s has a service of its own for the host %q (%s, %s): the routes of this object, whose source is bound to namespaces, for %q do not apply to clients "+
			"there; %s", private.Namespace, private.Hostname, private.Key, private.Origin, h, advice.Text),
	}
}

// privateAddressConflict is the conflict of an object with an address that another
// namespace uses in a private service.
func privateAddressConflict(m *Meta, a Hostname, private *Service, advice Advice) Conflict {
	return Conflict{
		Key: m.Key, Host: a, Kept: private.Origin, Dropped: m.Origin, Foreign: true,
		Reason: fmt.Sprintf("the namespace %s uses the address %q in a service of its own (%s, %s): this object, whose source is bound to namespaces, does not apply to clients "+
			"there; %s", private.Namespace, a, private.Key, private.Origin, advice.Text),
	}
}
