package mesh

import (
	"cmp"
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
	defaults  [2][]string // exports of services and of VirtualServices without exportTo
	made      []map[deputy][]*VirtualService
	conflicts []Conflict
	// delegates are the VirtualServices that routes may include.
	delegates map[Key]*VirtualService
}

// deputy is what is made of a VirtualService: refused are the destinations, by their paths.
type deputy struct {
	vs      *VirtualService
	refused string
}

// next makes the VirtualServices of other fragments; bindings are as before.
func (d *deputies) next(fragments []*Fragment, bindings []*Binding, defaults [2][]string) deputies {
	next := deputies{
		in:       lists(fragments, func(f *Fragment) []*VirtualService { return f.VirtualServices }),
		services: lists(fragments, func(f *Fragment) []*Service { return f.Services }), defaults: defaults,
	}
	next.delegates = next.findDelegates(bindings)
	asked := next.destinations(bindings)
	if slices.Equal(d.defaults[0], defaults[0]) && slices.Equal(d.defaults[1], defaults[1]) && sameLists(d.in, next.in) && (len(asked) == 0 || sameLists(d.services, next.services)) {
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
	out, read := map[Hostname]bool{}, map[*VirtualService]bool{}
	for i, b := range bindings {
		if b == nil {
			continue
		}
		for _, vs := range d.in[i] {
			if len(othersGateways(vs)) == 0 {
				continue
			}
			for _, to := range destinationsOf(vs.Spec) {
				out[Hostname(to.GetHost()).canonical()] = true
			}
			for _, r := range vs.Spec.GetHttp() {
				if x := d.delegate(vs, r); x != nil && !read[x] {
					read[x] = true
					for _, to := range destinationsOf(x.Spec) {
						out[Hostname(to.GetHost()).canonical()] = true
					}
				}
			}
		}
	}
	return out
}

// findDelegates are the VirtualServices that may be included, if a bound source includes any.
func (d *deputies) findDelegates(bindings []*Binding) map[Key]*VirtualService {
	including := false
	for i, b := range bindings {
		including = including || b != nil && slices.ContainsFunc(d.in[i], func(vs *VirtualService) bool {
			return len(othersGateways(vs)) > 0 && slices.ContainsFunc(vs.Spec.GetHttp(), func(r *networking.HTTPRoute) bool { return r.GetDelegate() != nil })
		})
	}
	out := map[Key]*VirtualService{}
	if !including {
		return out
	}
	for _, bound := range []bool{false, true} { // in order of precedence
		for i, list := range d.in {
			for _, vs := range list {
				if _, known := out[vs.Key]; !known && (bindings[i] != nil) == bound && len(vs.Spec.GetHosts()) == 0 {
					out[vs.Key] = vs
				}
			}
		}
	}
	return out
}

// delegate is what a route includes, if it may; or nil.
func (d *deputies) delegate(vs *VirtualService, r *networking.HTTPRoute) *VirtualService {
	to := r.GetDelegate()
	if to == nil {
		return nil
	}
	key := Key{vs.Kind, cmp.Or(to.GetNamespace(), vs.Namespace), to.GetName()}
	if x := d.delegates[key]; x != nil && exportedTo(x.ExportTo, d.defaults[1], x.Namespace, vs.Namespace) {
		return x
	}
	return nil
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

// delegatePath is the path of what a route includes.
func delegatePath(i int) string { return fmt.Sprintf("spec.http[%d].delegate", i) }

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

// thirds finds services of third tenants for the routes of one source. Each question is asked many times.
type thirds struct {
	b        *Binding
	found    map[Hostname][]boundService
	defaults []string
	known    map[thirdQuestion]*Service
	included map[thirdQuestion]*Service // what delegates lead to
}

// thirdQuestion is a destination, or a delegate, of a route of a namespace at gateways of another one.
type thirdQuestion struct {
	host               Hostname
	delegate           *VirtualService
	namespace, gateway string
}

// at is the tenant's service that a route leads to although nobody has said that it may: of no
// unbound source, of no catalog, of another namespace, and no written exportTo names the namespace of the
// route; nil if there is none. A service that the gateways do not see makes no difference: a tenant can declare
// any host for its own namespace.
func (t *thirds) at(host, namespace string, gateways []string) *Service {
	for _, gateway := range gateways {
		q := thirdQuestion{host: Hostname(host).canonical(), namespace: namespace, gateway: gateway}
		svc, known := t.known[q]
		if !known {
			svc = t.find(q)
			t.known[q] = svc
		}
		if svc != nil {
			return svc
		}
	}
	return nil
}

func (t *thirds) find(q thirdQuestion) *Service {
	var out *Service
	for _, svc := range t.found[q.host] {
		switch {
		case !exportedTo(svc.ExportTo, t.defaults, svc.Namespace, q.gateway):
		case svc.source == nil || t.b.has(svc.Namespace) || slices.Contains(svc.ExportTo, q.namespace):
			return nil
		case out == nil || svc.Compare(out.Key) < 0:
			out = svc.Service
		}
	}
	return out
}

// within is the first such service that a delegate leads to.
func (t *thirds) within(delegate *VirtualService, namespace string, gateways []string) *Service {
	if delegate == nil {
		return nil
	}
	for _, gateway := range gateways {
		q := thirdQuestion{delegate: delegate, namespace: namespace, gateway: gateway}
		svc, known := t.included[q]
		if !known {
			for _, to := range destinationsOf(delegate.Spec) {
				if svc = t.at(to.GetHost(), namespace, []string{gateway}); svc != nil {
					break
				}
			}
			t.included[q] = svc
		}
		if svc != nil {
			return svc
		}
	}
	return nil
}

// namespacesOfGateways are the namespaces of Gateways by their names.
func namespacesOfGateways(gateways []string) []string {
	var out []string
	for _, g := range gateways {
		ns, _, _ := strings.Cut(g, "/")
		out = append(out, ns)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// decide decides for the VirtualServices of one source.
func (d *deputies) decide(i int, b *Binding, found map[Hostname][]boundService, before *deputies) {
	d.made[i] = map[deputy][]*VirtualService{}
	third := &thirds{b: b, found: found, defaults: d.defaults[0], known: map[thirdQuestion]*Service{}, included: map[thirdQuestion]*Service{}}
	var out []*VirtualService
	changed := false
	for _, vs := range d.in[i] {
		refused := map[string]bool{}
		var fields []string
		if gateways := namespacesOfGateways(othersGateways(vs)); len(gateways) > 0 && !onlyOwn(vs.ExportTo, d.defaults[1], vs.Namespace) {
			note := func(at string, svc *Service) {
				if svc != nil {
					refused[at], fields = true, append(fields, at)
					d.conflicts = append(d.conflicts, deputyConflict(vs, at, svc, b.RoutesOnly))
				}
			}
			for at, to := range destinationsOf(vs.Spec) {
				note(at, third.at(to.GetHost(), vs.Namespace, gateways))
			}
			for i, r := range vs.Spec.GetHttp() {
				note(delegatePath(i), third.within(d.delegate(vs, r), vs.Namespace, gateways))
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
		no := refused[delegatePath(i)]
		for at := range httpDestinations(r) {
			no = no || refused[fmt.Sprintf("spec.http[%d].%s", i, at)]
		}
		if no {
			there.Spec.Http[i] = &networking.HTTPRoute{Name: r.GetName(), Match: r.GetMatch(), DirectResponse: &networking.HTTPDirectResponse{Status: 503}}
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
