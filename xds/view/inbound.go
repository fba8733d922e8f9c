package view

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// istioALPN is what clients of the mesh offer, by any release of Istio and by
// this one.
func istioALPN() []string {
	return []string{"istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"}
}

// inboundPort is a port at which the proxy takes requests for its application.
type inboundPort struct {
	Number   uint32
	Protocol mesh.Protocol
	Bind     string
	// Bound ports have a listener of their own; others are chains of
	// virtualInbound.
	Bound bool
	// Endpoint is where the application is; empty means at the original
	// destination.
	Endpoint     string
	EndpointPort uint32
	Operation    string
	// Pool limits connections to the application; or nil.
	Pool *networking.ConnectionPoolSettings

	origins []*mesh.Origin
}

// inbound is what the proxy does for its application: the input of its own layer.
type inbound struct {
	Interception Interception
	// Mode is what is demanded of peers, at some ports another one.
	Mode  mesh.MTLSMode
	Modes map[uint32]mesh.MTLSMode
	// Deny refuses all, for a policy that cannot be enforced.
	Deny  bool
	Ports []inboundPort

	origins []*mesh.Origin
}

// modeAt is what is demanded of peers at a port.
func (in *inbound) modeAt(port uint32) mesh.MTLSMode {
	if m, ok := in.Modes[port]; ok {
		return m
	}
	return in.Mode
}

// inboundReader finds out what a proxy does for its application.
type inboundReader struct {
	*inbound
	st *site
	// serves are the addresses that outbound listeners must leave free.
	serves []listenerKey
}

func newInbound(st *site) *inboundReader {
	policy := st.authn.in(st.namespace()).forWorkload(st.proxy.Labels)
	in := &inboundReader{st: st, inbound: &inbound{
		Interception: st.proxy.Interception, Mode: policy.mode, Modes: policy.ports, origins: policy.origins,
	}}
	for _, u := range st.s.Unenforced {
		if (u.Namespace == st.namespace() || u.Namespace == st.s.RootNamespace()) &&
			mesh.Selects(u.Selector, st.proxy.Labels) && !st.proxy.AcceptUnenforced {
			in.Deny = true
			in.origins = append(slices.Clone(in.origins), u.Origin)
		}
	}
	targets := in.targets()
	none := st.proxy.Interception == InterceptNone
	switch {
	case st.sidecar != nil && len(st.sidecar.Spec.GetIngress()) > 0:
		in.fromSidecar(targets)
	case !none:
		in.Ports = targets
	}
	in.reserve(targets)
	return in
}

// reserve notes where the application, or an inbound listener, is.
func (in *inboundReader) reserve(targets []inboundPort) {
	for _, p := range in.Ports {
		if p.Bound {
			in.serves = append(in.serves, listenerKey{Bind: p.Bind, Port: p.Number})
		}
		if p.Endpoint != "" {
			in.serves = append(in.serves, listenerKey{Bind: p.Endpoint, Port: p.EndpointPort})
		}
	}
	for _, t := range targets {
		for _, a := range in.st.proxy.Addresses {
			in.serves = append(in.serves, listenerKey{Bind: a, Port: t.Number})
		}
		if len(in.Ports) == 0 { // the application itself serves there, at any address
			in.serves = append(in.serves, listenerKey{Bind: localhost, Port: t.Number})
		}
	}
}

// isOwn reports whether a workload at the proxy's address may be the proxy's. A
// catalog's instance is only by its identity: whoever may register some service
// can give it any host's address, and would have a say in what that host serves.
func (in *inboundReader) isOwn(w *mesh.Workload) bool {
	_, instance := w.Labels[mesh.LabelConsulService]
	return !instance || w.ServiceAccount == in.st.proxy.ServiceAccount.Name
}

// targets are the ports at which services expect this workload.
func (in *inboundReader) targets() []inboundPort {
	st := in.st
	type found struct {
		svc *mesh.Service
		w   *mesh.Workload
	}
	var list []found
	for _, a := range st.proxy.Addresses {
		for _, w := range st.s.WorkloadsAt(a) {
			if w.Namespace == st.namespace() && in.isOwn(w) {
				for _, svc := range st.s.ServicesOf(w) {
					list = append(list, found{svc, w})
				}
			}
		}
		for _, svc := range st.inline.at(a) {
			if svc.Namespace != st.namespace() {
				continue
			}
			for _, w := range svc.Inline {
				if w.Address == a {
					list = append(list, found{svc, w})
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b found) int {
		return cmp.Or(a.svc.Created.Compare(b.svc.Created), cmp.Compare(a.svc.Hostname, b.svc.Hostname))
	})
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
				Number: n, Protocol: p.Protocol, Bind: wildcard,
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
func (in *inboundReader) fromSidecar(targets []inboundPort) {
	s := in.st.sidecar
	seen := map[uint32]bool{}
	none := in.st.proxy.Interception == InterceptNone
	for _, l := range s.Spec.GetIngress() {
		p := inboundPort{
			Number:    l.GetPort().GetNumber(),
			Protocol:  parseProtocol(l.GetPort().GetProtocol()),
			Bind:      cmp.Or(l.GetBind(), wildcard),
			Bound:     none || l.GetCaptureMode().String() == "NONE",
			Operation: s.Name + "." + s.Namespace + ":" + strconv.FormatUint(uint64(l.GetPort().GetNumber()), 10) + "/*",
			origins:   []*mesh.Origin{s.Origin},
		}
		if seen[p.Number] {
			continue
		}
		seen[p.Number] = true
		for _, t := range targets {
			if t.Number == p.Number {
				p.Pool = t.Pool
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

// endpoint reads defaultEndpoint: loopback, 0.0.0.0 for the workload's own
// address, or a socket.
func (in *inboundReader) endpoint(p *inboundPort, text string) bool {
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

func (in *inboundReader) own(want func(netip.Addr) bool, otherwise string) string {
	for _, a := range in.st.proxy.Addresses {
		if ip, err := netip.ParseAddr(a); err == nil && want(ip) {
			return a
		}
	}
	return otherwise
}

// inboundRule is the DestinationRule for a service that the proxy itself
// serves: those that select clients do not count.
func (st *site) inboundRule(svc *mesh.Service) *rule {
	return st.rules.lookup(st.namespace(), nil, svc.Hostname, svc.Namespace)
}

// build makes all of it.
func (in *inbound) build(e *epoch) *Layer {
	return e.layer(InboundLayer, append(in.clusters(e), in.listeners(e)...))
}

// clusters are the application's own ports.
func (in *inbound) clusters(e *epoch) []Part {
	parts := make([]Part, 0, len(in.Ports))
	for _, p := range in.Ports {
		c := &Cluster{
			Ref:          ClusterRef{Kind: InboundCluster, Port: p.Number},
			Discovery:    DiscoverOriginalDst,
			Protocol:     p.Protocol,
			Defaults:     e.defaults,
			BindLoopback: in.Interception != InterceptNone && p.Endpoint != localhost && p.Endpoint != "::1" && !isUnix(p.Endpoint),
		}
		if p.Pool != nil {
			c.Policy = &networking.TrafficPolicy{ConnectionPool: p.Pool}
		}
		if p.Endpoint != "" {
			c.Discovery = DiscoverStatic
			c.Localities = []Locality{{Endpoints: []Endpoint{{Address: p.Endpoint, Port: p.EndpointPort, Weight: 1}}}}
		}
		c.origins = originsOf(p.origins...)
		parts = append(parts, e.clusters.of(c))
	}
	return parts
}

// listeners are those that take requests for the application.
func (in *inbound) listeners(e *epoch) []Part {
	var parts []Part
	var captured []*Chain
	var origins []*mesh.Origin
	for _, p := range in.Ports {
		chains := in.chains(e, p)
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
			Inbound: true, BindToPort: true, Chains: chains,
		}
		in.inspect(e, l)
		l.origins = originsOf(append(slices.Clone(in.origins), p.origins...)...)
		parts = append(parts, e.listeners.of(l))
	}
	if in.Interception != InterceptNone {
		parts = append(parts, in.virtualInbound(e, captured, origins))
	}
	return parts
}

// defaultInspectTimeout is how long a client may keep an inbound listener waiting
// for its first bytes where the mesh does not say: Istio's default is for ever.
const defaultInspectTimeout = 15 * time.Second

func (in *inbound) inspect(e *epoch, l *Listener) {
	l.InspectTimeout = e.config.GetProtocolDetectionTimeout().AsDuration()
	l.InspectTLS = slices.ContainsFunc(l.Chains, func(c *Chain) bool { return c.Match.Transport == transTLS })
	if l.InspectTLS && l.InspectTimeout == 0 {
		l.InspectTimeout = defaultInspectTimeout
	}
}

// virtualInbound receives what capture redirects: a chain for each port, and
// those for ports that no service names.
func (in *inbound) virtualInbound(e *epoch, captured []*Chain, origins []*mesh.Origin) *Listener {
	black := ClusterRef{Kind: BlackHoleCluster}
	l := &Listener{
		Name: "virtualInbound", Addresses: []string{wildcard}, Port: e.inPort(),
		Inbound: true, BindToPort: true, OriginalDst: true,
		Transparent: in.Interception == InterceptTPROXY,
		OriginalSrc: in.Interception == InterceptTPROXY,
		Chains: []*Chain{{
			Name:  "virtualInbound-blackhole",
			Match: ChainMatch{DestinationPort: e.inPort()},
			TCP:   &TCPChain{StatPrefix: statPrefix(black), Destinations: []WeightedCluster{{Cluster: black}}},
		}},
	}
	named := map[uint32]bool{}
	for _, p := range in.Ports {
		named[p.Number] = true
	}
	// A port that only a policy names has its own mode all the same.
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
		l.Chains = append(l.Chains, in.modeChains(e, mode, false, func() *Chain {
			to := ClusterRef{Kind: InboundPassthroughCluster}
			return &Chain{
				Name: "virtualInbound", Match: ChainMatch{DestinationPort: port}, Deny: in.Deny,
				TCP: &TCPChain{StatPrefix: statPrefix(to), Destinations: []WeightedCluster{{Cluster: to}}},
			}
		})...)
	}
	l.Chains = append(l.Chains, captured...)
	in.inspect(e, l)
	l.origins = originsOf(append(slices.Clone(in.origins), origins...)...)
	return e.listeners.of(l)
}

func (in *inbound) chains(e *epoch, p inboundPort) []*Chain {
	http := p.Protocol.IsHTTP()
	return in.modeChains(e, in.modeAt(p.Number), http, func() *Chain {
		to := ClusterRef{Kind: InboundCluster, Port: p.Number}
		c := &Chain{Name: listenerName(p.Bind, p.Number), Match: ChainMatch{DestinationPort: p.Number}, Deny: in.Deny}
		if !http {
			c.TCP = &TCPChain{StatPrefix: statPrefix(to), Destinations: []WeightedCluster{{Cluster: to}}}
			return c
		}
		c.HTTP = e.httpChain("inbound_" + c.Name)
		c.HTTP.GRPCWeb = p.Protocol == mesh.GRPCWeb
		c.HTTP.Inbound = &InboundRoute{
			Cluster: to, Operation: p.Operation, Retry: p.Protocol != mesh.GRPC && p.Protocol != mesh.GRPCWeb,
		}
		return c
	})
}

// modeChains arranges chains as a mode demands. STRICT has mTLS and nothing
// else. PERMISSIVE tells mTLS of the mesh by the protocols that are offered;
// an application's own TLS is passed on as it is.
func (in *inbound) modeChains(e *epoch, mode mesh.MTLSMode, http bool, build func() *Chain) []*Chain {
	mtls := build()
	mtls.Match.Transport = transTLS
	mtls.TLS = &ServerTLS{HTTP: http, TrustDomains: e.trustDomains, MaxAge: e.settings.serverAge(http)}
	plain := build()
	switch mode {
	case mesh.Strict:
		return []*Chain{mtls}
	case mesh.Permissive:
		mtls.Match.ALPN = istioALPN()
		plain.Match.Transport = transRaw
		if http {
			return []*Chain{mtls, plain}
		}
		other := build()
		other.Match.Transport = transTLS
		return []*Chain{mtls, other, plain}
	case mesh.Disable:
		return []*Chain{plain}
	default:
		return []*Chain{mtls}
	}
}
