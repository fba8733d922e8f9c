package view

import (
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// updateGateways takes over the Gateways of the next index, which the scope of a gateway proxy has
// already. It reports whether listeners and routes have to be built again.
func (sc *sidecarScope) updateGateways(d *indexDiff) bool {
	was := sc.gateways
	sc.gateways = sc.gatewaysOf(sc.namespace(), sc.proxy.Labels)
	if !slices.Equal(was, sc.gateways) {
		return true
	}
	if len(sc.passthrough) > 0 && (d.allRules || len(d.hosts) > 0) { // chains follow subsets
		return true
	}
	mine := map[string]bool{}
	for _, g := range sc.gateways {
		mine[g.Namespace+"/"+g.Name] = true
	}
	bound := func(vs *virtualService) bool {
		return vs != nil && slices.ContainsFunc(vs.Spec.GetGateways(), func(g string) bool { return mine[g] })
	}
	return slices.ContainsFunc(d.virtualServices, func(c virtualServiceDelta) bool { return bound(c.Old) || bound(c.New) })
}

// samePassthrough reports whether mTLS of the mesh passes to the same hosts in the next index.
func (sc *sidecarScope) samePassthrough(next *proxyContext) bool {
	return slices.Equal(sc.passthrough, passthroughHosts(next.gatewaysOf(next.namespace(), next.proxy.Labels)))
}

// passthroughHosts are the hosts of servers with AUTO_PASSTHROUGH, sorted.
func passthroughHosts(list []*mesh.Gateway) []mesh.Hostname {
	var out []mesh.Hostname
	for _, g := range list {
		for _, s := range g.Spec.GetServers() {
			if s.GetTls().GetMode() != networking.ServerTLSSettings_AUTO_PASSTHROUGH {
				continue
			}
			for _, h := range mesh.NewGatewayServer(g, s, nil).SNIHosts() {
				out = append(out, mesh.Hostname(h))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// passes reports whether mTLS of the mesh passes through the gateway to a service.
func (sc *sidecarScope) passes(svc *mesh.Service) bool {
	return mayPass(svc) && slices.ContainsFunc(sc.passthrough, func(h mesh.Hostname) bool { return h.Covers(svc.Hostname) })
}

// mayPass reports whether mTLS of the mesh may pass through a gateway to a service: its host is in the
// server name, which Envoy does not match if a wildcard is in it.
func mayPass(svc *mesh.Service) bool { return !svc.External && !svc.Hostname.IsWildcard() }

// appendClusters adds the cluster of a port, and those of its subsets.
func (mc *meshContext) appendClusters(to *serviceParts, in clusterInput) {
	mc.appendCluster(to, in)
	if in.rule == nil {
		return
	}
	for _, subset := range in.rule.spec.GetSubsets() {
		in.subset = subset
		mc.appendCluster(to, in)
	}
}

// withoutTLS is a policy, which may be nil, without its TLS.
func withoutTLS(policy *networking.TrafficPolicy) *networking.TrafficPolicy {
	if policy.GetTls() == nil {
		return policy
	}
	out := proto.CloneOf(policy)
	out.Tls = nil
	return out
}
