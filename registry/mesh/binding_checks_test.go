package mesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// titlesOf are the namespaces that a name is given to by the documentation, other than by a pattern or a declaration: the
// narrowest name counts that is given to a namespace.
func (w *tenants) titlesOf(s *Snapshot, h Hostname, gateways bool) map[string]bool {
	out, best := map[string]bool{}, Hostname("")
	try := func(name Hostname, ns string, strong bool) {
		switch {
		case !covering(name, h):
		case best == "" || compareWidth(name, best) < 0:
			best, out = name, map[string]bool{ns: true}
		case compareWidth(name, best) == 0 && strong:
			out[ns] = true
		}
	}
	for i := range 5 {
		ns := fmt.Sprint("ns", i)
		try(Hostname("*."+ns+".svc.cluster.local"), ns, true)
	}
	w.givenByGateways(s, func(host Hostname, ns string) {
		// What is too wide counts at its Gateway alone, and no routes here are for one of these.
		if strings.Count(strings.TrimPrefix(string(host), "*."), ".") > 0 {
			try(host, ns, true)
		}
	})
	given := best
	for _, g := range w.grants.All() {
		if gateways || !g.Gateways {
			try(g.Name, g.Namespace, best != given)
		}
	}
	return out
}

// hasTitle reports whether a name is a source's by the documentation, other than by a pattern or a declaration:
// it is given to a namespace of it, and nothing below is given to others, but by a Gateway if the name is granted.
func (w *tenants) hasTitle(s *Snapshot, b *Binding, h Hostname, gateways bool) bool {
	own := func(ns map[string]bool) bool {
		return slices.ContainsFunc(b.Namespaces, func(n string) bool { return ns[n] })
	}
	granted, below := Hostname(""), map[Hostname]map[string]bool{}
	var of []string
	note := func(name Hostname, ns string) {
		if isWide(h) && name != h && covering(h, name) {
			if below[name] == nil {
				below[name] = map[string]bool{}
			}
			below[name][ns] = true
		}
	}
	for _, g := range w.grants.All() {
		if g.Gateways {
			continue
		}
		note(g.Name, g.Namespace)
		switch {
		case !covering(g.Name, h) || granted != "" && compareWidth(g.Name, granted) > 0:
		case granted != "" && compareWidth(g.Name, granted) == 0:
			of = append(of, g.Namespace)
		default:
			granted, of = g.Name, []string{g.Namespace}
		}
	}
	limited := func() bool {
		for _, namespaces := range below {
			if !own(namespaces) {
				return true
			}
		}
		return false
	}
	if !gateways && limited() {
		return false
	}
	if !gateways && !slices.ContainsFunc(of, b.has) {
		clear(below)
		w.givenByGateways(s, func(name Hostname, ns string) {
			if !tooWide(name) {
				note(name, ns)
			}
		})
		if limited() {
			return false
		}
	}
	return own(w.titlesOf(s, h, gateways))
}

// givenByGateways yields what Gateways of unbound sources give to namespaces.
func (w *tenants) givenByGateways(s *Snapshot, yield func(name Hostname, ns string)) {
	for _, g := range s.Gateways {
		if w.bindings[sourceOf(&g.Meta)] != nil {
			continue
		}
		for _, server := range g.Spec.GetServers() {
			ns, host, _ := strings.Cut(server.Hosts[0], "/")
			switch ns {
			case "*":
				continue // it gives the host to nobody
			case ".":
				ns = g.Namespace
			}
			yield(Hostname(host), ns)
		}
	}
}

// checkOwners holds to the definition what other namespaces see of bound sources: hosts of their patterns and titles
// alone, besides routes for what an unbound source or the catalog declares in their namespace; and nothing of what
// these declare elsewhere, nor of another's pattern.
func (w *tenants) checkOwners(t *testing.T, s *Snapshot) {
	t.Helper()
	type claim struct {
		source            int
		namespace         string
		host              Hostname
		service, gateways bool
	}
	var claims []claim
	for _, svc := range s.Services {
		if !onlyOwn(svc.ExportTo, s.MeshConfig.Spec.GetDefaultServiceExportTo(), svc.Namespace) {
			claims = append(claims, claim{sourceOf(&svc.Meta), svc.Namespace, svc.Hostname.canonical(), true, false})
		}
	}
	for _, vs := range s.VirtualServices {
		if len(vs.Spec.Hosts) > 0 && !onlyOwn(vs.ExportTo, s.MeshConfig.Spec.GetDefaultVirtualServiceExportTo(), vs.Namespace) {
			for _, h := range routedNames(vs) {
				claims = append(claims, claim{sourceOf(&vs.Meta), vs.Namespace, h, false, !routesSidecars(w.written(vs))})
			}
		}
	}
	for _, c := range claims {
		b := w.bindings[c.source]
		if b == nil || b.covers(c.host) {
			continue
		}
		if r := (&owners{bindings: w.bindings}).pattern(c.source, c.host); r != nil {
			t.Fatalf("%v is seen by others, and the host is that of %s", c, r)
		}
		own := w.hasTitle(s, b, c.host, c.gateways)
		// Addresses are held to their owners by checkExports. A ServiceEntry may replace the catalog's service, which
		// the snapshot then lacks.
		if !own && c.service && !isAddress(c.host) && !w.inCatalog(c.host, c.namespace) {
			t.Fatalf("%v is seen by others, and no title gives it to the source", c)
		}
		if !own && !c.service && !isAddress(c.host) && !w.declaredFor(s, c.source, c.host, c.namespace) {
			t.Fatalf("%v is seen by others, and neither a title nor a service gives it to the source", c)
		}
		for _, o := range claims {
			of := w.bindings[o.source]
			if of != nil || !o.service || o.namespace == c.namespace || o.source == 4 && c.service && w.inCatalog(c.host, c.namespace) {
				continue
			}
			if own && b.has(o.namespace) { // both namespaces are the source's, and the name is its, too
				continue
			}
			settled := b.ownsByName(c.host) && c.service
			if o.host == c.host || o.host.Overlaps(c.host) && !settled && (c.service || !o.host.IsWildcard() || c.host.IsWildcard()) {
				t.Fatalf("%v is seen by others, and so is %v", c, o)
			}
		}
	}
}

// written is a VirtualService as its source has it: a part of it may be for gateways alone.
func (w *tenants) written(part *VirtualService) *VirtualService {
	name := strings.TrimSuffix(part.Name, gatewaysPart)
	for _, suffix := range []string{elsewherePart, ownNamespacePart} {
		name = strings.TrimSuffix(name, suffix)
	}
	if vs, is := w.objects[sourceOf(&part.Meta)][Key{part.Kind, part.Namespace, name}].(*VirtualService); is {
		return vs
	}
	return part
}

// inCatalog reports whether the catalog has a service of a host in a namespace.
func (w *tenants) inCatalog(h Hostname, namespace string) bool {
	for _, x := range w.objects[4] {
		if svc, is := x.(*Service); is && svc.Hostname.canonical() == h && svc.Namespace == namespace {
			return true
		}
	}
	return false
}

// declaredFor reports whether there is a service that lets a namespace route a host: one of the source itself, one of an
// unbound source in the namespace, or one in the namespace of another source whose title gives it the host.
func (w *tenants) declaredFor(s *Snapshot, source int, h Hostname, namespace string) bool {
	for i, objects := range w.objects {
		for _, x := range objects {
			svc, is := x.(*Service)
			if !is || !covering(svc.Hostname.canonical(), h) {
				continue
			}
			if i == source || svc.Namespace == namespace && (w.bindings[i] == nil || w.hasTitle(s, w.bindings[i], svc.Hostname.canonical(), false)) {
				return true
			}
		}
	}
	return false
}

// checkUntouched wants everything that no other namespace sees, and that no name can be
// another's of, as its source has it.
func (w *tenants) checkUntouched(t *testing.T, s *Snapshot, config *MeshConfig) {
	t.Helper()
	routes, rest := map[*VirtualService]bool{}, map[Key]*Meta{}
	for _, vs := range s.VirtualServices {
		routes[vs] = true
	}
	for _, list := range [][]*Meta{metas(s.Sidecars), metas(s.DestinationRules), metas(s.PeerAuthentications)} {
		for _, m := range list {
			rest[m.Key] = m
		}
	}
	type place struct {
		kind      Kind
		namespace string
	}
	count, sources := map[Key]int{}, map[place]map[int]bool{}
	for i, objects := range w.objects {
		for k := range objects {
			count[k]++
			at := place{k.Kind, k.Namespace}
			if sources[at] == nil {
				sources[at] = map[int]bool{}
			}
			sources[at][i] = true
		}
	}
	for _, objects := range w.objects {
		for k, x := range objects {
			switch x := x.(type) {
			case *VirtualService:
				private := onlyOwn(x.ExportTo, config.Spec.GetDefaultVirtualServiceExportTo(), x.Namespace) && !isDelegate(x) // see checkIncluded
				if private && count[k] == 1 && !routes[x] {
					t.Fatalf("%s, which no other namespace sees, is not there as it was", k)
				}
			case *Sidecar, *DestinationRule, *PeerAuthentication:
				m := x.(object0).meta()
				switch {
				case rest[k] == nil:
					t.Fatalf("%s is not there", k)
				case len(sources[place{k.Kind, k.Namespace}]) == 1 && rest[k] != m && !w.refusedCredential(x):
					t.Fatalf("%s, the only source of its kind in the namespace, is not there as it was", k)
				}
			}
		}
	}
}

// refusedCredential reports whether an object is a rule of a bound source that not everybody has as it is written.
func (w *tenants) refusedCredential(x any) bool {
	r, is := x.(*DestinationRule)
	if !is {
		return false
	}
	b, name := w.bindings[sourceOf(&r.Meta)], r.Spec.GetTrafficPolicy().GetTls().GetCredentialName()
	return b != nil && name != "" && !slices.Contains(b.Credentials, name)
}

// checkExports holds who sees a service of a bound source, and at which ports others go first, to
// the decisions that they are made of.
func (w *tenants) checkExports(t *testing.T, s *Snapshot) {
	t.Helper()
	o := s.tables.restrictions.owners
	o.cache = newDecisionCache()
	out := map[string]*Service{}
	for _, svc := range s.Services {
		out[svc.Origin.Source+" "+svc.String()+" "+string(svc.Hostname)] = svc
	}
	for i, f := range s.tables.restrictions.inputs {
		if w.bindings[i] == nil {
			continue
		}
		for _, svc := range f.services() {
			is := out[svc.Origin.Source+" "+svc.String()+" "+string(svc.Hostname)]
			if is == nil || onlyOwn(svc.ExportTo, o.defaults, svc.Namespace) {
				continue // another source has an object with its key
			}
			restricted := o.isRestricted(i, svc)
			hidden := namespacesOf(o.privateAddresses(i, svc.Namespace, addressNames(svc)))
			for _, ns := range []string{"ns0", "ns1", "ns2", "ns3", "ns4", "other"} {
				want := exportedTo(svc.ExportTo, o.defaults, svc.Namespace, ns) && (ns == svc.Namespace || !restricted && !slices.Contains(hidden, ns))
				if got := exportedTo(is.ExportTo, o.defaults, is.Namespace, ns); got != want {
					t.Fatalf("%s of source %d is seen by %s: %v; restricted %v, others' own in %v", svc.Key, i, ns, got, restricted, hidden)
				}
			}
			if !restricted && (!slices.Equal(is.Yields, o.yields(i, svc)) || !is.Created.Equal(svc.Created)) {
				t.Fatalf("%s of source %d yields at %v and is of %s; want %v and %s", svc.Key, i, is.Yields, is.Created, o.yields(i, svc), svc.Created)
			}
		}
	}
}

// checkRoutes holds who has the routes of a bound source's VirtualService to the definition, host
// by host: its own namespace; others if no name that it matches is another's; but none that has
// such a name to itself. What comes behind others' routes has a late date.
func (w *tenants) checkRoutes(t *testing.T, s *Snapshot) {
	t.Helper()
	o := s.tables.restrictions.owners
	o.cache = newDecisionCache()
	defaults := s.tables.restrictions.exports[1]
	parts := map[Origin][]*VirtualService{}
	for _, vs := range s.VirtualServices {
		parts[*vs.Origin] = append(parts[*vs.Origin], vs)
	}
	for i, f := range s.tables.restrictions.inputs {
		if w.bindings[i] == nil {
			continue
		}
		for _, vs := range f.virtualServices() {
			if len(parts[*vs.Origin]) == 0 || onlyOwn(vs.ExportTo, defaults, vs.Namespace) {
				continue // another source has an object with its key, or nothing is decided
			}
			all := o.whoHas(i, vs)
			for _, name := range vs.Spec.Hosts {
				h := Hostname(name).canonical()
				foreign := all.foreign || o.routes(i, vs, h) != nil
				var hidden []string
				if len(all.hidden) > 0 || !foreign && len(o.privateOf(i, vs, h)) > 0 {
					hidden = append(slices.Clone(all.hidden), all.ofHosts...)
				}
				for _, ns := range []string{"ns0", "ns1", "ns2", "ns3", "ns4", "other"} {
					want := exportedTo(vs.ExportTo, defaults, vs.Namespace, ns) && (ns == vs.Namespace || !foreign && !slices.Contains(hidden, ns))
					got := 0
					for _, x := range parts[*vs.Origin] {
						if !strings.HasSuffix(x.Name, gatewaysPart) && slices.Contains(x.Spec.Hosts, name) && exportedTo(x.ExportTo, defaults, x.Namespace, ns) {
							got++
							if late := x.Created.Equal(newestDate()); late != (all.late || foreign) {
								t.Fatalf("%s of source %d, for %s in %s, comes last: %v", vs.Key, i, name, ns, late)
							}
						}
					}
					if got > 1 || (got == 1) != want {
						t.Fatalf("%s of source %d, for %s, is there %d times for %s; foreign %v, others' own in %v", vs.Key, i, name, got, ns, foreign, hidden)
					}
				}
			}
		}
	}
}

// nameHolders is who else has names that all routes of a VirtualService match: foreign if a name
// is another's, hidden are the namespaces that have one to themselves. ofHosts are those that have
// one of its hosts to themselves: they get the routes of no host that any namespace has so.
type nameHolders struct {
	foreign, late   bool
	hidden, ofHosts []string
}

func (o *owners) whoHas(source int, vs *VirtualService) nameHolders {
	var out nameHolders
	for _, name := range vs.Spec.Hosts {
		h := Hostname(name).canonical()
		if o.routes(source, vs, h) != nil {
			out.foreign = out.foreign || len(vs.Spec.Tls) > 0
			continue
		}
		out.late = out.late || o.late(source, vs, h)
		private := namespacesOf(o.privateOf(source, vs, h))
		out.ofHosts = append(out.ofHosts, private...)
		if len(vs.Spec.Tls) > 0 { // its rules match all hosts, whichever it is for
			out.hidden = append(out.hidden, private...)
		}
	}
	for _, h := range sniNames(vs) {
		out.foreign = out.foreign || o.routes(source, vs, h) != nil || o.shortName(source, h) != nil
		out.hidden = append(out.hidden, namespacesOf(o.privateOf(source, vs, h))...)
	}
	if !slices.Contains(vs.Spec.Gateways, "mesh") {
		return out
	}
	addresses := subnetNames(vs)
	for _, a := range addresses {
		foreign := !o.hasAddress(source, vs.Namespace, a) && o.address(source, vs.Namespace, a) != nil
		out.foreign = out.foreign || foreign || ofControlPlane(a) && !o.bindings[source].covers(a)
	}
	out.hidden = append(out.hidden, namespacesOf(o.privateAddresses(source, vs.Namespace, addresses))...)
	return out
}

// ofControlPlane reports whether a name has addresses that the control plane gives to hosts. They are nobody's
// who does not have them by a pattern, whatever an unbound source declares.
func ofControlPlane(a Hostname) bool {
	return overlapping(a, "240.0.0.0/4") || overlapping(a, "2001:2::/48")
}

func metas[T object](list []T) []*Meta {
	out := make([]*Meta, len(list))
	for i, x := range list {
		out[i] = x.meta()
	}
	return out
}

// checkWithoutCache asks for all decisions with one cache, and for each without one.
func (w *tenants) checkWithoutCache(t *testing.T, s *Snapshot) {
	t.Helper()
	without := s.tables.restrictions.owners
	with := without
	with.cache = newDecisionCache()
	ask := func(o *owners, source int, svc *Service) string {
		r := o.service(source, svc)
		var private []Key
		for _, p := range o.privateAddresses(source, svc.Namespace, addressNames(svc)) {
			private = append(private, p.Key)
		}
		return fmt.Sprint(r, o.yields(source, svc), private, o.isRestricted(source, svc))
	}
	for i, f := range s.tables.restrictions.inputs {
		if w.bindings[i] == nil {
			continue
		}
		for _, ns := range w.bindings[i].Namespaces {
			for _, port := range []uint32{80, 443, 3306} {
				for _, http := range []bool{false, true} {
					q := portKey{i, ns, port, http, port == 443}
					if got, want := with.yieldsAt(q), without.yieldsAt(q); got != want {
						t.Fatalf("with the decisions that are known, %s of source %d yields at %d, HTTP %v: %v; it is %v", ns, i, port, http, got, want)
					}
				}
			}
		}
		for _, svc := range f.services() {
			if onlyOwn(svc.ExportTo, without.defaults, svc.Namespace) {
				continue
			}
			if got, want := ask(&with, i, svc), ask(&without, i, svc); got != want {
				t.Fatalf("with the decisions that are known, %s of source %d is %s; it is %s", svc.Key, i, got, want)
			}
		}
	}
}

// checkDates wants objects of bound sources behind those of others in a namespace
// in which any object was dated.
func checkDates[T object](t *testing.T, w *tenants, list []T) {
	t.Helper()
	for i, x := range list {
		for _, y := range list[:i] {
			a, b := y.meta(), x.meta()
			if a.Namespace != b.Namespace || a.Origin.Source == b.Origin.Source {
				continue
			}
			first, second := w.bindings[a.Origin.Source[0]-'0'], w.bindings[b.Origin.Source[0]-'0']
			if first != nil && second == nil && (!a.Created.IsZero() || !b.Created.IsZero()) || first != nil && second != nil && a.Created != b.Created {
				t.Fatalf("%s of %s comes before %s of %s", a.Key, a.Origin, b.Key, b.Origin)
			}
		}
	}
}
