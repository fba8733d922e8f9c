package view

import (
	"cmp"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// routesOf are the routes of a VirtualService for this proxy on this port, in order, up to
// the first that matches every request.
func (b *virtualHostBuilder) routesOf(vs *virtualService) []*Route {
	var out []*Route
	for _, rule := range vs.http {
		if len(rule.GetMatch()) == 0 {
			return append(out, b.route(vs, rule, nil))
		}
		for _, m := range rule.GetMatch() {
			if (m.GetPort() != 0 && m.GetPort() != b.port) || !b.sc.matchesProxy(m, b.gatewayName()) {
				continue
			}
			out = append(out, b.route(vs, rule, m))
			if matchesAllRequests(m) {
				return out
			}
		}
	}
	return out
}

// meshGateway stands for all sidecars among the gateways of a VirtualService.
const meshGateway = "mesh"

// gatewayName is the Gateway whose routes are made, or meshGateway.
func (b *virtualHostBuilder) gatewayName() string {
	if b.gateway != nil {
		return b.gateway.GatewayName()
	}
	return meshGateway
}

// matchesProxy reports whether the match is for requests of this proxy, at one of its Gateways.
func (sc *sidecarScope) matchesProxy(m *networking.HTTPMatchRequest, gateway string) bool {
	if len(m.GetGateways()) > 0 {
		return slices.Contains(m.GetGateways(), gateway)
	}
	return mesh.Selects(m.GetSourceLabels(), sc.proxy.Labels) &&
		(m.GetSourceNamespace() == "" || m.GetSourceNamespace() == sc.namespace())
}

// matchesAllRequests reports whether no request is left for the following routes.
func matchesAllRequests(m *networking.HTTPMatchRequest) bool {
	if m.GetUri() != nil {
		if p := m.GetUri().GetPrefix(); p != "/" && m.GetUri().GetRegex() != ".*" {
			return false
		}
	}
	return len(m.GetHeaders()) == 0 && len(m.GetWithoutHeaders()) == 0 && len(m.GetQueryParams()) == 0 &&
		m.GetMethod() == nil && m.GetAuthority() == nil && m.GetScheme() == nil
}

func (b *virtualHostBuilder) route(vs *virtualService, rule *networking.HTTPRoute, m *networking.HTTPMatchRequest) *Route {
	r := &Route{
		Rule: rule, Match: m, Config: vs.Key, Port: b.port, Traced: b.sc.traces, ForwardedHost: rule.GetRewrite() != nil && b.sc.headers.forwardsHost(),
		Retry: cmp.Or(rule.GetRetries(), b.sc.config.GetDefaultHttpRetryPolicy()),
		TLS:   b.gateway != nil && b.gateway.GetTls() != nil, HTTP3: b.http3,
	}
	origins := []*mesh.Origin{vs.Origin}
	for _, d := range rule.GetRoute() {
		dest := d.GetDestination()
		svc := b.sc.find(lower(dest.GetHost()))
		dr := svc.destinationRule()
		hash := dr.hashFor(dest.GetSubset(), dest.GetPort().GetNumber())
		if hash != nil {
			origins = append(origins, dr.origins...)
		}
		to := b.cluster(dest)
		r.Destinations = append(r.Destinations, RouteDestination{
			Cluster:      to,
			Weight:       uint32(max(d.GetWeight(), 0)),
			Headers:      d.GetHeaders(),
			Hash:         hash,
			AnnounceHTTP: b.sc.announcesHTTP(svc, to.Port, to.Subset),
		})
	}
	if m := rule.GetMirror(); m != nil {
		if n := mirrorShare(rule); n > 0 {
			r.Mirrors = append(r.Mirrors, Mirror{Cluster: b.cluster(m), Millionths: n})
		}
	}
	for _, m := range rule.GetMirrors() {
		n := uint32(million)
		if m.GetPercentage() != nil {
			n = millionths(m.GetPercentage().GetValue())
		}
		if n > 0 && m.GetDestination() != nil {
			r.Mirrors = append(r.Mirrors, Mirror{Cluster: b.cluster(m.GetDestination()), Millionths: n})
		}
	}
	return b.intern(r, origins)
}

// routeHint says where an equal route probably is.
type routeHint struct {
	rule  *networking.HTTPRoute
	match *networking.HTTPMatchRequest
	port  uint32
}

// intern returns the existing route if there is an equal one. Usually other proxies have
// the same route with the same destinations.
func (b *virtualHostBuilder) intern(r *Route, origins []*mesh.Origin) *Route {
	return b.sc.routeHints.get(routeHint{r.Rule, r.Match, r.Port}, r, func() *Route {
		r.origins = originsOf(origins...)
		return b.sc.routes.intern(r)
	})
}

// defaultRouteInput is what the route of a service without a VirtualService is made from.
type defaultRouteInput struct {
	host mesh.Hostname
	port uint32
	hash *networking.LoadBalancerSettings_ConsistentHashLB // or nil
	// announceHTTP is that of the RouteDestination.
	announceHTTP bool
}

// routeContext is a meshContext with the origins of the route that is built.
type routeContext struct {
	*meshContext
	service *mesh.Origin
	rule    []*mesh.Origin
}

func (in defaultRouteInput) build(from routeContext) *Route {
	origins := []*mesh.Origin{from.service}
	if in.hash != nil {
		origins = append(origins, from.rule...)
	}
	r := &Route{
		Port:         in.port,
		Destinations: []RouteDestination{{Cluster: Outbound(in.host, in.port, ""), Hash: in.hash, AnnounceHTTP: in.announceHTTP}},
		Retry:        from.config.GetDefaultHttpRetryPolicy(), Traced: from.traces,
	}
	r.origins = originsOf(origins...)
	return from.routes.intern(r)
}

// defaultRoute is the route of a service without a VirtualService.
func (b *virtualHostBuilder) defaultRoute(svc *service, port uint32) *Route {
	from := routeContext{meshContext: b.sc.meshContext, service: svc.Origin}
	in := defaultRouteInput{host: svc.Hostname, port: port}
	if svc := b.sc.find(svc.Hostname); svc != nil {
		in.announceHTTP = b.sc.announcesHTTP(svc, port, "")
		if svc.rule != nil {
			in.hash, from.rule = svc.rule.serviceHash(port), svc.rule.origins
		}
	}
	return b.sc.defaultRoutes.get(from, in)
}

const million = 1_000_000

func millionths(percent float64) uint32 { return uint32(max(percent, 0) * (million / 100)) }

func mirrorShare(rule *networking.HTTPRoute) uint32 {
	switch {
	case rule.GetMirrorPercentage() != nil:
		return millionths(rule.GetMirrorPercentage().GetValue())
	case rule.GetMirrorPercent() != nil: //nolint:staticcheck // deprecated, and in use
		return rule.GetMirrorPercent().GetValue() * (million / 100) //nolint:staticcheck // deprecated, and in use
	default:
		return million
	}
}

// cluster is the cluster of a destination: of the port that it names, else of the service's
// only port, else of the port that the request came to.
func (b *virtualHostBuilder) cluster(d *networking.Destination) ClusterRef {
	return destinationCluster(d, b.service(lower(d.GetHost())), b.port)
}

func destinationCluster(d *networking.Destination, svc *service, port uint32) ClusterRef {
	switch {
	case d.GetPort() != nil:
		port = d.GetPort().GetNumber()
	case svc != nil && len(svc.Ports) == 1:
		port = svc.Ports[0].Number
	}
	return Outbound(lower(d.GetHost()), port, d.GetSubset())
}

// announcesHTTP reports whether requests to a port of a service, which may be nil, announce
// themselves as HTTP: the port has no declared protocol, and mTLS of the mesh may be used.
// Servers with other TLS are not offered the protocols of the mesh.
func (mc *meshContext) announcesHTTP(svc *service, port uint32, subset string) bool {
	if svc == nil {
		return false
	}
	if p, ok := svc.port(port); !ok || p.Protocol != mesh.Undeclared {
		return false
	}
	if tls := svc.rule.policyFor(port, svc.rule.subset(subset)).GetTls(); tls != nil {
		return tls.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL
	}
	return !svc.External && mc.autoMTLS()
}
