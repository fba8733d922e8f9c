package view

import (
	"slices"
	"strconv"

	"github.com/fairlead/fairlead/registry/mesh"
)

// wildcards are the addresses of a listener for captured connections of all destinations.
func wildcards(ipv6 bool) []string {
	if ipv6 {
		return []string{wildcard, wildcardIPv6}
	}
	return []string{wildcard}
}

// virtualOutbound receives redirected connections, and passes them to the listener of their
// original destination.
func (o *outboundListenerBuilder) virtualOutbound() *Listener {
	sc := o.sc
	l := &Listener{
		Name:           "virtualOutbound",
		Addresses:      wildcards(sc.captureIPv6),
		Port:           sc.outPort(),
		BindToPort:     true,
		UseOriginalDst: true,
		Transparent:    sc.proxy.Interception == InterceptTPROXY,
		Telemetry:      sc.telemetry.Outbound,
		Chains: []*FilterChain{
			blackholeChain("virtualOutbound-blackhole", sc.outPort()),
			sc.catchAllChain("virtualOutbound-catchall-tcp"),
		},
	}
	if have := o.prev[l.Name]; have != nil && l.sameAs(have) {
		return have
	}
	return sc.listeners.intern(l)
}

// plaintextTCP reports whether a chain is for connections in which the application may speak
// first.
func (c *FilterChain) plaintextTCP() bool {
	return c.TCP != nil && !c.endsTLS() && !c.Unreported
}

// virtualInbound receives redirected connections. It has filter chains for each port, and
// for ports that no service names.
func (in *inboundInput) virtualInbound(mc *meshContext, captured []*FilterChain, origins []*mesh.Origin) *Listener {
	l := &Listener{
		Name: "virtualInbound", Addresses: wildcards(in.IPv6), Port: mc.inPort(),
		Inbound: true, BindToPort: true, OriginalDst: true, Telemetry: in.Telemetry,
		Transparent: in.Interception == InterceptTPROXY,
		OriginalSrc: in.Interception == InterceptTPROXY,
		Chains:      []*FilterChain{blackholeChain("virtualInbound-blackhole", mc.inPort())},
	}
	named := map[uint32]bool{}
	for _, p := range in.Ports {
		named[p.Number] = true
	}
	// A port that only a policy names has a mode too.
	rest := []uint32{0}
	for port := range in.Modes {
		if !named[port] {
			rest = append(rest, port)
		}
	}
	slices.Sort(rest)
	for _, port := range rest {
		mode := in.Mode
		if port != 0 {
			mode = in.modeAt(port)
		}
		to := ClusterRef{Kind: InboundPassthroughCluster}
		l.Chains = append(l.Chains, in.sniffedChains(mc, mode, func() *FilterChain {
			return &FilterChain{
				Name: "virtualInbound", Match: FilterChainMatch{DestinationPort: port}, Deny: in.Deny, Authorization: in.Authorization,
				TCP: &TCPProxy{StatPrefix: statPrefix(to), Destinations: []WeightedCluster{{Cluster: to}}},
			}
		}, func(c *FilterChain) {
			c.Name = "virtualInbound-catchall-http"
			in.serveHTTP(c, mc.httpChain("inbound_"+listenerName(wildcard, port), in.Headers))
			c.HTTP.Inbound = &InboundRoute{Cluster: to, Operation: ":" + strconv.FormatUint(uint64(port), 10) + "/*", Retry: true, Retries: mc.config.GetDefaultInboundHttpRetryPolicy()}
		})...)
	}
	l.Chains = append(l.Chains, captured...)
	in.inspect(mc, l)
	if l.InspectTimeout == defaultInspectTimeout && mc.config.GetProtocolDetectionTimeout().AsDuration() == 0 && slices.ContainsFunc(l.Chains, (*FilterChain).plaintextTCP) {
		l.InspectTimeout = mc.settings.captureDetectionTimeout()
	}
	l.origins = originsOf(append(slices.Clone(in.origins), origins...)...)
	return mc.listeners.intern(l)
}

// fixedInput is what the clusters that every proxy has are made from.
type fixedInput struct {
	router bool
	mode   Interception // empty for routers
	ipv6   bool         // connections over IPv6 are captured
	// keepCase is that of upstreamSettings.
	keepCase bool
}

func (in fixedInput) build(mc *meshContext) *Layer {
	kinds := []ClusterKind{BlackHoleCluster, PassthroughCluster}
	if in.router {
		kinds = kinds[:1]
	} else if in.mode != InterceptNone {
		kinds = append(kinds, InboundPassthroughCluster)
	}
	parts := make([]Part, 0, len(kinds))
	for _, k := range kinds {
		c := &Cluster{Ref: ClusterRef{Kind: k}, Discovery: DiscoverOriginalDst, Defaults: mc.defaults, KeepHeaderCase: in.keepCase, Service: mc.unknownService(k.String())}
		if k == BlackHoleCluster {
			c.Discovery = DiscoverStatic
		}
		c.BindLoopback = k == InboundPassthroughCluster
		c.BindLoopbackIPv6 = c.BindLoopback && in.ipv6
		parts = append(parts, mc.clusters.intern(c))
	}
	return mc.layer(FixedLayer, parts)
}

// capturesIPv6 reports whether connections over IPv6 are captured: not on a host without an
// IPv6 address, where listeners of IPv6 might not even be possible.
func (p *Proxy) capturesIPv6() bool {
	_, v6 := p.families()
	return v6 && p.Interception != InterceptNone && p.Type != Router
}
