package mesh

import (
	"slices"
	"strings"
)

// sniNames are the server names (SNI) that a VirtualService matches, and that are not among
// its hosts. They are matched as written: "orders" is not a short name.
func sniNames(vs *VirtualService) []Hostname {
	var out []Hostname
	for _, r := range vs.Spec.GetTls() {
		for _, m := range r.GetMatch() {
			for _, s := range m.GetSniHosts() {
				h := Hostname(strings.ToLower(s)).canonical()
				if !slices.ContainsFunc(vs.Spec.GetHosts(), func(x string) bool { return covering(Hostname(x).canonical(), h) }) {
					out = append(out, h)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// serverNames restricts a VirtualService by the server names that it matches. One with a
// name of another owner is for its own namespace only. It never applies to a namespace with
// a private service of that name.
func (w *restricter) serverNames(source int, vs *VirtualService, p *hostParts) {
	for _, h := range sniNames(vs) {
		r := w.owners.routes(source, vs, h)
		if r == nil {
			r = w.owners.shortName(source, h)
		}
		if r != nil {
			p.conflicts = append(p.conflicts, foreignHostConflict(&vs.Meta, h, r, w.owners.advise(source, h, vs.Namespace, false)))
			p.rest = append(append(p.rest, p.open...), p.elsewhere...) // and with them, as it has TLS, all
			return
		}
		if private := w.owners.privateOf(source, vs, h); len(private) > 0 {
			p.conflicts = append(p.conflicts, privateHostConflict(&vs.Meta, h, private[0], w.owners.advise(source, h, vs.Namespace, false)))
			p.without = append(p.without, namespacesOf(private)...)
			p.open, p.elsewhere = nil, append(p.open, p.elsewhere...)
		}
	}
}

// shortName returns a service in another namespace for which the name is a short form:
// clients there mean that one.
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
