package view

import (
	"cmp"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// buildGateways makes the listeners and routes of gateway proxies.
func (r *routingState) buildGateways(sc *sidecarScope) {
	b := newGatewayBuilder(sc, &r.key.gateway, r.view.listenersByName())
	listeners, names := b.listeners()
	v := &routingView{listeners: sc.layer(ListenersLayer, listeners)}
	for _, name := range names {
		t := sc.routeConfigurations.intern(b.routeConfiguration(name))
		v.routeConfigurations = append(v.routeConfigurations, sc.layer(RoutesLayer+name, []Part{t}))
	}
	v.warnings, v.leftOut = b.warnings, b.leftOut
	r.routeNames, r.view = names, r.view.reuseIfEqual(v)
}

// boundTo are the VirtualServices for a Gateway that the proxy sees, in order of precedence. Those of a
// namespace that sources are bound to come last at a Gateway of another one: what they say of their age, or of
// who sees them, takes no port and no host from the others.
func (sc *sidecarScope) boundTo(gateway string) []*virtualService {
	ns, defaults := sc.namespace(), sc.config.GetDefaultVirtualServiceExportTo()
	var out []*virtualService
	for _, vs := range sc.bound[gateway] {
		if exported(vs.ExportTo, defaults, vs.Namespace, ns) {
			out = append(out, vs)
		}
	}
	out = byVisibility(out, func(vs *virtualService) int { return visibility(vs.ExportTo, defaults, vs.Namespace, ns) })
	own, _, _ := strings.Cut(gateway, "/")
	const first, last = 0, 2
	return byVisibility(out, func(vs *virtualService) int {
		if vs.Namespace != own && sc.s.Bound(vs.Namespace) {
			return last
		}
		return first
	})
}

// boundServices are the VirtualServices for each Gateway.
func boundServices(list []*virtualService) map[string][]*virtualService {
	out := map[string][]*virtualService{}
	for _, vs := range list {
		for _, g := range vs.Spec.GetGateways() {
			if of := out[g]; g != meshGateway && (len(of) == 0 || of[len(of)-1] != vs) { // it may name one twice
				out[g] = append(of, vs)
			}
		}
	}
	return out
}

// gatewayVirtualHost is a host of a gateway, with the routes of all VirtualServices that have it.
type gatewayVirtualHost struct {
	host     mesh.Hostname
	port     uint32
	redirect bool
	routes   []*Route
	from     []boundRoutes
	origins  []*mesh.Origin
}

// boundRoutes are the routes of a VirtualService for a Gateway.
type boundRoutes struct {
	gateway string
	vs      *virtualService
}

// routeConfiguration makes the route configuration of a name (Istio's buildGatewayHTTPRouteConfig,
// pilot/pkg/networking/core/gateway.go).
func (b *gatewayBuilder) routeConfiguration(name string) *RouteConfiguration {
	servers, http3 := b.merged.ByRoute[name], b.servesHTTP3(name)
	hosts := map[mesh.Hostname]*gatewayVirtualHost{}
	at := func(h mesh.Hostname, s *mesh.GatewayServer) *gatewayVirtualHost {
		if hosts[h] == nil {
			hosts[h] = &gatewayVirtualHost{host: h, port: s.GetPort().GetNumber()}
		}
		vh := hosts[h]
		vh.redirect = vh.redirect || s.GetTls().GetHttpsRedirect()
		vh.origins = append(vh.origins, s.Gateway.Origin)
		return vh
	}
	routes := map[boundRoutes][]*Route{}
	for _, s := range servers {
		for _, vs := range b.sc.boundTo(s.GatewayName()) {
			common := mesh.CommonHosts(s.HostsFor(vs.Namespace), vs.hosts)
			if len(common) == 0 {
				continue
			}
			from := boundRoutes{s.GatewayName(), vs}
			if _, ok := routes[from]; !ok {
				routes[from] = newGatewayRoutes(b.sc, s, vs, http3).routesOf(vs)
			}
			if len(routes[from]) == 0 {
				continue
			}
			for _, h := range common {
				vh := at(h, s)
				if !slices.Contains(vh.from, from) {
					vh.from, vh.routes = append(vh.from, from), append(vh.routes, routes[from]...)
					vh.origins = append(vh.origins, vs.Origin)
				}
			}
		}
		if s.GetTls().GetHttpsRedirect() {
			for _, h := range s.GetHosts() {
				if !strings.Contains(h, "/") { // as in Istio, those for one namespace only with a VirtualService
					at(lower(h), s)
				}
			}
		}
	}
	t := &RouteConfiguration{Name: name}
	if len(hosts) == 0 { // answers 404
		vh := &VirtualHost{Name: vhostName("blackhole", servers[0].GetPort().GetNumber()), Domains: []string{"*"}, NoAttemptCount: true}
		t.VirtualHosts = []*VirtualHost{b.sc.virtualHosts.intern(vh)}
		return t
	}
	t.VirtualHosts = b.virtualHosts(hosts)
	return t
}

// virtualHosts are those of a route configuration, sorted by name. Hosts with the same routes share one, as
// in Istio: the most specific one names it.
func (b *gatewayBuilder) virtualHosts(hosts map[mesh.Hostname]*gatewayVirtualHost) []*VirtualHost {
	list := make([]*gatewayVirtualHost, 0, len(hosts))
	for _, h := range hosts {
		list = append(list, h)
	}
	slices.SortFunc(list, func(x, y *gatewayVirtualHost) int { return compareSpecific(x.host, y.host) })
	type content struct {
		from     string
		redirect bool
	}
	var made []*VirtualHost
	first := map[content]*VirtualHost{}
	for _, h := range list {
		key := content{redirect: h.redirect}
		for _, f := range h.from {
			key.from += f.gateway + " " + f.vs.Namespace + "/" + f.vs.Name + "\n"
		}
		if vh := first[key]; vh != nil {
			vh.Domains, vh.origins = append(vh.Domains, bracketed(string(h.host))), append(vh.origins, h.origins...)
			continue
		}
		vh := &VirtualHost{
			Name: vhostName(string(h.host), h.port), Domains: []string{bracketed(string(h.host))}, RequireTLS: h.redirect,
			Routes: catchAllLast(h.routes), NoAttemptCount: b.sc.headers.noAttemptCount(),
		}
		vh.origins = h.origins
		first[key], made = vh, append(made, vh)
	}
	for i, vh := range made {
		vh.origins = originsOf(vh.origins...)
		made[i] = b.sc.virtualHosts.intern(vh)
	}
	slices.SortStableFunc(made, func(x, y *VirtualHost) int { return cmp.Compare(x.Name, y.Name) })
	return made
}

// compareSpecific has wildcards last, and longer names before shorter ones (Istio's MoreSpecific).
func compareSpecific(a, b mesh.Hostname) int {
	switch {
	case a.IsWildcard() != b.IsWildcard():
		if a.IsWildcard() {
			return 1
		}
		return -1
	default:
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
	}
}

// catchAllLast has the routes for every request behind all others, which may be of other VirtualServices.
func catchAllLast(routes []*Route) []*Route {
	var out, last []*Route
	for _, r := range routes {
		if r.Match == nil || matchesAllRequests(r.Match) {
			last = append(last, r)
		} else {
			out = append(out, r)
		}
	}
	return append(out, last...)
}

// newGatewayRoutes makes the routes of a VirtualService at a server of a Gateway, which may have HTTP/3.
func newGatewayRoutes(sc *sidecarScope, s *mesh.GatewayServer, vs *virtualService, http3 bool) *virtualHostBuilder {
	return &virtualHostBuilder{sc: sc, port: s.GetPort().GetNumber(), gateway: s, namespace: vs.Namespace, http3: http3}
}

// serviceFor is the service of a host for a VirtualService of a namespace: that of the namespace, if the
// gateway sees it, else the one that the gateway has clusters for; or nil.
func (sc *sidecarScope) serviceFor(namespace string, h mesh.Hostname) *service {
	for _, svc := range sc.s.ServicesOn(h) {
		if svc.Namespace == namespace && sc.seesService(svc, sc.namespace()) {
			return &service{Service: svc, Ports: svc.Ports}
		}
	}
	return sc.find(h)
}
