package mesh

import "slices"

// Recorded is a name on the record of owners that earlier releases kept.
type Recorded struct {
	Name      Hostname
	Namespace string
	// Routes says that the namespace only had routes for the name.
	Routes bool
}

// InheritGrants are the grants by which bound sources keep what they had before owners were decided by
// patterns alone: recorded names and ports, and names that their VirtualServices match and that nobody has.
// Grants of the input do not count.
func InheritGrants(in Input, recorded []Recorded) []Grant {
	in.Prev, in.Grants = nil, nil
	s := &Snapshot{MeshConfig: in.Fallback}
	for _, f := range slices.Backward(in.Fragments) {
		if f != nil && f.MeshConfig != nil {
			s.MeshConfig = f.MeshConfig
		}
	}
	s.restrict(&Snapshot{}, in)
	x := &heir{owners: s.tables.restrictions.owners, recorded: newTitles()}
	x.owners.cache = newDecisionCache()
	for _, r := range recorded {
		if !r.Routes {
			x.recorded.add(r.Name, r.Namespace)
		}
	}
	x.recorded.finish()
	for _, r := range recorded {
		x.inherit(r)
	}
	for i, b := range x.owners.bindings {
		if b == nil {
			continue
		}
		for _, svc := range s.tables.restrictions.inputs[i].services() {
			x.inheritWide(i, svc)
		}
		for _, vs := range s.tables.restrictions.inputs[i].virtualServices() {
			if !onlyOwn(vs.ExportTo, s.tables.restrictions.exports[1], vs.Namespace) {
				x.inheritRoutes(i, vs)
			}
		}
	}
	x.inheritPorts(recorded)
	return NewGrants(x.out).All()
}

// heir collects grants.
type heir struct {
	owners   owners
	recorded titles // those that declared them
	out      []Grant
}

func (x *heir) grant(h Hostname, namespace string, gateways bool) {
	x.out = append(x.out, Grant{Name: h, Namespace: namespace, Gateways: gateways})
}

// inherit makes a grant of a recorded name, if a source of the namespace would not have it otherwise.
func (x *heir) inherit(r Recorded) {
	if len(r.Name) == 0 || r.Name[0] == ':' {
		return // a port
	}
	if r.Routes && x.ofOthers(r.Name, r.Namespace) {
		return // who declares a name comes before those who route it
	}
	needed := false
	for i, b := range x.owners.bindings {
		if b == nil || !b.has(r.Namespace) || x.owners.pattern(i, r.Name) != nil {
			continue
		}
		if x.owners.hasTitle(b, r.Name, false) || b.covers(r.Name) {
			continue
		}
		needed = needed || !isAddress(r.Name) || x.names(i, r.Name)
	}
	if needed {
		x.grant(r.Name, r.Namespace, false)
	}
}

// inheritPorts makes grants of recorded ports at which others would come first now.
func (x *heir) inheritPorts(recorded []Recorded) {
	x.owners.grants, x.owners.cache = NewGrants(x.out), newDecisionCache()
	for _, r := range recorded {
		if p, is := recordedPort(r.Name); is && x.owners.needsPort(r.Namespace, p) {
			x.grant(p.name(), r.Namespace, false)
		}
	}
}

// names reports whether a source names an address, and does not only have an endpoint there.
func (x *heir) names(source int, a Hostname) bool {
	c := &x.owners.claims[source]
	return len(c.services.get(a))+len(c.addresses.get(a))+len(c.routes.get(a))+len(c.subnets.get(a)) > 0
}

// ofOthers reports whether the narrowest recorded name that covers another one is of other namespaces.
func (x *heir) ofOthers(h Hostname, namespace string) bool {
	_, namespaces := x.recorded.narrowest(h, true)
	return len(namespaces) > 0 && !slices.Contains(namespaces, namespace)
}

// inheritWide makes a grant of a wildcard that was too wide to be on record, and is nobody's. Of several
// namespaces, the first one had it.
func (x *heir) inheritWide(source int, svc *Service) {
	h := svc.Hostname.canonical()
	if !h.IsWildcard() || !tooWide(h) || len(x.owners.claims[source].services.get(h)) == 0 {
		return
	}
	if r := x.owners.host(source, svc); r == nil || !r.nobody {
		return
	}
	for i, b := range x.owners.bindings {
		if b != nil && slices.ContainsFunc(x.owners.claims[i].services.get(h), func(o *Service) bool { return o.Namespace < svc.Namespace }) {
			return
		}
	}
	x.grant(h, svc.Namespace, false)
}

// inheritRoutes makes grants of what a VirtualService matches and nobody has: hosts at gateways, wildcards,
// server names and addresses.
func (x *heir) inheritRoutes(source int, vs *VirtualService) {
	sidecars := routesSidecars(vs)
	for _, h := range routedNames(vs) {
		if r := x.owners.routes(source, vs, h); r != nil && r.nobody && !x.ofOthers(h, vs.Namespace) {
			x.grant(h, vs.Namespace, !sidecars)
		}
	}
	if !sidecars {
		return
	}
	for _, a := range subnetNames(vs) {
		if r := x.owners.matchedAddress(source, vs, a); r != nil && r.nobody && !x.ofOthers(a, vs.Namespace) && !tooWide(a) {
			x.grant(a, vs.Namespace, false)
		}
	}
}
