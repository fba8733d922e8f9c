package webhook

import (
	networking "istio.io/api/networking/v1alpha3"
)

func (c cursor) tlsRoute(r *networking.TLSRoute, ctx vsContext) {
	if r == nil {
		return
	}
	if len(r.Match) == 0 {
		c.wrong("the route has no match; write match.sniHosts")
	}
	for i, m := range r.Match {
		c.item("match", i).tlsMatch(m, ctx)
	}
	c.l4Destinations(r.Route, ctx)
}

func (c cursor) tlsMatch(m *networking.TLSMatchAttributes, ctx vsContext) {
	if m == nil {
		c.wrong("the match is empty; write sniHosts")
		return
	}
	if len(m.SniHosts) == 0 {
		c.wrong("the match has no sniHosts; name at least one of the hosts")
	}
	for i, h := range m.SniHosts {
		c.item("sniHosts", i).sniHost(h, ctx)
	}
	c.l4Match(l4Match{m.DestinationSubnets, m.Port, m.SourceLabels, m.Gateways})
}

func (c cursor) sniHost(h string, ctx vsContext) {
	why := whyNotHost(h)
	if ctx.outside {
		why = whyNotGatewayHost(h, true)
	}
	if why != "" {
		if isIP(h) {
			c.warn("clients do not send the address %q as server name; match by destinationSubnets in tcp", h)
			return
		}
		c.wrong("%s", why)
		return
	}
	if ctx.covered().covers(h) {
		return
	}
	c.wrong("%q is not among the hosts of this VirtualService (%s); add it to hosts%s",
		h, fewOf(ctx.hosts), near(h, ctx.hosts...))
}

func (c cursor) tcpRoute(r *networking.TCPRoute, ctx vsContext) {
	if r == nil {
		return
	}
	for i, m := range r.Match {
		if m == nil {
			c.item("match", i).wrong("the match is empty; remove it, or write port")
			continue
		}
		c.item("match", i).l4Match(l4Match{m.DestinationSubnets, m.Port, m.SourceLabels, m.Gateways})
	}
	c.l4Destinations(r.Route, ctx)
}

// l4Match is what TLS and TCP matches have in common.
type l4Match struct {
	subnets  []string
	port     uint32
	labels   map[string]string
	gateways []string
}

func (c cursor) l4Match(m l4Match) {
	for i, s := range m.subnets {
		c.item("destinationSubnets", i).because(whyNotSubnet(s))
	}
	if m.port != 0 {
		c.at("port").because(whyNotPort(m.port))
	}
	c.labels("sourceLabels", m.labels)
	c.gatewayNames(m.gateways, false)
}

func (c cursor) l4Destinations(list []*networking.RouteDestination, ctx vsContext) {
	if len(list) == 0 {
		c.wrong("the route goes nowhere; write route.destination")
	}
	var total int32
	for i, d := range list {
		at := c.item("route", i)
		if d == nil {
			at.wrong("the destination is empty")
			continue
		}
		at.weighted(d.Destination, d.Weight, ctx)
		total += d.Weight
	}
	c.totalWeight(len(list), total)
}
