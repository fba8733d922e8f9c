package view

import (
	"cmp"
	"maps"
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
	number   uint32
	protocol mesh.Protocol
	bind     string
	// bound ports have a listener of their own; others are chains of
	// virtualInbound.
	bound bool
	// endpoint is where the application is; empty means at the original
	// destination.
	endpoint     string
	endpointPort uint32
	operation    string
	// pool limits connections to the application; or nil.
	pool    *networking.ConnectionPoolSettings
	origins []*mesh.Origin
}

// inbound is what the proxy does for its application.
type inbound struct {
	st      *site
	policy  peerPolicy
	deny    bool
	origins []*mesh.Origin
	ports   []inboundPort
	// serves are the addresses that outbound listeners must leave free.
	serves []listenerKey
}

func newInbound(st *site) *inbound {
	in := &inbound{st: st, policy: st.authn.in(st.namespace()).forWorkload(st.proxy.Labels)}
	in.origins = in.policy.origins
	for _, u := range st.s.Unenforced {
		if (u.Namespace == st.namespace() || u.Namespace == st.s.RootNamespace()) &&
			mesh.Selects(u.Selector, st.proxy.Labels) && !st.proxy.AcceptUnenforced {
			in.deny = true
			in.origins = append(slices.Clone(in.origins), u.Origin)
		}
	}
	targets := in.targets()
	none := st.proxy.Interception == InterceptNone
	switch {
	case st.sidecar != nil && len(st.sidecar.Spec.GetIngress()) > 0:
		in.fromSidecar(targets)
	case !none:
		in.ports = targets
	}
	in.reserve(targets)
	return in
}

// reserve notes where the application, or an inbound listener, is.
func (in *inbound) reserve(targets []inboundPort) {
	for _, p := range in.ports {
		if p.bound {
			in.serves = append(in.serves, listenerKey{bind: p.bind, port: p.number})
		}
		if p.endpoint != "" {
			in.serves = append(in.serves, listenerKey{bind: p.endpoint, port: p.endpointPort})
		}
	}
	for _, t := range targets {
		for _, a := range in.st.proxy.Addresses {
			in.serves = append(in.serves, listenerKey{bind: a, port: t.number})
		}
		if len(in.ports) == 0 { // the application itself serves there, at any address
			in.serves = append(in.serves, listenerKey{bind: localhost, port: t.number})
		}
	}
}

// isOwn reports whether a workload at the proxy's address may be the proxy's. A
// catalog's instance is only by its identity: whoever may register some service
// can give it any host's address, and would have a say in what that host serves.
func (in *inbound) isOwn(w *mesh.Workload) bool {
	_, instance := w.Labels[mesh.LabelConsulService]
	return !instance || w.ServiceAccount == in.st.proxy.ServiceAccount.Name
}

// targets are the ports at which services expect this workload.
func (in *inbound) targets() []inboundPort {
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
				number: n, protocol: p.Protocol, bind: wildcard,
				operation: string(f.svc.Hostname) + ":" + strconv.FormatUint(uint64(p.Number), 10) + "/*",
				origins:   []*mesh.Origin{f.svc.Origin, f.w.Origin},
			}
			if r := in.st.inboundRule(f.svc); r != nil {
				port.pool = r.policyFor(p.Number, nil).GetConnectionPool()
				port.origins = append(port.origins, r.origins...)
			}
			out = append(out, port)
		}
	}
	slices.SortFunc(out, func(a, b inboundPort) int { return cmp.Compare(a.number, b.number) })
	return out
}

// fromSidecar reads the ingress listeners of the Sidecar.
func (in *inbound) fromSidecar(targets []inboundPort) {
	s := in.st.sidecar
	seen := map[uint32]bool{}
	none := in.st.proxy.Interception == InterceptNone
	for _, l := range s.Spec.GetIngress() {
		p := inboundPort{
			number:    l.GetPort().GetNumber(),
			protocol:  parseProtocol(l.GetPort().GetProtocol()),
			bind:      cmp.Or(l.GetBind(), wildcard),
			bound:     none || l.GetCaptureMode().String() == "NONE",
			operation: s.Name + "." + s.Namespace + ":" + strconv.FormatUint(uint64(l.GetPort().GetNumber()), 10) + "/*",
			origins:   []*mesh.Origin{s.Origin},
		}
		if seen[p.number] {
			continue
		}
		seen[p.number] = true
		for _, t := range targets {
			if t.number == p.number {
				p.pool = t.pool
			}
		}
		p.pool = cmp.Or(l.GetConnectionPool(), s.Spec.GetInboundConnectionPool(), p.pool)
		if !in.endpoint(&p, l.GetDefaultEndpoint()) {
			continue
		}
		// Without capture there is no original destination to go to.
		if none && p.endpoint == "" && p.bind != wildcard && p.bind != localhost && isIP(p.bind) {
			p.endpoint, p.endpointPort = localhost, p.number
		}
		in.ports = append(in.ports, p)
	}
	slices.SortFunc(in.ports, func(a, b inboundPort) int { return cmp.Compare(a.number, b.number) })
}

// endpoint reads defaultEndpoint: loopback, 0.0.0.0 for the workload's own
// address, or a socket.
func (in *inbound) endpoint(p *inboundPort, text string) bool {
	if text == "" {
		return true
	}
	if isUnix(text) {
		p.endpoint = text
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
	p.endpointPort = uint32(n)
	switch host {
	case wildcard:
		p.endpoint = in.own(func(a netip.Addr) bool { return a.Is4() }, localhost)
	case "::":
		p.endpoint = in.own(func(a netip.Addr) bool { return a.Is6() }, "::1")
	default:
		p.endpoint = host
	}
	return true
}

func (in *inbound) own(want func(netip.Addr) bool, otherwise string) string {
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

// layer is all of it. Proxies for which it is the same share it.
func (in *inbound) layer() *Layer {
	key := in.key()
	if have := in.st.inbound.get(key); have != nil {
		return have
	}
	l := in.st.layer(InboundLayer, append(in.clusters(), in.listeners()...))
	l, _ = in.st.inbound.keep(key, l)
	return l
}

// key is everything that the layer depends on, as long as MeshConfig stays what
// it is.
func (in *inbound) key() string {
	e := encoder{b: make([]byte, 0, 64+96*len(in.ports))}
	e.text(string(in.st.proxy.Interception))
	e.flag(in.deny)
	e.number('m', uint64(in.policy.mode))
	for _, port := range slices.Sorted(maps.Keys(in.policy.ports)) {
		e.number('p', uint64(port))
		e.number('m', uint64(in.policy.ports[port]))
	}
	for _, p := range in.ports {
		e.number('n', uint64(p.number))
		e.text(string(p.protocol))
		e.text(p.bind)
		e.flag(p.bound)
		e.text(p.endpoint)
		e.number('e', uint64(p.endpointPort))
		e.text(p.operation)
		e.flag(p.pool != nil)
		if p.pool != nil {
			e.message(p.pool)
		}
	}
	return string(e.b)
}

// clusters are the application's own ports.
func (in *inbound) clusters() []Part {
	parts := make([]Part, 0, len(in.ports))
	for _, p := range in.ports {
		c := &Cluster{
			Ref:          ClusterRef{Kind: InboundCluster, Port: p.number},
			Discovery:    DiscoverOriginalDst,
			Protocol:     p.protocol,
			Defaults:     in.st.defaults,
			BindLoopback: in.st.proxy.Interception != InterceptNone && p.endpoint != localhost && p.endpoint != "::1" && !isUnix(p.endpoint),
		}
		if p.pool != nil {
			c.Policy = &networking.TrafficPolicy{ConnectionPool: p.pool}
		}
		if p.endpoint != "" {
			c.Discovery = DiscoverStatic
			c.Localities = []Locality{{Endpoints: []Endpoint{{Address: p.endpoint, Port: p.endpointPort, Weight: 1}}}}
		}
		c.origins = originsOf(p.origins...)
		parts = append(parts, in.st.cluster(c))
	}
	return parts
}

// listeners are those that take requests for the application.
func (in *inbound) listeners() []Part {
	var parts []Part
	var captured []*Chain
	var origins []*mesh.Origin
	for _, p := range in.ports {
		chains := in.chains(p)
		if !p.bound {
			captured = append(captured, chains...)
			origins = append(origins, p.origins...)
			continue
		}
		for _, c := range chains {
			c.Match.DestinationPort = 0
		}
		l := &Listener{
			Name: listenerName(p.bind, p.number), Addresses: []string{p.bind}, Port: p.number,
			Inbound: true, BindToPort: true, Chains: chains,
		}
		in.inspect(l)
		l.origins = originsOf(append(slices.Clone(in.origins), p.origins...)...)
		parts = append(parts, in.st.listener(l))
	}
	if in.st.proxy.Interception != InterceptNone {
		parts = append(parts, in.virtualInbound(captured, origins))
	}
	return parts
}

// defaultInspectTimeout is how long a client may keep an inbound listener waiting
// for its first bytes where the mesh does not say: Istio's default is for ever.
const defaultInspectTimeout = 15 * time.Second

func (in *inbound) inspect(l *Listener) {
	l.InspectTimeout = in.st.s.MeshConfig.Spec.GetProtocolDetectionTimeout().AsDuration()
	l.InspectTLS = slices.ContainsFunc(l.Chains, func(c *Chain) bool { return c.Match.Transport == transTLS })
	if l.InspectTLS && l.InspectTimeout == 0 {
		l.InspectTimeout = defaultInspectTimeout
	}
}

// virtualInbound receives what capture redirects: a chain for each port, and
// those for ports that no service names.
func (in *inbound) virtualInbound(captured []*Chain, origins []*mesh.Origin) *Listener {
	black := ClusterRef{Kind: BlackHoleCluster}
	l := &Listener{
		Name: "virtualInbound", Addresses: []string{wildcard}, Port: in.st.inPort(),
		Inbound: true, BindToPort: true, OriginalDst: true,
		Transparent: in.st.proxy.Interception == InterceptTPROXY,
		OriginalSrc: in.st.proxy.Interception == InterceptTPROXY,
		Chains: []*Chain{{
			Name:  "virtualInbound-blackhole",
			Match: ChainMatch{DestinationPort: in.st.inPort()},
			TCP:   &TCPChain{StatPrefix: statPrefix(black), Destinations: []WeightedCluster{{Cluster: black}}},
		}},
	}
	named := map[uint32]bool{}
	for _, p := range in.ports {
		named[p.number] = true
	}
	// A port that only a policy names has its own mode all the same.
	rest := []uint32{0}
	for port := range in.policy.ports {
		if !named[port] {
			rest = append(rest, port)
		}
	}
	slices.Sort(rest)
	for _, port := range rest {
		mode := in.policy.mode
		if port != 0 {
			mode = in.policy.forPort(port)
		}
		l.Chains = append(l.Chains, in.modeChains(mode, false, func() *Chain {
			to := ClusterRef{Kind: InboundPassthroughCluster}
			return &Chain{
				Name: "virtualInbound", Match: ChainMatch{DestinationPort: port}, Deny: in.deny,
				TCP: &TCPChain{StatPrefix: statPrefix(to), Destinations: []WeightedCluster{{Cluster: to}}},
			}
		})...)
	}
	l.Chains = append(l.Chains, captured...)
	in.inspect(l)
	l.origins = originsOf(append(slices.Clone(in.origins), origins...)...)
	return in.st.listener(l)
}

func (in *inbound) chains(p inboundPort) []*Chain {
	http := p.protocol.IsHTTP()
	return in.modeChains(in.policy.forPort(p.number), http, func() *Chain {
		to := ClusterRef{Kind: InboundCluster, Port: p.number}
		c := &Chain{Name: listenerName(p.bind, p.number), Match: ChainMatch{DestinationPort: p.number}, Deny: in.deny}
		if !http {
			c.TCP = &TCPChain{StatPrefix: statPrefix(to), Destinations: []WeightedCluster{{Cluster: to}}}
			return c
		}
		c.HTTP = in.st.httpChain("inbound_" + c.Name)
		c.HTTP.GRPCWeb = p.protocol == mesh.GRPCWeb
		c.HTTP.Inbound = &InboundRoute{
			Cluster: to, Operation: p.operation, Retry: p.protocol != mesh.GRPC && p.protocol != mesh.GRPCWeb,
		}
		return c
	})
}

// modeChains arranges chains as a mode demands. STRICT has mTLS and nothing
// else. PERMISSIVE tells mTLS of the mesh by the protocols that are offered;
// an application's own TLS is passed on as it is.
func (in *inbound) modeChains(mode mesh.MTLSMode, http bool, build func() *Chain) []*Chain {
	mtls := build()
	mtls.Match.Transport = transTLS
	mtls.TLS = &ServerTLS{HTTP: http, TrustDomains: in.st.trustDomains, MaxAge: in.st.settings.serverAge(http)}
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
