package view

import (
	"cmp"
	"fmt"
	"slices"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// gatewayKey is everything of a gateway proxy that its listeners and routes depend on, besides its
// scope; zero for sidecars.
type gatewayKey struct {
	policies  *gatewayPolicies
	targets   *portTargets // or nil
	ipv6      bool         // it has no address of IPv4
	firstPort uint32       // the lowest port at which it may listen; 0 if any
}

// gatewayPolicies is what security policies say of the requests to a gateway.
type gatewayPolicies struct {
	Slots         []Slot
	Rules         string
	Deny          bool
	Authorization *Authorization
}

// portTargets are the ports of services that lead to other ports of a proxy.
type portTargets struct{ List []portTarget }

func (t *portTargets) all() []portTarget {
	if t == nil {
		return nil
	}
	return t.List
}

// gatewayKeyOf is the key of a gateway proxy with some policies.
func (pc *proxyContext) gatewayKeyOf(in *inboundInput) gatewayKey {
	v4, v6 := pc.proxy.families()
	k := gatewayKey{
		policies: pc.gatewayPolicies.intern(gatewayPolicies{Slots: in.slots(), Rules: in.rules(), Deny: in.Deny, Authorization: in.Authorization}),
		ipv6:     v6 && !v4, firstPort: pc.proxy.FirstPort,
	}
	if targets := pc.portTargets(); len(targets) > 0 {
		k.targets = pc.targetSets.intern(portTargets{targets})
	}
	return k
}

// portTargets are the ports of the services that the proxy belongs to which lead to other ports of it.
// Of several services with a port the first one counts, as in Istio's resolvePorts.
func (pc *proxyContext) portTargets() []portTarget {
	var out []portTarget
	seen := map[uint32]bool{}
	for _, f := range pc.ownServices() {
		for _, p := range f.svc.Ports {
			if seen[p.Number] {
				continue
			}
			seen[p.Number] = true
			if n := f.w.PortFor(p); n != p.Number {
				out = append(out, portTarget{p.Number, n})
			}
		}
	}
	return out
}

// gatewayBuilder builds the listeners and routes of a gateway proxy.
type gatewayBuilder struct {
	sc       *sidecarScope
	key      *gatewayKey
	merged   *mergedGateways
	prev     map[string]*Listener
	tcp      *outboundListenerBuilder // for the routes of TCP
	warnings []Warning
	origins  []*mesh.Origin // of the chains that are built
	snis     map[uint32]map[string]gatewayHost
}

func newGatewayBuilder(sc *sidecarScope, key *gatewayKey, prev map[string]*Listener) *gatewayBuilder {
	merged := mergeGateways(sc.gateways, key.targets.all())
	return &gatewayBuilder{
		sc: sc, key: key, prev: prev, merged: merged, warnings: merged.warnings,
		tcp: &outboundListenerBuilder{sc: sc}, snis: map[uint32]map[string]gatewayHost{},
	}
}

// listeners returns the listeners, and the names of the route configurations that they request.
func (b *gatewayBuilder) listeners() ([]Part, []string) {
	pending := map[string]*pendingListener{}
	var order, names []string
	for _, at := range b.merged.ports {
		first := b.merged.servers[at][0]
		if at.number < b.key.firstPort && !isUnix(at.bind) {
			b.warn(first, fmt.Sprintf("no listener: Envoy on this host may listen at ports from %d on", b.key.firstPort))
			continue
		}
		b.origins = nil
		chains := b.chains(at)
		key := listenerKey{Bind: cmp.Or(at.bind, b.wildcard()), Port: at.number}
		name := listenerName(key.Bind, key.Port)
		if pending[name] == nil {
			pending[name] = &pendingListener{key: key, bindToPort: true}
			order = append(order, name)
		}
		en := pending[name]
		for _, c := range chains {
			if !en.addChain(c) {
				b.warn(first, "some of its connections go where an earlier server has the same names")
			} else if c.HTTP != nil {
				names = append(names, c.HTTP.RouteName)
			}
		}
		en.origins = append(en.origins, b.origins...)
	}
	slices.Sort(order)
	var parts []Part
	for _, name := range order {
		if en := pending[name]; len(en.chains) > 0 {
			parts = append(parts, b.listener(name, en))
		}
	}
	slices.Sort(names)
	return parts, slices.Compact(names)
}

func (b *gatewayBuilder) wildcard() string {
	if b.key.ipv6 {
		return wildcardIPv6
	}
	return wildcard
}

func (b *gatewayBuilder) listener(name string, en *pendingListener) *Listener {
	l := &Listener{
		Name: name, Addresses: []string{en.key.Bind}, Port: en.key.Port, BindToPort: true, Gateway: true,
		Chains: en.chains, Telemetry: b.sc.telemetry.Outbound, ProxyProtocol: b.topology().GetProxyProtocol() != nil,
	}
	l.InspectTLS = slices.ContainsFunc(l.Chains, func(c *FilterChain) bool {
		return len(c.Match.ServerNames) > 0 || c.TLS != nil || c.Gateway != nil
	})
	if have := b.prev[name]; have != nil && l.sameAs(have) {
		return have
	}
	l.origins = originsOf(en.origins...)
	return b.sc.listeners.intern(l)
}

func (b *gatewayBuilder) topology() *meshconfig.Topology {
	return b.sc.config.GetDefaultConfig().GetGatewayTopology()
}

func (b *gatewayBuilder) warn(s *gatewayServer, text string) {
	b.warnings = append(b.warnings, Warning{
		Key: s.gateway.Key, Origin: s.gateway.Origin,
		Message: fmt.Sprintf("port %d: %s", s.port, text),
	})
}

// chains are the filter chains of a port.
func (b *gatewayBuilder) chains(at gatewayPort) []*FilterChain {
	servers := b.merged.servers[at]
	for _, s := range servers {
		b.origins = append(b.origins, s.gateway.Origin)
	}
	if parseProtocol(at.protocol).IsHTTP() {
		return []*FilterChain{b.httpChain(servers[0], at, b.merged.routes[at])}
	}
	var out []*FilterChain
	for _, s := range servers {
		switch {
		case s.endsHTTPS() && s.GetTls() != nil:
			c := b.httpChain(s, at, s.routes)
			c.Match.ServerNames = s.sniHosts()
			b.endTLS(c, s, true)
			out = append(out, c)
		case s.GetTls() == nil, !s.passes():
			c := b.tcpChain(s)
			if c == nil {
				continue
			}
			if s.GetTls() != nil {
				c.Match.ServerNames = s.sniHosts()
				b.endTLS(c, s, false)
			}
			out = append(out, c)
		case s.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH:
			out = append(out, b.meshChains(s)...)
		default:
			out = append(out, b.tlsChains(s, at)...)
		}
	}
	return out
}

func (b *gatewayBuilder) httpChain(s *gatewayServer, at gatewayPort, routes string) *FilterChain {
	bind := cmp.Or(at.bind, b.wildcard())
	http := b.sc.httpChain("outbound_"+listenerName(bind, at.number), b.sc.headers.settings())
	if s.endsHTTPS() && s.GetName() != "" {
		http.StatPrefix = s.GetName()
	}
	http.RouteName, http.GRPCWeb, http.Slots = routes, s.protocol == mesh.GRPCWeb, b.key.policies.Slots
	topology := b.topology()
	http.Gateway = &GatewayHTTP{TrustedProxies: topology.GetNumTrustedProxies(), ForwardClientCert: topology.GetForwardClientCertDetails()}
	return &FilterChain{HTTP: http, Rules: b.key.policies.Rules}
}

// endTLS has a chain end TLS with the settings of its server. With ISTIO_MUTUAL that is mTLS of the mesh.
func (b *gatewayBuilder) endTLS(c *FilterChain, s *gatewayServer, http bool) {
	if s.GetTls().GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		c.TLS = b.sc.serverTLS(http)
		c.TLS.Names = s.GetTls().GetSubjectAltNames()
		return
	}
	c.Gateway = &GatewayTLS{Settings: s.GetTls(), Defaults: b.sc.config.GetTlsDefaults(), FileSecrets: b.sc.upstream.fileSecrets}
}

// tcpChain is the chain of a server of TCP: the first routes for TCP of a VirtualService that it has; or
// nil.
func (b *gatewayBuilder) tcpChain(s *gatewayServer) *FilterChain {
	for _, vs := range b.sc.boundTo(s.name) {
		if !s.overlaps(vs) {
			continue
		}
		for _, r := range vs.Spec.GetTcp() {
			if len(r.GetRoute()) == 0 || len(r.GetMatch()) > 0 && !slices.ContainsFunc(r.GetMatch(), func(m *networking.L4MatchAttributes) bool { return s.matches(m) }) {
				continue
			}
			return b.passOn(s, vs, r.GetRoute())
		}
	}
	return nil
}

// overlaps reports whether the server has a host of a VirtualService.
func (s *gatewayServer) overlaps(vs *virtualService) bool {
	return slices.ContainsFunc(s.hostsFor(vs.Namespace), func(h mesh.Hostname) bool {
		return slices.ContainsFunc(vs.hosts, h.Overlaps)
	})
}

// matches reports whether a match is for the server. As in Istio, nothing but its port and Gateway counts.
func (s *gatewayServer) matches(m l4Match) bool {
	return (m.GetPort() == 0 || m.GetPort() == s.GetPort().GetNumber()) &&
		(len(m.GetGateways()) == 0 || slices.Contains(m.GetGateways(), s.name))
}

// passOn forwards connections as a VirtualService says.
func (b *gatewayBuilder) passOn(s *gatewayServer, vs *virtualService, routes []*networking.RouteDestination) *FilterChain {
	b.tcp.routedBy = nil
	tcp := b.tcp.tcpRoutes(servicePort{port: mesh.Port{Number: s.GetPort().GetNumber()}}, vs, routes)
	b.origins = append(b.origins, b.tcp.routedBy...)
	return &FilterChain{TCP: tcp, Deny: b.key.policies.Deny, Authorization: b.key.policies.Authorization}
}

// tlsChains are the chains of a server through which TLS passes: one for each match of a VirtualService.
// An earlier match of a name at that port has it, from any server.
func (b *gatewayBuilder) tlsChains(s *gatewayServer, at gatewayPort) []*FilterChain {
	taken := b.snis[at.number]
	if taken == nil {
		taken = map[string]gatewayHost{}
		b.snis[at.number] = taken
	}
	has := func(name string) bool { have, ok := taken[name]; return ok && have.bind == at.bind }
	var out []*FilterChain
	for _, vs := range b.sc.boundTo(s.name) {
		if !s.overlaps(vs) {
			continue
		}
		for _, r := range vs.Spec.GetTls() {
			for _, m := range r.GetMatch() {
				if len(r.GetRoute()) == 0 || !s.matches(m) {
					continue
				}
				if i := slices.IndexFunc(m.GetSniHosts(), has); i >= 0 {
					b.warn(s, fmt.Sprintf("a route of %s is left out: an earlier one has the server name %q", vs.Key, m.GetSniHosts()[i]))
					continue
				}
				for _, name := range m.GetSniHosts() {
					taken[name] = gatewayHost{at.bind, s}
				}
				c := b.passOn(s, vs, r.GetRoute())
				c.Match.ServerNames = m.GetSniHosts()
				out = append(out, c)
			}
		}
	}
	return out
}

// meshChains are the chains of a server with AUTO_PASSTHROUGH: mTLS of the mesh passes to the cluster that
// its server name says. Only what offers the ALPN protocols of the mesh does.
func (b *gatewayBuilder) meshChains(s *gatewayServer) []*FilterChain {
	hosts := s.sniHosts()
	var out []*FilterChain
	for _, svc := range b.sc.services {
		if svc.External || !slices.ContainsFunc(hosts, func(h string) bool { return mesh.Hostname(h).Covers(svc.Hostname) }) {
			continue
		}
		for _, p := range svc.Ports {
			if p.Protocol == mesh.UDP {
				continue
			}
			subsets := []string{""}
			if svc.rule != nil {
				for _, x := range svc.rule.spec.GetSubsets() {
					subsets = append(subsets, x.GetName())
				}
			}
			for _, subset := range subsets {
				to := ClusterRef{Kind: SNICluster, Port: p.Number, Subset: subset, Host: svc.Hostname}
				b.tcp.routedBy = nil
				c := &FilterChain{TCP: b.tcp.tcpTo(svc.Hostname, subset, []WeightedCluster{{Cluster: to}})}
				b.origins = append(append(b.origins, svc.Origin), b.tcp.routedBy...)
				c.Match.ServerNames, c.Match.ALPN = []string{statPrefix(to)}, istioALPN()
				out = append(out, c)
			}
		}
	}
	return out
}
