package view

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// istioALPN is what clients in the mesh offer, in any release of Istio and in this one.
func istioALPN() []string { return append(istioTCP(), istioHTTP()...) }

// istioHTTP is what they offer for what they know to be HTTP, and istioTCP for the rest.
func istioHTTP() []string { return []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"} }
func istioTCP() []string  { return []string{"istio", "istio-peer-exchange"} }

// inboundPort is a port at which the proxy accepts requests for its application.
type inboundPort struct {
	Number   uint32
	Protocol mesh.Protocol
	Bind     string
	// Bound ports have a listener of their own; others are filter chains of virtualInbound.
	Bound bool
	// Endpoint is the address of the application; empty means the original destination.
	Endpoint     string
	EndpointPort uint32
	Operation    string
	// TLS is TLS that the port ends, with certificates of its own; or nil.
	TLS *GatewayTLS
	// Pool limits connections to the application; or nil.
	Pool *networking.ConnectionPoolSettings
	// Service and Namespace are those of the first service there; empty if there is none.
	Service   mesh.Hostname
	Namespace string

	origins []*mesh.Origin
}

// inboundInput is what the proxy does for its application: the input of its inbound layer.
type inboundInput struct {
	// Gateway means that it is a gateway, of which there are the extensions only.
	Gateway      bool
	Interception Interception
	// IPv6 means that connections over IPv6 are captured, too.
	IPv6 bool
	// Mode is the mTLS mode; Modes are those of ports that differ.
	Mode  mesh.MTLSMode
	Modes map[uint32]mesh.MTLSMode
	// Deny refuses all requests, because a policy applies that cannot be enforced.
	Deny bool
	// Authorization is nil if no AuthorizationPolicy applies.
	Authorization *Authorization
	// Authentication is nil if no RequestAuthentication applies.
	Authentication *Authentication
	// Telemetry is nil if the proxy reports nothing of these requests.
	Telemetry *Telemetry
	// Headers are settings of the headers that the proxy writes; or nil.
	Headers *meshconfig.ProxyConfig_ProxyHeaders
	Ports   []inboundPort

	// origins are those of all, denyOrigins those of what denies.
	origins, denyOrigins []*mesh.Origin
}

// modeAt is the mTLS mode of a port.
func (in *inboundInput) modeAt(port uint32) mesh.MTLSMode {
	if m, ok := in.Modes[port]; ok {
		return m
	}
	return in.Mode
}

// inboundBuilder collects the inboundInput of a proxy.
type inboundBuilder struct {
	*inboundInput
	st *proxyContext
	// reserved are the addresses that outbound listeners must not use.
	reserved []listenerKey
	// served are the ports of services at which the application itself is called on its host.
	served    []servedPort
	providers []Part // clusters and endpoints of extension providers
}

func newInboundBuilder(pc *proxyContext) *inboundBuilder {
	if pc.proxy.Type == Router {
		return newGatewayInbound(pc)
	}
	policy := pc.authn.in(pc.namespace()).forWorkload(pc.proxy.Labels)
	in := &inboundBuilder{st: pc, inboundInput: &inboundInput{
		Interception: pc.proxy.Interception, IPv6: pc.captureIPv6, Mode: policy.mode, Modes: policy.ports,
		Headers: pc.headers.settings(), origins: policy.origins,
	}}
	in.addPolicies()
	in.Telemetry, in.providers = pc.telemetry.Inbound, slices.Concat(in.providers, pc.telemetry.collectors)
	in.addOrigins(pc.telemetry.origins...)
	targets := in.serviceTargets()
	none := pc.proxy.Interception == InterceptNone
	switch {
	case pc.sidecar != nil && len(pc.sidecar.Spec.GetIngress()) > 0:
		in.fromSidecar(targets)
	case !none:
		in.Ports = targets
	}
	in.reserve(targets)
	return in
}

// newGatewayInbound is for a gateway, whose requests the same policies are about.
func newGatewayInbound(pc *proxyContext) *inboundBuilder {
	in := &inboundBuilder{st: pc, inboundInput: &inboundInput{Gateway: true}}
	in.addPolicies()
	in.providers = slices.Concat(in.providers, pc.telemetry.collectors)
	return in
}

// addOrigins leaves the list as it was to whoever else has it.
func (in *inboundInput) addOrigins(list ...*mesh.Origin) {
	if len(list) > 0 {
		in.origins = slices.Concat(in.origins, list)
	}
}

// reserve notes the addresses of the application and of inbound listeners.
func (in *inboundBuilder) reserve(targets []inboundPort) {
	for _, p := range in.Ports {
		if p.Bound {
			in.reserved = append(in.reserved, listenerKey{Bind: p.Bind, Port: p.Number})
		}
		if p.Endpoint != "" {
			in.reserved = append(in.reserved, listenerKey{Bind: p.Endpoint, Port: p.EndpointPort})
		}
	}
	for _, t := range targets {
		for _, a := range in.st.proxy.Addresses {
			in.reserved = append(in.reserved, listenerKey{Bind: a, Port: t.Number})
		}
		if len(in.Ports) == 0 { // the application itself listens there, at any address
			in.reserved = append(in.reserved, listenerKey{Bind: localhost, Port: t.Number})
		}
	}
	if len(in.Ports) > 0 || len(targets) == 0 {
		return
	}
	for _, own := range in.st.ownServices() {
		for _, p := range own.svc.Ports {
			if own.w.PortFor(p) == p.Number {
				in.served = append(in.served, servedPort{own.svc.Key, p.Number})
			}
		}
	}
}

// isOwn reports whether a workload at the proxy's address may be the proxy's. A catalog's
// instance must have the proxy's service account: whoever can register a service can give
// it the address of any host, and could otherwise decide what that host serves.
func (pc *proxyContext) isOwn(w *mesh.Workload) bool {
	_, instance := w.Labels[mesh.LabelConsulService]
	return !instance || w.ServiceAccount == pc.proxy.ServiceAccount.Name
}

// ownService is a service that a workload of the proxy is an endpoint of.
type ownService struct {
	svc *mesh.Service
	w   *mesh.Workload
}

// ownServices are those of the proxy's workloads, in order of precedence.
func (pc *proxyContext) ownServices() []ownService {
	var list []ownService
	for _, a := range pc.proxy.Addresses {
		for _, w := range pc.s.WorkloadsAt(a) {
			if w.Namespace == pc.namespace() && pc.isOwn(w) {
				for _, svc := range pc.s.ServicesOf(w) {
					list = append(list, ownService{svc, w})
				}
			}
		}
		for _, svc := range pc.inline.at(a) {
			if svc.Namespace != pc.namespace() {
				continue
			}
			for _, w := range svc.Inline {
				if w.Address == a {
					list = append(list, ownService{svc, w})
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b ownService) int {
		return cmp.Or(a.svc.Created.Compare(b.svc.Created), cmp.Compare(a.svc.Hostname, b.svc.Hostname))
	})
	return list
}

// serviceTargets are the ports at which services expect this workload (Istio's
// ServiceTargets).
func (in *inboundBuilder) serviceTargets() []inboundPort {
	list := in.st.ownServices()
	seen := map[uint32]bool{}
	var out []inboundPort
	for _, f := range list {
		for _, p := range f.svc.Ports {
			n := f.w.PortFor(p)
			if seen[n] || p.Protocol == mesh.UDP {
				continue
			}
			seen[n] = true
			port := inboundPort{
				Number: n, Protocol: p.Protocol, Bind: wildcard, Service: f.svc.Hostname, Namespace: f.svc.Namespace,
				Operation: string(f.svc.Hostname) + ":" + strconv.FormatUint(uint64(p.Number), 10) + "/*",
				origins:   []*mesh.Origin{f.svc.Origin, f.w.Origin},
			}
			if r := in.st.inboundRule(f.svc); r != nil {
				port.Pool = r.policyFor(p.Number, nil).GetConnectionPool()
				port.origins = append(port.origins, r.origins...)
			}
			out = append(out, port)
		}
	}
	slices.SortFunc(out, func(a, b inboundPort) int { return cmp.Compare(a.Number, b.Number) })
	return out
}

// fromSidecar reads the ingress listeners of the Sidecar.
func (in *inboundBuilder) fromSidecar(targets []inboundPort) {
	s := in.st.sidecar
	seen := map[uint32]bool{}
	none := in.st.proxy.Interception == InterceptNone
	for _, l := range s.Spec.GetIngress() {
		p := inboundPort{
			Number:    l.GetPort().GetNumber(),
			Protocol:  mesh.ParseProtocol(l.GetPort().GetProtocol()),
			Bound:     none || l.GetCaptureMode().String() == "NONE",
			Operation: s.Name + "." + s.Namespace + ":" + strconv.FormatUint(uint64(l.GetPort().GetNumber()), 10) + "/*",
			origins:   []*mesh.Origin{s.Origin},
		}
		in.endTLS(&p, l.GetTls())
		p.Bind = cmp.Or(l.GetBind(), in.defaultBind(p.Bound))
		if seen[p.Number] {
			continue
		}
		seen[p.Number] = true
		for _, t := range targets {
			if t.Number == p.Number {
				p.Pool, p.Service, p.Namespace = t.Pool, t.Service, t.Namespace
			}
		}
		p.Pool = cmp.Or(l.GetConnectionPool(), s.Spec.GetInboundConnectionPool(), p.Pool)
		if !in.endpoint(&p, l.GetDefaultEndpoint()) {
			continue
		}
		// Without capture there is no original destination to go to.
		if none && p.Endpoint == "" && p.Bind != wildcard && p.Bind != localhost && isIP(p.Bind) {
			p.Endpoint, p.EndpointPort = localhost, p.Number
		}
		in.Ports = append(in.Ports, p)
	}
	slices.SortFunc(in.Ports, func(a, b inboundPort) int { return cmp.Compare(a.Number, b.Number) })
}

// defaultBind is where an ingress listener without a bind listens (Istio's
// getSidecarInboundBindIPs): at the proxy's first address that other hosts can reach, so that
// the same port of the loopback address is left to the application and to egress listeners;
// else, for example on a loopback host, at all addresses.
func (in *inboundBuilder) defaultBind(bound bool) string {
	if !bound {
		return wildcard
	}
	return in.own(netip.Addr.IsGlobalUnicast, wildcard)
}

// endpoint reads defaultEndpoint: loopback, 0.0.0.0 for the workload's own address, or a
// Unix socket.
func (in *inboundBuilder) endpoint(p *inboundPort, text string) bool {
	if text == "" {
		return true
	}
	if isUnix(text) {
		p.Endpoint = text
		return true
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return false
	}
	p.EndpointPort = uint32(n)
	switch host {
	case wildcard:
		p.Endpoint = in.own(func(a netip.Addr) bool { return a.Is4() }, localhost)
	case "::":
		p.Endpoint = in.own(func(a netip.Addr) bool { return a.Is6() }, "::1")
	default:
		p.Endpoint = host
	}
	return true
}

func (in *inboundBuilder) own(want func(netip.Addr) bool, otherwise string) string {
	for _, a := range in.st.proxy.Addresses {
		if ip, err := netip.ParseAddr(a); err == nil && want(ip) {
			return a
		}
	}
	return otherwise
}

// inboundRule is the DestinationRule for a service that the proxy itself serves. Rules that
// select clients do not apply.
func (pc *proxyContext) inboundRule(svc *mesh.Service) *rule {
	return pc.rules.lookup(pc.namespace(), nil, svc.Hostname, svc.Namespace)
}

// build makes the inbound layer.
func (in *inboundInput) build(mc *meshContext) *Layer {
	if in.Gateway {
		return mc.layer(InboundLayer, in.extensions(mc))
	}
	listeners := in.listeners(mc)
	return mc.layer(InboundLayer, slices.Concat(in.clusters(mc), in.extensionsFor(mc, listeners), listeners))
}

// clusters are for the application's own ports.
func (in *inboundInput) clusters(mc *meshContext) []Part {
	parts := make([]Part, 0, len(in.Ports))
	for _, p := range in.Ports {
		c := &Cluster{
			Ref:            ClusterRef{Kind: InboundCluster, Port: p.Number},
			Discovery:      DiscoverOriginalDst,
			Protocol:       p.Protocol,
			Defaults:       mc.defaults,
			KeepHeaderCase: in.Headers.GetPreserveHttp1HeaderCase().GetValue(),
			Service:        mc.reportedService(p.Service, p.Namespace),
			BindLoopback:   in.Interception != InterceptNone && p.Endpoint != localhost && p.Endpoint != "::1" && !isUnix(p.Endpoint),
		}
		c.BindLoopbackIPv6 = c.BindLoopback && in.IPv6
		if p.Pool != nil {
			c.Policy = &networking.TrafficPolicy{ConnectionPool: p.Pool}
		}
		if p.Endpoint != "" {
			c.Discovery = DiscoverStatic
			c.Localities = []LocalityEndpoints{{Endpoints: []Endpoint{{Address: p.Endpoint, Port: p.EndpointPort, Weight: 1}}}}
		}
		c.origins = originsOf(p.origins...)
		parts = append(parts, mc.clusters.intern(c))
	}
	return parts
}

// listeners accept requests for the application.
func (in *inboundInput) listeners(mc *meshContext) []Part {
	var parts []Part
	var captured []*FilterChain
	var origins []*mesh.Origin
	for _, p := range in.Ports {
		chains := in.chains(mc, p)
		if !p.Bound {
			captured = append(captured, chains...)
			origins = append(origins, p.origins...)
			continue
		}
		for _, c := range chains {
			c.Match.DestinationPort = 0
		}
		l := &Listener{
			Name: listenerName(p.Bind, p.Number), Addresses: []string{p.Bind}, Port: p.Number,
			Inbound: true, BindToPort: true, Chains: chains, Telemetry: in.Telemetry,
		}
		in.inspect(mc, l)
		l.origins = originsOf(append(slices.Clone(in.origins), p.origins...)...)
		parts = append(parts, mc.listeners.intern(l))
	}
	if in.Interception != InterceptNone {
		parts = append(parts, in.virtualInbound(mc, captured, origins))
	}
	return parts
}

// defaultInspectTimeout is how long a client may keep an inbound listener waiting for its
// first bytes, if MeshConfig has no protocolDetectionTimeout. In Istio there is no limit. With
// capture it is less where the client may wait for the server, see
// [Settings.CaptureDetectionTimeout].
const defaultInspectTimeout = 15 * time.Second

func (in *inboundInput) inspect(mc *meshContext, l *Listener) {
	l.InspectTimeout = mc.config.GetProtocolDetectionTimeout().AsDuration()
	l.InspectTLS = slices.ContainsFunc(l.Chains, func(c *FilterChain) bool { return c.Match.Transport == transportTLS })
	l.InspectHTTP = slices.ContainsFunc(l.Chains, func(c *FilterChain) bool { return c.Match.PlaintextHTTP() })
	if (l.InspectTLS || l.InspectHTTP) && l.InspectTimeout == 0 {
		l.InspectTimeout = defaultInspectTimeout
	}
}
