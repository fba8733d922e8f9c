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
	defaults  [2][]string // exports of services and of VirtualServices without exportTo
	made      []map[deputy][]*VirtualService
	conflicts []Conflict
	first     map[Key]int // the source of a VirtualService that is in force, if others have one with its Key
	including
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
	same := slices.Equal(d.defaults[0], defaults[0]) && slices.Equal(d.defaults[1], defaults[1]) && sameLists(d.in, next.in)
	if same && sameLists(d.services, next.services) {
		return *d
	}
	next.first = firstSources(next.in, bindings, nil)
	next.including = findIncluding(next.in, bindings, next.first)
	asked := next.destinations(bindings)
	if same && len(asked) == 0 {
		return *d
	}
	found := servicesOn(asked, next.services, bindings, defaults[0])
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
			if !isDelegate(vs) && len(othersGateways(vs)) == 0 || isDelegate(vs) && len(d.roots[vs.Key]) == 0 || d.first[vs.Key] != i {
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

// judgement is what is found for a VirtualService: the refused paths, and, if others include it, its refused routes.
type judgement struct {
	refused  map[string]bool
	fields   []string
	included *RefusedRoutes
}

// decide decides for the VirtualServices of one source.
func (d *deputies) decide(i int, b *Binding, found map[Hostname]*hostServices, before *deputies) {
	d.made[i] = map[deputy][]*VirtualService{}
	third := &thirds{
		b: b, found: found, defaults: d.defaults[0], known: map[thirdQuestion]*Service{}, included: map[thirdQuestion]*Service{},
		named: map[*VirtualService][]string{},
	}
	var out []*VirtualService
	changed := false
	for _, vs := range d.in[i] {
		j := d.judge(vs, i, third)
		if len(j.refused) == 0 || !b.RoutesOnly {
			out = append(out, vs)
			continue
		}
		changed = true
		key := deputy{vs, strings.Join(j.fields, " ")}
		if j.included != nil {
			key.refused += j.included.sign
		}
		var made []*VirtualService
		if len(before.made) > i {
			made = before.made[i][key]
		}
		switch {
		case made != nil:
		case j.included != nil:
			made = []*VirtualService{refuseIncluded(vs, j.included, key.refused)}
		default:
			made = splitDeputy(vs, j.refused, key.refused)
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

// judge finds and reports what a VirtualService of a source may not route to at gateways of other namespaces.
func (d *deputies) judge(vs *VirtualService, i int, third *thirds) judgement {
	out := judgement{refused: map[string]bool{}}
	note := func(at string, svc *Service) {
		if svc != nil {
			out.refused[at], out.fields = true, append(out.fields, at)
			d.conflicts = append(d.conflicts, deputyConflict(vs, at, svc, third.b.RoutesOnly))
		}
	}
	if d.first[vs.Key] != i {
		return out // another source's is in force
	}
	if isDelegate(vs) {
		out.included = d.judgeIncluded(vs, i, third, note)
		return out
	}
	gateways := namespacesOfGateways(othersGateways(vs))
	if len(gateways) == 0 || onlyOwn(vs.ExportTo, d.defaults[1], vs.Namespace) {
		return out
	}
	hosts := map[string]*Service{}
	for at, to := range destinationsOf(vs.Spec) {
		svc, known := hosts[to.GetHost()]
		if !known {
			svc = third.at(to.GetHost(), vs.Namespace, gateways)
			hosts[to.GetHost()] = svc
		}
		note(at, svc)
	}
	delegates := map[*VirtualService]*Service{}
	for i, r := range vs.Spec.GetHttp() {
		x := d.delegate(vs, r)
		svc, known := delegates[x]
		if !known {
			svc = third.within(x, vs.Namespace, gateways)
			delegates[x] = svc
		}
		note(delegatePath(i), svc)
	}
	return out
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
			there.Spec.Http[i] = Refusal(r)
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
