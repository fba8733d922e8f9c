package mesh

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// third reports whether a route of a source leads a gateway of another namespace to another tenant's service, by the
// documentation: the gateway sees services of the host, and none is of the source, of a source without a namespace or
// of the catalog, or names the route's namespace in exportTo.
func (l *life) third(s *Snapshot, source int, host, namespace, gateway string) bool {
	seen := false
	for _, svc := range l.servicesOf(s)[Hostname(host).canonical()] {
		i := sourceOf(&svc.Meta)
		switch {
		case !s.ServiceVisibleTo(svc, gateway):
		case l.bindings[i] == nil || l.bindings[source].has(svc.Namespace) || slices.Contains(svc.ExportTo, namespace):
			return false
		default:
			seen = true
		}
	}
	return seen
}

// servicesOf are the services of a snapshot by their hosts.
func (l *life) servicesOf(s *Snapshot) map[Hostname][]*Service {
	if l.hostsOf != s {
		l.hostsOf, l.byHost = s, map[Hostname][]*Service{}
		for _, svc := range s.Services {
			h := svc.Hostname.canonical()
			l.byHost[h] = append(l.byHost[h], svc)
		}
	}
	return l.byHost
}

// leadsTo reports whether a route leads there at any of some gateways, by itself or by what it includes.
func (l *life) leadsTo(s *Snapshot, source int, vs *VirtualService, hosts []string, gateways map[string]bool) bool {
	for g := range gateways {
		if slices.ContainsFunc(hosts, func(h string) bool { return l.third(s, source, h, vs.Namespace, g) }) {
			return true
		}
	}
	return false
}

// hostsOfRoute are the hosts of the destinations of a route of HTTP; with delegates, those of what it includes.
func hostsOfRoute(r *networking.HTTPRoute, included *VirtualService) []string {
	var out []string
	for _, x := range r.GetRoute() {
		out = append(out, x.GetDestination().GetHost())
	}
	for _, x := range r.GetMirrors() {
		out = append(out, x.GetDestination().GetHost())
	}
	if included != nil {
		for _, x := range included.Spec.GetHttp() {
			out = append(out, hostsOfRoute(x, nil)...)
		}
		for _, x := range included.Spec.GetTls() {
			out = append(out, x.GetRoute()[0].GetDestination().GetHost())
		}
		for _, x := range included.Spec.GetTcp() {
			out = append(out, x.GetRoute()[0].GetDestination().GetHost())
		}
	}
	return out
}

// gatewaysOfOthers are the namespaces, other than its own, of the gateways that a VirtualService names.
func gatewaysOfOthers(vs *VirtualService) map[string]bool {
	out := map[string]bool{}
	for _, g := range vs.Spec.GetGateways() {
		if ns, _, named := strings.Cut(g, "/"); named && ns != vs.Namespace {
			out[ns] = true
		}
	}
	return out
}

// checkDeputies holds the routes of bound sources at gateways of other namespaces to the definition: of a source with
// RoutesOnly, none leads to a service of a third tenant; all others, and those of sidecars and gateways of its own
// namespace, are as they were written. What leads there is reported in any case.
func (l *life) checkDeputies(t *testing.T, s *Snapshot) {
	t.Helper()
	parts, delegates := map[Origin][]*VirtualService{}, map[Key]*VirtualService{}
	for _, vs := range s.VirtualServices {
		if parts[*vs.Origin] = append(parts[*vs.Origin], vs); isDelegate(vs) {
			delegates[vs.Key] = vs
		}
	}
	reported := map[string]bool{}
	for _, c := range s.Conflicts {
		if c.Kind == ConflictRoute {
			reported[fmt.Sprint(*c.Dropped, c.Field, c.Refused)] = true
		}
	}
	want := map[string]bool{}
	for i, objects := range l.objects {
		if l.bindings[i] == nil {
			continue
		}
		for _, x := range objects {
			vs, is := x.(*VirtualService)
			switch {
			case !is || len(parts[*vs.Origin]) == 0: // another source has an object with its key
			case isDelegate(vs):
				l.checkIncluded(t, s, i, vs, parts[*vs.Origin], want)
			default:
				l.checkDeputy(t, s, i, vs, parts[*vs.Origin], delegates, want)
			}
		}
	}
	if !maps.Equal(reported, want) {
		t.Fatalf("what leads gateways to third tenants is reported as %v, want %v", slices.Sorted(maps.Keys(reported)), slices.Sorted(maps.Keys(want)))
	}
	l.deputies += len(want)
}

// checkDeputy is checkDeputies for an object with hosts.
func (l *life) checkDeputy(t *testing.T, s *Snapshot, i int, vs *VirtualService, parts []*VirtualService, delegates map[Key]*VirtualService, want map[string]bool) {
	t.Helper()
	gateways := gatewaysOfOthers(vs)
	for _, p := range parts { // one for each audience, and of each one for gateways of others
		refusing := len(gateways) > 0 && !onlyOwn(p.ExportTo, l.config.Spec.GetDefaultVirtualServiceExportTo(), p.Namespace)
		judged := func(at string, hosts []string) bool {
			leads := refusing && l.leadsTo(s, i, vs, hosts, gateways)
			if leads {
				want[fmt.Sprint(*vs.Origin, at, l.bindings[i].RoutesOnly)] = true
			}
			return leads && l.bindings[i].RoutesOnly && len(gatewaysOfOthers(p)) > 0
		}
		for j, r := range vs.Spec.GetHttp() {
			var included *VirtualService
			if d := r.GetDelegate(); d != nil {
				included = delegates[delegateKey(vs, d)]
				if included != nil && !exportedTo(included.ExportTo, l.config.Spec.GetDefaultVirtualServiceExportTo(), included.Namespace, vs.Namespace) {
					included = nil
				}
			}
			refused := false
			at := fmt.Sprintf("spec.http[%d].", j)
			for n, x := range r.GetRoute() {
				refused = judged(fmt.Sprintf("%sroute[%d].destination", at, n), []string{x.GetDestination().GetHost()}) || refused
			}
			for n, x := range r.GetMirrors() {
				refused = judged(fmt.Sprintf("%smirrors[%d].destination", at, n), []string{x.GetDestination().GetHost()}) || refused
			}
			if included != nil {
				refused = judged(at+"delegate", hostsOfRoute(&networking.HTTPRoute{}, included)) || refused
			}
			got := p.Spec.GetHttp()[j]
			if none := got.GetDirectResponse().GetStatus() == 503 && len(got.GetRoute())+len(got.GetMirrors()) == 0 && got.GetDelegate() == nil; none != refused || !refused && !proto.Equal(got, r) {
				t.Fatalf("route %d of %s of source %d at %v is %v, was %v; refused there: %v", j, p.Key, i, p.Spec.Gateways, got, r, refused)
			}
		}
		l4 := func(at string, was, is []*networking.RouteDestination) {
			host := was[0].GetDestination().GetHost()
			refused := judged(at+".route[0].destination", []string{host})
			if got := is[0].GetDestination().GetHost(); got != host && !refused || refused && got != refusedHost {
				t.Fatalf("%s of %s of source %d at %v leads to %s, was to %s; refused there: %v", at, p.Key, i, p.Spec.Gateways, got, host, refused)
			}
		}
		if len(vs.Spec.GetTls()) > 0 {
			l4("spec.tls[0]", vs.Spec.GetTls()[0].GetRoute(), p.Spec.GetTls()[0].GetRoute())
		}
		if len(vs.Spec.GetTcp()) > 0 {
			l4("spec.tcp[0]", vs.Spec.GetTcp()[0].GetRoute(), p.Spec.GetTcp()[0].GetRoute())
		}
	}
	l.checkEachGateway(t, vs, parts)
}

// checkEachGateway: at each gateway, and for sidecars, each host has as many parts as it has audiences.
func (l *life) checkEachGateway(t *testing.T, vs *VirtualService, parts []*VirtualService) {
	t.Helper()
	type place struct{ host, gateway, exports string }
	hosts, seen := map[[2]string]bool{}, map[place]bool{}
	for _, p := range parts {
		for _, g := range p.Spec.GetGateways() {
			for _, h := range slices.Compact(slices.Sorted(slices.Values(p.Spec.GetHosts()))) {
				x := place{h, g, fmt.Sprint(p.ExportTo)}
				if seen[x] {
					t.Fatalf("the routes of %s for %s are there twice at %s", vs.Key, h, g)
				}
				seen[x], hosts[[2]string{h, g}] = true, true
			}
		}
	}
	for _, g := range vs.Spec.GetGateways() {
		for _, h := range vs.Spec.GetHosts() {
			if !hosts[[2]string{h, g}] {
				t.Fatalf("the routes of %s for %s are lost at %s", vs.Key, h, g)
			}
		}
	}
}

// checkIncluded is checkDeputies for a delegate: it counts for its source at gateways of other namespaces at which other
// sources include it.
func (l *life) checkIncluded(t *testing.T, s *Snapshot, i int, vs *VirtualService, parts []*VirtualService, want map[string]bool) {
	t.Helper()
	if len(parts) != 1 || parts[0].Key != vs.Key || !proto.Equal(parts[0].Spec, vs.Spec) {
		t.Fatalf("the delegate %s of source %d is not there as it was", vs.Key, i)
	}
	there, all := map[Origin]bool{}, map[string]bool{}
	for _, x := range s.VirtualServices {
		there[*x.Origin] = true
	}
	for o, objects := range l.objects {
		for _, x := range objects {
			root, is := x.(*VirtualService)
			if !is || o == i || isDelegate(root) || !there[*root.Origin] || !l.includes(root, vs) {
				continue
			}
			for _, g := range root.Spec.GetGateways() {
				if ns, _, named := strings.Cut(g, "/"); named && ns != vs.Namespace {
					all[ns] = true
				}
			}
		}
	}
	for j, r := range vs.Spec.GetHttp() {
		for g := range all {
			refused := l.leadsTo(s, i, vs, hostsOfRoute(r, nil), map[string]bool{g: true})
			if got := parts[0].Refused.At(j, g); got != (refused && l.bindings[i].RoutesOnly) {
				t.Fatalf("route %d of the delegate %s of source %d is refused at gateways of %s: %v; leads to a third: %v", j, vs.Key, i, g, got, refused)
			}
		}
		note := func(at, host string) {
			if l.leadsTo(s, i, vs, []string{host}, all) {
				want[fmt.Sprint(*vs.Origin, fmt.Sprintf("spec.http[%d].%s", j, at), l.bindings[i].RoutesOnly)] = true
			}
		}
		for n, x := range r.GetRoute() {
			note(fmt.Sprintf("route[%d].destination", n), x.GetDestination().GetHost())
		}
		for n, x := range r.GetMirrors() {
			note(fmt.Sprintf("mirrors[%d].destination", n), x.GetDestination().GetHost())
		}
	}
}

// includes reports whether a VirtualService includes a delegate.
func (l *life) includes(root, vs *VirtualService) bool {
	return slices.ContainsFunc(root.Spec.GetHttp(), func(r *networking.HTTPRoute) bool {
		d := r.GetDelegate()
		return d != nil && delegateKey(root, d) == vs.Key && exportedTo(vs.ExportTo, l.config.Spec.GetDefaultVirtualServiceExportTo(), vs.Namespace, root.Namespace)
	})
}
