package view

import (
	"cmp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// routesFor are the VirtualServices of the listener that name the service, of
// those that route connections.
func (o *outbound) routesFor(t target) []*virtualService {
	layer4, ok := o.layer4[t.e]
	if !ok {
		for _, vs := range t.e.virtualServices {
			if vs.layer4() {
				layer4 = append(layer4, vs)
			}
		}
		o.layer4[t.e] = layer4
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

func (sc *scope) matchesL4(m l4Match, port uint32) bool {
	return (len(m.GetGateways()) == 0 || slices.Contains(m.GetGateways(), "mesh")) &&
		mesh.Selects(m.GetSourceLabels(), sc.proxy.Labels) &&
		(m.GetPort() == 0 || m.GetPort() == port) &&
		(m.GetSourceNamespace() == "" || m.GetSourceNamespace() == sc.namespace())
}

// tlsChains are chains by server name: those of VirtualServices, else one for
// the service.
func (o *outbound) tlsChains(t target) []*Chain {
	var out []*Chain
	seen := map[string]bool{}
	for _, vs := range o.routesFor(t) {
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
				out = append(out, &Chain{
					Match: ChainMatch{ServerNames: m.GetSniHosts(), CIDRs: cidrs},
					TCP:   o.tcpRoutes(t, vs, r.GetRoute()),
				})
			}
		}
	}
	if len(out) > 0 {
		return out
	}
	c := &Chain{Match: ChainMatch{CIDRs: t.cidrs}, TCP: o.tcpService(t)}
	vip := slices.ContainsFunc(t.svc.Addresses, isIP)
	if len(t.cidrs) > 0 || (!vip && t.bind == wildcard) {
		c.Match.ServerNames = []string{string(t.svc.Hostname)}
	}
	return []*Chain{c}
}

// tcpChains are chains by address: those of VirtualServices, and one for what
// they leave to the service.
func (o *outbound) tcpChains(t target) []*Chain {
	var out []*Chain
	for _, vs := range o.routesFor(t) {
		for _, r := range vs.Spec.GetTcp() {
			if len(r.GetRoute()) == 0 {
				continue
			}
			all := &Chain{Match: ChainMatch{CIDRs: t.cidrs}}
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
				out = append(out, &Chain{Match: ChainMatch{CIDRs: subnets}, TCP: o.tcpRoutes(t, vs, r.GetRoute())})
			}
		}
	}
	last := &Chain{Match: ChainMatch{CIDRs: t.cidrs}, TCP: o.tcpService(t)}
	if slices.ContainsFunc(out, func(c *Chain) bool { return sameMatch(&c.Match, &last.Match) }) {
		return out
	}
	return append(out, last)
}

// tcpService passes on to the service itself.
func (o *outbound) tcpService(t target) *TCPChain {
	port := t.port.Number
	if len(t.svc.Ports) == 1 {
		port = t.svc.Ports[0].Number
	}
	return o.tcpTo(t.svc.Hostname, "", []WeightedCluster{{Cluster: Outbound(t.svc.Hostname, port, "")}})
}

func (o *outbound) tcpRoutes(t target, vs *virtualService, routes []*networking.RouteDestination) *TCPChain {
	first := routes[0].GetDestination()
	var list []WeightedCluster
	for _, r := range routes {
		d := r.GetDestination()
		c := destinationCluster(d, o.sc.find(lower(d.GetHost())), t.port.Number)
		if len(routes) == 1 {
			return o.tcpTo(lower(d.GetHost()), d.GetSubset(), []WeightedCluster{{Cluster: c}})
		}
		if r.GetWeight() > 0 {
			list = append(list, WeightedCluster{Cluster: c, Weight: uint32(r.GetWeight())})
		}
	}
	tcp := o.tcpTo(lower(first.GetHost()), "", list)
	tcp.StatPrefix = vs.Name + "." + vs.Namespace
	return tcp
}

func (o *outbound) tcpTo(host mesh.Hostname, subset string, list []WeightedCluster) *TCPChain {
	if len(list) == 0 { // every weight is zero
		list = []WeightedCluster{{Cluster: ClusterRef{Kind: BlackHoleCluster}}}
	}
	tcp := &TCPChain{StatPrefix: statPrefix(list[0].Cluster), Destinations: list}
	r := o.sc.rule(host)
	if r == nil {
		return tcp
	}
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
	return tcp
}
