package view

import (
	"cmp"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// routesOf are the rules of a VirtualService that hold for this proxy on this
// port, in order, up to the first that takes everything.
func (b *tableBuilder) routesOf(vs *virtualService) []*Route {
	var out []*Route
	for _, rule := range vs.http {
		if len(rule.GetMatch()) == 0 {
			return append(out, b.route(vs, rule, nil))
		}
		for _, m := range rule.GetMatch() {
			if (m.GetPort() != 0 && m.GetPort() != b.port) || !b.sc.isSource(m) {
				continue
			}
			out = append(out, b.route(vs, rule, m))
			if takesAll(m) {
				return out
			}
		}
	}
	return out
}

// isSource reports whether the proxy is one that the match is for.
func (sc *scope) isSource(m *networking.HTTPMatchRequest) bool {
	if len(m.GetGateways()) > 0 {
		return slices.Contains(m.GetGateways(), "mesh")
	}
	return mesh.Selects(m.GetSourceLabels(), sc.proxy.Labels) &&
		(m.GetSourceNamespace() == "" || m.GetSourceNamespace() == sc.namespace())
}

// takesAll reports whether no request is left for the rules behind.
func takesAll(m *networking.HTTPMatchRequest) bool {
	if m.GetUri() != nil {
		if p := m.GetUri().GetPrefix(); p != "/" && m.GetUri().GetRegex() != ".*" {
			return false
		}
	}
	return len(m.GetHeaders()) == 0 && len(m.GetWithoutHeaders()) == 0 && len(m.GetQueryParams()) == 0 &&
		m.GetMethod() == nil && m.GetAuthority() == nil && m.GetScheme() == nil
}

func (b *tableBuilder) route(vs *virtualService, rule *networking.HTTPRoute, m *networking.HTTPMatchRequest) *Route {
	r := &Route{
		Rule: rule, Match: m, Config: vs.Key, Port: b.port,
		Retry: cmp.Or(rule.GetRetries(), b.sc.config.GetDefaultHttpRetryPolicy()),
	}
	origins := []*mesh.Origin{vs.Origin}
	for _, d := range rule.GetRoute() {
		dest := d.GetDestination()
		host := lower(dest.GetHost())
		dr := b.sc.rule(host)
		hash := dr.hashFor(dest.GetSubset(), dest.GetPort().GetNumber())
		if hash != nil {
			origins = append(origins, dr.origins...)
		}
		r.Destinations = append(r.Destinations, RouteDestination{
			Cluster: b.cluster(dest),
			Weight:  uint32(max(d.GetWeight(), 0)),
			Headers: d.GetHeaders(),
			Hash:    hash,
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
	return b.shared(r, origins)
}

// ruleID is where a route is looked for.
type ruleID struct {
	rule  *networking.HTTPRoute
	match *networking.HTTPMatchRequest
	port  uint32
}

// shared is the route that there is already, if it is the same: other proxies
// have the same rule with the same destinations, as a rule.
func (b *tableBuilder) shared(r *Route, origins []*mesh.Origin) *Route {
	return b.sc.epoch.rules.of(ruleID{r.Rule, r.Match, r.Port}, r, func() *Route {
		r.origins = originsOf(origins...)
		return b.sc.routes.of(r)
	})
}

// defaultInput is what the route of a service is made from that no VirtualService
// takes.
type defaultInput struct {
	host mesh.Hostname
	port uint32
	hash *networking.LoadBalancerSettings_ConsistentHashLB // or nil
}

// sourced is an epoch with the origins of what is made in it.
type sourced struct {
	*epoch
	service *mesh.Origin
	rule    []*mesh.Origin
}

func (in defaultInput) build(from sourced) *Route {
	origins := []*mesh.Origin{from.service}
	if in.hash != nil {
		origins = append(origins, from.rule...)
	}
	r := &Route{
		Port:         in.port,
		Destinations: []RouteDestination{{Cluster: Outbound(in.host, in.port, ""), Hash: in.hash}},
		Retry:        from.config.GetDefaultHttpRetryPolicy(),
	}
	r.origins = originsOf(origins...)
	return from.routes.of(r)
}

// defaultRoute is that of a service which no VirtualService takes.
func (b *tableBuilder) defaultRoute(svc *service, port uint32) *Route {
	from := sourced{epoch: b.sc.epoch, service: svc.Origin}
	in := defaultInput{host: svc.Hostname, port: port}
	if dr := b.sc.rule(svc.Hostname); dr != nil {
		in.hash, from.rule = dr.serviceHash(port), dr.origins
	}
	return b.sc.byDefault.of(from, in)
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

// cluster is where a destination leads: its port if it names one, else the only
// port of the service, else the port that the request came to.
func (b *tableBuilder) cluster(d *networking.Destination) ClusterRef {
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
