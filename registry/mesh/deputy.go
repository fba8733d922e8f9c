package mesh

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// gatewaysPart ends the name of what is split off a VirtualService for gateways of other namespaces: no object of a file
// is called so.
const gatewaysPart = "/gateways"

// refusedHost is in the place of a destination to which no connection may be made. No service has such a host.
const refusedHost = "refused.invalid"

// deputies are the VirtualServices of sources that are bound to namespaces, as gateways of other namespaces may follow
// them. There, a route speaks with the identity of the gateway: to a service of a third tenant, which
// may let the gateway in and not the author of the route.
type deputies struct {
	in, out   [][]*VirtualService
	services  [][]*Service
	exports   [2][]string // defaults for services and for VirtualServices
	made      []map[deputy][]*VirtualService
	conflicts []Conflict
}

// deputy is what is made of a VirtualService: refused are the destinations, by their paths.
type deputy struct {
	vs      *VirtualService
	refused string
}

// next makes the VirtualServices of other fragments; bindings are as before.
func (d *deputies) next(fragments []*Fragment, bindings []*Binding, exports [2][]string) deputies {
	next := deputies{
		in:       lists(fragments, func(f *Fragment) []*VirtualService { return f.VirtualServices }),
		services: lists(fragments, func(f *Fragment) []*Service { return f.Services }), exports: exports,
	}
	asked := next.destinations(bindings)
	if slices.Equal(d.exports[0], exports[0]) && slices.Equal(d.exports[1], exports[1]) && sameLists(d.in, next.in) && (len(asked) == 0 || sameLists(d.services, next.services)) {
		return *d
	}
	found := servicesOn(asked, next.services, bindings)
	next.out, next.made = slices.Clone(next.in), make([]map[deputy][]*VirtualService, len(next.in))
	for i, b := range bindings {
		if b != nil && len(asked) > 0 {
			next.decide(i, b, found, d)
		}
	}
	slices.SortFunc(next.conflicts, compareConflicts)
	next.conflicts = slices.Compact(next.conflicts) // the parts of a VirtualService have the same routes
	return next
}

// destinations are the hosts that bound sources route to at gateways of other namespaces.
func (d *deputies) destinations(bindings []*Binding) map[Hostname]bool {
	out := map[Hostname]bool{}
	for i, b := range bindings {
		if b == nil {
			continue
		}
		for _, vs := range d.in[i] {
			if len(othersGateways(vs)) > 0 {
				for _, to := range destinationsOf(vs.Spec) {
					out[Hostname(to.GetHost()).canonical()] = true
				}
			}
		}
	}
	return out
}

// othersGateways are the Gateways of other namespaces that a VirtualService names.
func othersGateways(vs *VirtualService) []string {
	var out []string
	for _, g := range vs.Spec.GetGateways() {
		if ns, _, named := strings.Cut(g, "/"); named && ns != vs.Namespace {
			out = append(out, g)
		}
	}
	return out
}

// destinationsOf yields the destinations of a VirtualService, and their paths.
func destinationsOf(spec *networking.VirtualService) func(func(string, *networking.Destination) bool) {
	return func(yield func(string, *networking.Destination) bool) {
		for i, r := range spec.GetHttp() {
			for at, to := range httpDestinations(r) {
				if !yield(fmt.Sprintf("spec.http[%d].%s", i, at), to) {
					return
				}
			}
		}
		for i, r := range spec.GetTcp() {
			for j, x := range r.GetRoute() {
				if !yield(fmt.Sprintf("spec.tcp[%d].route[%d].destination", i, j), x.GetDestination()) {
					return
				}
			}
		}
		for i, r := range spec.GetTls() {
			for j, x := range r.GetRoute() {
				if !yield(fmt.Sprintf("spec.tls[%d].route[%d].destination", i, j), x.GetDestination()) {
					return
				}
			}
		}
	}
}

func httpDestinations(r *networking.HTTPRoute) func(func(string, *networking.Destination) bool) {
	return func(yield func(string, *networking.Destination) bool) {
		for i, x := range r.GetRoute() {
			if !yield(fmt.Sprintf("route[%d].destination", i), x.GetDestination()) {
				return
			}
		}
		for i, x := range r.GetMirrors() {
			if !yield(fmt.Sprintf("mirrors[%d].destination", i), x.GetDestination()) {
				return
			}
		}
		if m := r.GetMirror(); m != nil {
			yield("mirror", m)
		}
	}
}

// boundService is a service, and the source that has it; nil if that is bound to no namespace.
type boundService struct {
	*Service
	source *Binding
}

// servicesOn are the services with some hosts.
func servicesOn(hosts map[Hostname]bool, services [][]*Service, bindings []*Binding) map[Hostname][]boundService {
	out := map[Hostname][]boundService{}
	if len(hosts) == 0 {
		return out
	}
	for i, list := range services {
		for _, svc := range list {
			if h := svc.Hostname.canonical(); hosts[h] {
				out[h] = append(out[h], boundService{svc, bindings[i]})
			}
		}
	}
	return out
}

// third is the tenant's service that a route of a namespace leads to although nobody has said that it may: of no
// unbound source, of no catalog, of another namespace, and no written exportTo names the namespace of the
// route; nil if there is none. A service of the tenant's own that gateways of other namespaces do not see is not
// where they follow the route to: a tenant may give one the host of somebody else.
func (d *deputies) third(list []boundService, namespace string, b *Binding) *Service {
	var out *Service
	for _, svc := range list {
		own := b.has(svc.Namespace)
		switch {
		case svc.source != nil && own && onlyOwn(svc.ExportTo, d.exports[0], svc.Namespace):
			continue
		case svc.source == nil || own || slices.Contains(svc.ExportTo, namespace):
			return nil
		}
		if out == nil || svc.Compare(out.Key) < 0 {
			out = svc.Service
		}
	}
	return out
}

// decide decides for the VirtualServices of one source.
func (d *deputies) decide(i int, b *Binding, found map[Hostname][]boundService, before *deputies) {
	d.made[i] = map[deputy][]*VirtualService{}
	var out []*VirtualService
	changed := false
	for _, vs := range d.in[i] {
		refused := map[string]bool{}
		var fields []string
		if len(othersGateways(vs)) > 0 && !onlyOwn(vs.ExportTo, d.exports[1], vs.Namespace) {
			for at, to := range destinationsOf(vs.Spec) {
				if svc := d.third(found[Hostname(to.GetHost()).canonical()], vs.Namespace, b); svc != nil {
					refused[at], fields = true, append(fields, at)
					d.conflicts = append(d.conflicts, deputyConflict(vs, at, svc, b.RoutesOnly))
				}
			}
		}
		if len(refused) == 0 || !b.RoutesOnly {
			out = append(out, vs)
			continue
		}
		changed = true
		key := deputy{vs, strings.Join(fields, " ")}
		var made []*VirtualService
		if len(before.made) > i {
			made = before.made[i][key]
		}
		if made == nil {
			made = splitDeputy(vs, refused, key.refused)
		}
		d.made[i][key] = made
		out = append(out, made...)
	}
	if changed {
		d.out[i] = sorted(out, compareKeys)
	}
	if len(before.out) > i && slices.Equal(before.out[i], d.out[i]) {
		d.out[i] = before.out[i]
	}
}

func deputyConflict(vs *VirtualService, at string, svc *Service, refused bool) Conflict {
	what := "gateways of other namespaces call it for this source, which is bound to namespaces, as themselves"
	if refused {
		what = "refused: gateways of other namespaces do not call it for this source, which is bound to namespaces (--config-routes-only)"
	}
	name := vs.Key
	name.Name, _, _ = strings.Cut(name.Name, "/")
	return Conflict{
		Key: name, Dropped: vs.Origin, Kind: ConflictRoute, Refused: refused, Field: at,
		Reason: fmt.Sprintf("%s is a service of the namespace %s: %s; if %s is to route to it, let the service write exportTo with %q", svc.Hostname, svc.Namespace, what, vs.Namespace, vs.Namespace),
	}
}

// splitDeputy makes two of a VirtualService: as it is for sidecars and for gateways of its own namespace, and one for the
// other gateways, in which a route with a refused destination answers 503, or ends connections.
func splitDeputy(vs *VirtualService, refused map[string]bool, sign string) []*VirtualService {
	others := othersGateways(vs)
	part := func(suffix string) *VirtualService {
		out := *vs
		out.Spec = vs.Spec.DeepCopy()
		out.Name += suffix
		out.Hash = hashAs(vs.Hash, "deputy"+suffix+" "+sign)
		return &out
	}
	own, there := part(""), part(gatewaysPart)
	own.Spec.Gateways = slices.DeleteFunc(own.Spec.Gateways, func(g string) bool { return slices.Contains(others, g) })
	there.Spec.Gateways = others
	for i, r := range there.Spec.GetHttp() {
		for at := range httpDestinations(r) {
			if refused[fmt.Sprintf("spec.http[%d].%s", i, at)] {
				there.Spec.Http[i] = &networking.HTTPRoute{Name: r.GetName(), Match: r.GetMatch(), DirectResponse: &networking.HTTPDirectResponse{Status: 503}}
				break
			}
		}
	}
	for at, to := range destinationsOf(there.Spec) {
		if refused[at] {
			to.Host = refusedHost
		}
	}
	if len(own.Spec.GetGateways()) == 0 { // which would mean sidecars
		there.Name = vs.Name
		return []*VirtualService{there}
	}
	return []*VirtualService{own, there}
}

// put puts the VirtualServices into the fragments, in which they replace those of bound sources.
func (d *deputies) put(fragments []*Fragment, bindings []*Binding) {
	for i, f := range fragments {
		if bindings[i] == nil || f == nil || sameSlice(f.VirtualServices, d.out[i]) {
			continue
		}
		next := *f
		next.VirtualServices = d.out[i]
		fragments[i] = &next
	}
}
