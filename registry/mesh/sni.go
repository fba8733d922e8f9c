package mesh

import (
	"slices"
	"strings"
)

// sniNames are the server names by which a VirtualService takes connections of TLS, and
// which are none of its hosts: those are resolved in its namespace, and server names are
// matched as they are written, so that "orders" is no short form.
func sniNames(vs *VirtualService) []Hostname {
	var out []Hostname
	for _, r := range vs.Spec.GetTls() {
		for _, m := range r.GetMatch() {
			for _, s := range m.GetSniHosts() {
				h := Hostname(strings.ToLower(s)).plain()
				if !slices.ContainsFunc(vs.Spec.GetHosts(), func(x string) bool { return covering(Hostname(x).plain(), h) }) {
					out = append(out, h)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// serverNames decides by the server names that a VirtualService matches: one with
// another's is for its own namespace, and none reaches who has such a host to itself.
func (w *clipper) serverNames(source int, vs *VirtualService, p *hostParts) {
	for _, h := range sniNames(vs) {
		r := w.owners.routes(source, vs, h)
		if r == nil {
			r = w.owners.shortName(source, h)
		}
		if r != nil {
			p.conflicts = append(p.conflicts, foreign(&vs.Meta, h, r))
			p.rest = append(append(p.rest, p.open...), p.elsewhere...)
			p.open, p.elsewhere = nil, nil
			return
		}
		if private := w.owners.privateOf(source, vs, h); len(private) > 0 {
			p.conflicts = append(p.conflicts, keptOut(&vs.Meta, h, private[0]))
			p.without = append(p.without, namespacesOf(private)...)
			p.open, p.elsewhere = nil, append(p.open, p.elsewhere...)
		}
	}
}

// shortName tells of a service in a namespace of others that has a name as a short form:
// clients there mean that one, whoever else has such a service.
func (o *owners) shortName(source int, h Hostname) *rival {
	b := o.bindings[source]
	if b.covers(h) {
		return nil
	}
	for i := range o.claims {
		for _, svc := range o.claims[i].aliases.get(h) {
			if !b.has(svc.Namespace) && (o.bindings[i] == nil || o.named(i, svc) == nil) {
				return by(&svc.Meta, "namespace "+svc.Namespace+", of whose "+string(svc.Hostname)+" it is another name")
			}
		}
	}
	return nil
}
