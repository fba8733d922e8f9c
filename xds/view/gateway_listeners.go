package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// gatewayKey is everything of a gateway proxy that its listeners and routes depend on, besides its
// scope; zero for sidecars.
type gatewayKey struct {
	policies  *gatewayPolicies
	targets   *portTargets   // or nil
	topology  *proxyTopology // of the proxy's own ProxyConfig; or nil
	ipv6      bool           // it has no address of IPv4
	firstPort uint32         // the lowest port at which it may listen; 0 if any
}

// gatewayPolicies is what security policies say of the requests to a gateway.
type gatewayPolicies struct {
	Slots         []Slot
	Rules         string
	Deny          bool
	Authorization *Authorization
}

// proxyTopology is what a gateway's own ProxyConfig says of the proxies before it.
type proxyTopology struct{ Settings *meshconfig.Topology }

// portTargets are the ports of services that lead to other ports of a proxy.
type portTargets struct{ List []mesh.PortTarget }

func (t *portTargets) all() []mesh.PortTarget {
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
	if own := pc.proxy.Topology; own != nil {
		k.topology = pc.topologies.intern(proxyTopology{own})
	}
	return k
}

// portTargets are the ports of the services that the proxy belongs to which lead to other ports of it.
// Of several services with a port the first one counts, as in Istio's resolvePorts.
func (pc *proxyContext) portTargets() []mesh.PortTarget {
	var out []mesh.PortTarget
	seen := map[uint32]bool{}
	for _, f := range pc.ownServices() {
		for _, p := range f.svc.Ports {
			if seen[p.Number] {
				continue
			}
			seen[p.Number] = true
			if n := f.w.PortFor(p); n != p.Number {
				out = append(out, mesh.PortTarget{Port: p.Number, Target: n})
			}
		}
	}
	return out
}

// gatewayBuilder builds the listeners and routes of a gateway proxy.
type gatewayBuilder struct {
	sc       *sidecarScope
	key      *gatewayKey
	merged   *mesh.MergedGateways
	prev     map[string]*Listener
	tcp      *outboundListenerBuilder // for the routes of TCP
	warnings []Warning
	leftOut  []Finding
	origins  []*mesh.Origin               // of the chains that are built
	servers  []*mesh.GatewayServer        // the one of each of these chains
	snis     map[uint32]map[string]string // the bind of who has a server name, by port
}

func newGatewayBuilder(sc *sidecarScope, key *gatewayKey, prev map[string]*Listener) *gatewayBuilder {
	merged := mesh.MergeGateways(sc.gateways, key.targets.all())
	return &gatewayBuilder{
		sc: sc, key: key, prev: prev, merged: merged, warnings: rejected(merged.Rejected), leftOut: leftOut(merged.Rejected),
		tcp: &outboundListenerBuilder{sc: sc}, snis: map[uint32]map[string]string{},
	}
}

// listeners returns the listeners, and the names of the route configurations that they request.
func (b *gatewayBuilder) listeners() ([]Part, []string) {
	pending, owners := map[string]*pendingListener{}, map[string]nameOwners{}
	var order, names []string
	for _, at := range b.merged.Ports {
		first := b.merged.Servers[at][0]
		if at.Number < b.key.firstPort && !isUnix(at.Bind) {
			b.warn(first, fmt.Sprintf("no listener: Envoy on this host may listen at ports from %d on", b.key.firstPort))
			b.isFound()
			for _, s := range b.merged.Servers[at] {
				b.leftOut = append(b.leftOut, leftOutServer(s, fmt.Sprintf("Envoy on these hosts may listen at ports from %d on", b.key.firstPort)))
			}
			continue
		}
		b.origins = nil
		chains := b.chains(at)
		key := listenerKey{Bind: cmp.Or(at.Bind, b.wildcard()), Port: at.Number}
		open := func(name string) *pendingListener {
			if pending[name] == nil {
				pending[name] = &pendingListener{key: key, bindToPort: true}
				order = append(order, name)
			}
			return pending[name]
		}
		name := listenerName(key.Bind, key.Port)
		en := open(name)
		if owners[name] == nil {
			owners[name] = nameOwners{}
		}
		for i, c := range chains {
			tellApart(en.chains, c)
			added := en.addChain(c)
			var got *FilterChain
			if added {
				got = en.chains[len(en.chains)-1]
			}
			if f, lost := owners[name].add(b.servers[i], c, got); lost {
				b.leftOut = append(b.leftOut, f)
				b.warn(b.servers[i], fmt.Sprintf("some of its connections go elsewhere: %s (%s)", f.Reason, f.Other))
				b.isFound()
			} else if !added {
				b.warn(b.servers[i], "some of its connections go where an earlier server has the same names")
			}
			if added && c.HTTP != nil {
				names = append(names, c.HTTP.RouteName)
				if b.servesHTTP3(c.HTTP.RouteName) {
					quic := open(quicPrefix + name)
					quic.addChain(http3Chain(en.chains[len(en.chains)-1])) // without the names that others have
					quic.origins = append(quic.origins, b.origins...)
				}
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

// tellApart tells plaintext from TLS by how connections begin, where a server with each is for every name.
// Envoy rejects what Istio sends there: two chains without a condition.
func tellApart(have []*FilterChain, c *FilterChain) {
	for _, h := range have {
		if !h.Match.matchesAll() || !c.Match.matchesAll() || h.endsTLS() == c.endsTLS() {
			continue
		}
		for _, x := range []*FilterChain{h, c} {
			if x.Match.Transport = transportRawBuffer; x.endsTLS() {
				x.Match.Transport = transportTLS
			}
		}
	}
}

// endsTLS reports whether connections to the chain begin with TLS, which ends there.
func (c *FilterChain) endsTLS() bool { return c.TLS != nil || c.Gateway != nil }

func (b *gatewayBuilder) wildcard() string {
	if b.key.ipv6 {
		return wildcardIPv6
	}
	return wildcard
}

func (b *gatewayBuilder) listener(name string, en *pendingListener) *Listener {
	l := &Listener{
		Name: name, Addresses: []string{en.key.Bind}, Port: en.key.Port, BindToPort: true, Gateway: true,
		Chains: en.chains, Telemetry: b.sc.telemetry.Outbound, QUIC: strings.HasPrefix(name, quicPrefix),
	}
	l.ProxyProtocol = !l.QUIC && b.topology().GetProxyProtocol() != nil
	l.InspectTLS = !l.QUIC && slices.ContainsFunc(l.Chains, func(c *FilterChain) bool {
		return len(c.Match.ServerNames) > 0 || c.endsTLS()
	})
	if have := b.prev[name]; have != nil && l.sameAs(have) {
		return have
	}
	l.origins = originsOf(en.origins...)
	return b.sc.listeners.intern(l)
}

func (b *gatewayBuilder) topology() *meshconfig.Topology {
	if own := b.key.topology; own != nil { // as in Istio, it replaces the other one whole
		return own.Settings
	}
	return b.sc.config.GetDefaultConfig().GetGatewayTopology()
}

func (b *gatewayBuilder) warn(s *mesh.GatewayServer, text string) {
	b.warnings = append(b.warnings, Warning{
		Key: s.Gateway.Key, Origin: s.Gateway.Origin,
		Message: fmt.Sprintf("port %d: %s", s.ListensAt, text),
	})
}

// isFound notes that the last warning is a finding, too.
func (b *gatewayBuilder) isFound() { b.warnings[len(b.warnings)-1].found = true }

// chains are the filter chains of a port.
func (b *gatewayBuilder) chains(at mesh.GatewayPort) []*FilterChain {
	servers := b.merged.Servers[at]
	for _, s := range servers {
		b.origins = append(b.origins, s.Gateway.Origin)
	}
	b.servers = nil
	if mesh.ParseProtocol(at.Protocol).IsHTTP() {
		b.servers = servers[:1]
		return []*FilterChain{b.httpChain(servers[0], at, b.merged.Routes[at])}
	}
	var out []*FilterChain
	for _, s := range servers {
		for _, c := range b.chainsOf(s, at) {
			out, b.servers = append(out, c), append(b.servers, s)
		}
	}
	return out
}

// chainsOf are the filter chains of a server that is not of HTTP in plaintext.
func (b *gatewayBuilder) chainsOf(s *mesh.GatewayServer, at mesh.GatewayPort) []*FilterChain {
	switch {
	case s.EndsHTTPS() && s.GetTls() != nil:
		c := b.httpChain(s, at, s.Routes)
		c.Match.ServerNames = s.SNIHosts()
		b.endTLS(c, s, true)
		return []*FilterChain{c}
	case s.GetTls() == nil, !s.Passes():
		c := b.tcpChain(s)
		if c == nil {
			return nil
		}
		if s.GetTls() != nil {
			c.Match.ServerNames = s.SNIHosts()
			b.endTLS(c, s, false)
		}
		return []*FilterChain{c}
	case s.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return b.meshChains(s)
	default:
		return b.tlsChains(s, at)
	}
}

// gatewayStats begins the names of the statistics of a server without a name.
const gatewayStats = "outbound_"

func (b *gatewayBuilder) httpChain(s *mesh.GatewayServer, at mesh.GatewayPort, routes string) *FilterChain {
	bind := cmp.Or(at.Bind, b.wildcard())
	http := b.sc.httpChain(gatewayStats+listenerName(bind, at.Number), b.sc.headers.settings())
	if s.EndsHTTPS() && s.GetName() != "" {
		http.StatPrefix = s.GetName()
	}
	http.RouteName, http.GRPCWeb, http.Slots = routes, s.Protocol == mesh.GRPCWeb, b.key.policies.Slots
	topology := b.topology()
	http.Gateway = &GatewayHTTP{TrustedProxies: topology.GetNumTrustedProxies(), ForwardClientCert: topology.GetForwardClientCertDetails()}
	return &FilterChain{HTTP: http, Rules: b.key.policies.Rules}
}

// endTLS has a chain end TLS with the settings of its server. With ISTIO_MUTUAL that is mTLS of the mesh.
func (b *gatewayBuilder) endTLS(c *FilterChain, s *mesh.GatewayServer, http bool) {
	if s.GetTls().GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		c.TLS = b.sc.serverTLS(http)
		c.TLS.Names = s.GetTls().GetSubjectAltNames()
		return
	}
	c.Gateway = &GatewayTLS{Settings: s.GetTls(), Defaults: b.sc.config.GetTlsDefaults(), FileSecrets: b.sc.upstream.fileSecrets, FileLists: b.sc.upstream.fileLists}
}

// tcpChain is the chain of a server of TCP: the first routes for TCP of a VirtualService that it has; or
// nil.
func (b *gatewayBuilder) tcpChain(s *mesh.GatewayServer) *FilterChain {
	for _, vs := range b.sc.boundTo(s.GatewayName()) {
		if !overlaps(s, vs) {
			continue
		}
		for _, r := range vs.Spec.GetTcp() {
			if len(r.GetRoute()) == 0 || len(r.GetMatch()) > 0 && !slices.ContainsFunc(r.GetMatch(), func(m *networking.L4MatchAttributes) bool { return matchesServer(s, m) }) {
				continue
			}
			return b.passOn(s, vs, r.GetRoute())
		}
	}
	return nil
}

// overlaps reports whether the server has a host of a VirtualService.
func overlaps(s *mesh.GatewayServer, vs *virtualService) bool {
	return slices.ContainsFunc(s.HostsFor(vs.Namespace), func(h mesh.Hostname) bool {
		return slices.ContainsFunc(vs.hosts, h.Overlaps)
	})
}

// matchesServer reports whether a match is for the server. As in Istio, nothing but its port and Gateway counts.
func matchesServer(s *mesh.GatewayServer, m l4Match) bool {
	return (m.GetPort() == 0 || m.GetPort() == s.GetPort().GetNumber()) &&
		(len(m.GetGateways()) == 0 || slices.Contains(m.GetGateways(), s.GatewayName()))
}

// passOn forwards connections as a VirtualService says.
func (b *gatewayBuilder) passOn(s *mesh.GatewayServer, vs *virtualService, routes []*networking.RouteDestination) *FilterChain {
	b.tcp.routedBy = nil
	tcp := b.tcp.tcpRoutes(servicePort{port: mesh.Port{Number: s.GetPort().GetNumber()}}, vs, routes)
	b.origins = append(b.origins, b.tcp.routedBy...)
	return &FilterChain{TCP: tcp, Deny: b.key.policies.Deny, Authorization: b.key.policies.Authorization}
}

// tlsChains are the chains of a server through which TLS passes: one for each match of a VirtualService.
// An earlier match of a name at that port has it, from any server.
func (b *gatewayBuilder) tlsChains(s *mesh.GatewayServer, at mesh.GatewayPort) []*FilterChain {
	taken := b.snis[at.Number]
	if taken == nil {
		taken = map[string]string{}
		b.snis[at.Number] = taken
	}
	has := func(name string) bool {
		bind, ok := taken[name]
		return ok && bind == at.Bind
	}
	var out []*FilterChain
	for _, vs := range b.sc.boundTo(s.GatewayName()) {
		if !overlaps(s, vs) {
			continue
		}
		for _, r := range vs.Spec.GetTls() {
			for _, m := range r.GetMatch() {
				if len(r.GetRoute()) == 0 || !matchesServer(s, m) {
					continue
				}
				names := lowerAll(m.GetSniHosts())
				if i := slices.IndexFunc(names, has); i >= 0 {
					b.warn(s, fmt.Sprintf("a route of %s is left out: an earlier one has the server name %q", vs.Key, names[i]))
					continue
				}
				for _, name := range names {
					taken[name] = at.Bind
				}
				c := b.passOn(s, vs, r.GetRoute())
				c.Match.ServerNames = names
				out = append(out, c)
			}
		}
	}
	return out
}

// meshChains are the chains of a server with AUTO_PASSTHROUGH: mTLS of the mesh passes to the cluster that
// its server name says. Only what offers the ALPN protocols of the mesh does.
func (b *gatewayBuilder) meshChains(s *mesh.GatewayServer) []*FilterChain {
	hosts := s.SNIHosts()
	var out []*FilterChain
	for _, svc := range b.sc.services {
		if !mayPass(svc.Service) || !slices.ContainsFunc(hosts, func(h string) bool { return mesh.Hostname(h).Covers(svc.Hostname) }) {
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
				c.TCP.Tunnel, c.TCP.TunnelPost = "", false // what passes is mTLS already, as in Istio
				b.origins = append(append(b.origins, svc.Origin), b.tcp.routedBy...)
				c.Match.ServerNames, c.Match.ALPN = []string{statPrefix(to)}, istioALPN()
				out = append(out, c)
			}
		}
	}
	return out
}
