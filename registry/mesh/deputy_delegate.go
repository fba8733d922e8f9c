package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// including is what VirtualServices include.
type including struct {
	// delegates are the VirtualServices that are included.
	delegates map[Key]*VirtualService
	// tenants are those of them that are of sources which are bound to namespaces.
	tenants map[Key]bool
	// roots are those that include them; each once for a delegate.
	roots map[Key][]*root
	// gateways are the namespaces of the gateways of several roots, by their numbers.
	gateways map[string][]string
}

// root is a VirtualService that includes others.
type root struct {
	number    int
	source    int
	namespace string
	gateways  []string // namespaces of its gateways, sorted
}

// isDelegate reports whether a VirtualService counts only where others include it.
func isDelegate(vs *VirtualService) bool { return len(vs.Spec.GetHosts()) == 0 }

// delegateKey is what a route of a VirtualService includes.
func delegateKey(vs *VirtualService, d *networking.Delegate) Key {
	return Key{vs.Kind, cmp.Or(d.GetNamespace(), vs.Namespace), d.GetName()}
}

// findIncluding finds what VirtualServices include, if any source is bound to namespaces.
func findIncluding(in [][]*VirtualService, bindings []*Binding, first map[Key]int) including {
	out := including{delegates: map[Key]*VirtualService{}, tenants: map[Key]bool{}, roots: map[Key][]*root{}, gateways: map[string][]string{}}
	if !slices.ContainsFunc(bindings, func(b *Binding) bool { return b != nil }) {
		return out
	}
	number := 0
	for i, list := range in {
		for _, vs := range list {
			var made *root
			for _, r := range vs.Spec.GetHttp() {
				if r.GetDelegate() == nil || isDelegate(vs) || first[vs.Key] != i {
					continue
				}
				if made == nil {
					number++
					made = &root{number, i, vs.Namespace, namespacesOfGateways(slices.DeleteFunc(slices.Clone(vs.Spec.GetGateways()), isMesh))}
				}
				key := delegateKey(vs, r.GetDelegate())
				if known := out.roots[key]; len(known) == 0 || known[len(known)-1] != made {
					out.roots[key] = append(known, made)
				}
			}
		}
	}
	for i, list := range in {
		for _, vs := range list {
			if isDelegate(vs) && len(out.roots[vs.Key]) > 0 && first[vs.Key] == i {
				out.delegates[vs.Key], out.tenants[vs.Key] = vs, bindings[i] != nil
			}
		}
	}
	return out
}

// OfTenant reports whether a VirtualService that others include is of a source that is bound to namespaces.
func (s *Snapshot) OfTenant(delegate Key) bool {
	return s.tables.restrictions.deputies.tenants[delegate]
}

func isMesh(gateway string) bool { return !strings.Contains(gateway, "/") }

// delegate is what a route includes, if it may; or nil.
func (d *deputies) delegate(vs *VirtualService, r *networking.HTTPRoute) *VirtualService {
	to := r.GetDelegate()
	if to == nil {
		return nil
	}
	if x := d.delegates[delegateKey(vs, to)]; x != nil && exportedTo(x.ExportTo, d.defaults[1], x.Namespace, vs.Namespace) {
		return x
	}
	return nil
}

// includedAt are the namespaces of the gateways at which a delegate of a source is included, but for its own, and those
// at which other sources include it: a source's own VirtualService is judged by itself for what it includes.
func (d *deputies) includedAt(vs *VirtualService, source int) (all, byOthers []string) {
	if d.delegates[vs.Key] != vs {
		return nil, nil
	}
	exported := map[string]bool{}
	var roots, others []*root
	for _, r := range d.roots[vs.Key] {
		to, known := exported[r.namespace]
		if !known {
			to = exportedTo(vs.ExportTo, d.defaults[1], vs.Namespace, r.namespace)
			exported[r.namespace] = to
		}
		if !to {
			continue
		}
		roots = append(roots, r)
		if r.source != source {
			others = append(others, r)
		}
	}
	return d.gatewaysOf(roots, vs.Namespace), d.gatewaysOf(others, vs.Namespace)
}

// gatewaysOf are the namespaces of the gateways of roots, without one. Many delegates have the same roots.
func (d *deputies) gatewaysOf(roots []*root, without string) []string {
	var name strings.Builder
	name.WriteString(without)
	for _, r := range roots {
		fmt.Fprintf(&name, " %d", r.number)
	}
	out, known := d.gateways[name.String()]
	if known {
		return out
	}
	for _, r := range roots {
		out = append(out, r.gateways...)
	}
	slices.Sort(out)
	out = slices.DeleteFunc(slices.Compact(out), func(ns string) bool { return ns == without })
	d.gateways[name.String()] = out
	return out
}

// RefusedRoutes are the HTTP routes of a VirtualService without hosts that gateways of other namespaces do not follow
// where others include it.
type RefusedRoutes struct {
	routes map[int][]refusedAt
	sign   string
}

// refusedAt says of namespaces of gateways whether a route to a host is refused there; "" stands for all that are not
// in it.
type refusedAt map[string]bool

// Anywhere reports whether gateways of some other namespaces do not follow a route, by its place.
func (r *RefusedRoutes) Anywhere(route int) bool { return r != nil && len(r.routes[route]) > 0 }

// At reports whether the gateways of another namespace do not follow a route, by its place.
func (r *RefusedRoutes) At(route int, gatewayNamespace string) bool {
	if r == nil {
		return false
	}
	for _, x := range r.routes[route] {
		refused, known := x[gatewayNamespace]
		if refused || !known && x[""] {
			return true
		}
	}
	return false
}

// Len is how many routes are refused somewhere.
func (r *RefusedRoutes) Len() int {
	if r == nil {
		return 0
	}
	return len(r.routes)
}

// String is the same for the same refused routes.
func (r *RefusedRoutes) String() string {
	if r == nil {
		return ""
	}
	return "refused" + r.sign
}

// judgeIncluded judges a VirtualService of a source where others include it. Only its HTTP routes count there.
func (d *deputies) judgeIncluded(vs *VirtualService, source int, third *thirds, note func(string, *Service)) *RefusedRoutes {
	all, byOthers := d.includedAt(vs, source)
	if len(byOthers) == 0 {
		return nil
	}
	type answer struct {
		svc *Service
		at  refusedAt
	}
	known := map[string]answer{}
	out := &RefusedRoutes{routes: map[int][]refusedAt{}}
	var sign strings.Builder
	for i, r := range vs.Spec.GetHttp() {
		for at, to := range httpDestinations(r) {
			host := to.GetHost()
			x, asked := known[host]
			if !asked {
				if x.svc = third.at(host, vs.Namespace, byOthers); x.svc != nil {
					x.at = refusedAt{}
					for _, g := range differing(all, third.found[Hostname(host).canonical()].named) {
						x.at[g] = third.ask(host, vs.Namespace, g) != nil
					}
				}
				known[host] = x
			}
			if x.svc == nil {
				continue
			}
			path := fmt.Sprintf("spec.http[%d].%s", i, at)
			note(path, x.svc)
			out.routes[i] = append(out.routes[i], x.at)
			fmt.Fprintf(&sign, " %s=%s", path, host)
			if !asked {
				for _, g := range slices.Sorted(maps.Keys(x.at)) {
					fmt.Fprintf(&sign, " %s:%t", g, x.at[g])
				}
			}
		}
	}
	out.sign = sign.String()
	return out
}

// Refusal is what a gateway of another namespace does instead of a route that it may not follow.
func Refusal(r *networking.HTTPRoute) *networking.HTTPRoute {
	return &networking.HTTPRoute{Name: r.GetName(), Match: r.GetMatch(), DirectResponse: &networking.HTTPDirectResponse{Status: 503}}
}

// refuseIncluded is a VirtualService as others include it. Sidecars, and gateways of its own namespace, follow
// it as it is.
func refuseIncluded(vs *VirtualService, refused *RefusedRoutes, sign string) *VirtualService {
	out := *vs
	out.Hash = hashAs(vs.Hash, "included "+sign)
	out.Refused = refused
	return &out
}
