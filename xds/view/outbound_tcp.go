package view

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// l4RoutesFor are the VirtualServices of the listener that have routes for TCP or TLS, and
// name the service.
func (o *outboundListenerBuilder) l4RoutesFor(t servicePort) []*virtualService {
	layer4, ok := o.l4VirtualServices[t.egress]
	if !ok {
		for _, vs := range t.egress.virtualServices {
			if vs.hasL4Routes() {
				layer4 = append(layer4, vs)
			}
		}
		o.l4VirtualServices[t.egress] = layer4
	}
	var out []*virtualService
	for _, vs := range layer4 {
		if slices.ContainsFunc(vs.hosts, t.svc.Hostname.Overlaps) {
			out = append(out, vs)
		}
	}
	return out
}

// l4Match is what TLS and TCP matches have in common.
type l4Match interface {
	GetGateways() []string
	GetSourceLabels() map[string]string
	GetPort() uint32
	GetSourceNamespace() string
}

func (sc *sidecarScope) matchesL4(m l4Match, port uint32) bool {
	return (len(m.GetGateways()) == 0 || slices.Contains(m.GetGateways(), meshGateway)) &&
		mesh.Selects(m.GetSourceLabels(), sc.proxy.Labels) &&
		(m.GetPort() == 0 || m.GetPort() == port) &&
		(m.GetSourceNamespace() == "" || m.GetSourceNamespace() == sc.namespace())
}

// tlsChains are filter chains by server name: those of VirtualServices, else one for the
// service.
func (o *outboundListenerBuilder) tlsChains(t servicePort) []*FilterChain {
	var out []*FilterChain
	seen := map[string]bool{}
	for _, vs := range o.l4RoutesFor(t) {
		for _, r := range vs.Spec.GetTls() {
			for _, m := range r.GetMatch() {
				if len(r.GetRoute()) == 0 || !o.sc.matchesL4(m, t.port.Number) {
					continue
				}
				cidrs := t.cidrs
				if len(m.GetDestinationSubnets()) > 0 && t.port.Number > 0 {
					cidrs = m.GetDestinationSubnets()
				}
				key := strings.Join(m.GetSniHosts(), ",") + "|" + strings.Join(m.GetDestinationSubnets(), ",")
				if seen[key] {
					continue
				}
				seen[key] = true
				out = append(out, &FilterChain{
					Match: FilterChainMatch{ServerNames: m.GetSniHosts(), CIDRs: cidrs},
					TCP:   o.tcpRoutes(t, vs, r.GetRoute()),
				})
			}
		}
	}
	if len(out) > 0 {
		return out
	}
	c := &FilterChain{Match: FilterChainMatch{CIDRs: t.cidrs}, TCP: o.tcpService(t)}
	// Only an address of the service's own says which service is meant. A range does not say
	// it on a listener that is elsewhere, as without capture.
	addresses := o.sc.addressesOf(t.svc.Service)
	vip, ranges := slices.ContainsFunc(addresses, isIP), len(addresses) > 0
	if len(t.cidrs) > 0 || t.svc.Resolution == mesh.ResolutionDynamicDNS || !vip && (ranges || t.bind == wildcard) {
		c.Match.ServerNames = []string{string(t.svc.Hostname)}
	}
	return []*FilterChain{c}
}

// tcpChains are filter chains by address: those of VirtualServices, and one for what they
// leave to the service.
func (o *outboundListenerBuilder) tcpChains(t servicePort) []*FilterChain {
	var out []*FilterChain
	for _, vs := range o.l4RoutesFor(t) {
		for _, r := range vs.Spec.GetTcp() {
			if len(r.GetRoute()) == 0 {
				continue
			}
			all := &FilterChain{Match: FilterChainMatch{CIDRs: t.cidrs}}
			if len(r.GetMatch()) == 0 {
				all.TCP = o.tcpRoutes(t, vs, r.GetRoute())
				return append(out, all)
			}
			var subnets []string
			for _, m := range r.GetMatch() {
				if !o.sc.matchesL4(m, t.port.Number) {
					continue
				}
				if len(m.GetDestinationSubnets()) == 0 || t.port.Number == 0 {
					all.TCP = o.tcpRoutes(t, vs, r.GetRoute())
					return append(out, all)
				}
				subnets = append(subnets, m.GetDestinationSubnets()...)
			}
			if len(subnets) > 0 {
				out = append(out, &FilterChain{Match: FilterChainMatch{CIDRs: subnets}, TCP: o.tcpRoutes(t, vs, r.GetRoute())})
			}
		}
	}
	last := &FilterChain{Match: FilterChainMatch{CIDRs: t.cidrs}, TCP: o.tcpService(t)}
	if slices.ContainsFunc(out, func(c *FilterChain) bool { return matchesOverlap(&c.Match, &last.Match) }) {
		return out
	}
	return append(out, last)
}

// tcpService forwards to the service itself.
func (o *outboundListenerBuilder) tcpService(t servicePort) *TCPProxy {
	port := t.port.Number
	if len(t.svc.Ports) == 1 {
		port = t.svc.Ports[0].Number
	}
	return o.tcpTo(t.svc.Hostname, "", []WeightedCluster{{Cluster: Outbound(t.svc.Hostname, port, "")}})
}

func (o *outboundListenerBuilder) tcpRoutes(t servicePort, vs *virtualService, routes []*networking.RouteDestination) *TCPProxy {
	o.routedBy = append(o.routedBy, vs.Origin)
	first := routes[0].GetDestination()
	var list []WeightedCluster
	for _, r := range routes {
		d := r.GetDestination()
		c := destinationCluster(d, o.sc.find(lower(d.GetHost())), t.port.Number)
		if len(routes) == 1 {
			tcp := o.tcpTo(lower(d.GetHost()), d.GetSubset(), []WeightedCluster{{Cluster: c}})
			tcp.Config = vs.Key
			return tcp
		}
		if r.GetWeight() > 0 {
			list = append(list, WeightedCluster{Cluster: c, Weight: uint32(r.GetWeight())})
		}
	}
	tcp := o.tcpTo(lower(first.GetHost()), "", list)
	tcp.StatPrefix, tcp.Config = vs.Name+"."+vs.Namespace, vs.Key
	return tcp
}

func (o *outboundListenerBuilder) tcpTo(host mesh.Hostname, subset string, list []WeightedCluster) *TCPProxy {
	if len(list) == 0 { // every weight is zero
		list = []WeightedCluster{{Cluster: ClusterRef{Kind: BlackHoleCluster}}}
	}
	tcp := &TCPProxy{StatPrefix: statPrefix(list[0].Cluster), Destinations: list}
	o.lookUpServerName(tcp, host)
	r := o.sc.rule(host)
	if r == nil {
		return tcp
	}
	o.routedBy = append(o.routedBy, r.origins...)
	pool := r.spec.GetTrafficPolicy().GetConnectionPool().GetTcp()
	tcp.IdleTimeout = pool.GetIdleTimeout().AsDuration()
	tcp.MaxDuration = pool.GetMaxConnectionDuration().AsDuration()
	hash := r.spec.GetTrafficPolicy().GetLoadBalancer().GetConsistentHash()
	for _, s := range r.spec.GetSubsets() {
		if lb := s.GetTrafficPolicy().GetLoadBalancer(); s.GetName() == subset && lb != nil {
			hash = cmp.Or(lb.GetConsistentHash(), &networking.LoadBalancerSettings_ConsistentHashLB{})
		}
	}
	tcp.HashSourceIP = hash.GetUseSourceIp()
	tunnel := r.spec.GetTrafficPolicy().GetTunnel()
	if subset != "" { // which does not inherit it, as in Istio
		tunnel = r.subset(subset).GetTrafficPolicy().GetTunnel()
	}
	if tunnel != nil {
		tcp.Tunnel, tcp.TunnelPost = net.JoinHostPort(tunnel.GetTargetHost(), strconv.FormatUint(uint64(tunnel.GetTargetPort()), 10)), tunnel.GetProtocol() == "POST"
	}
	return tcp
}
