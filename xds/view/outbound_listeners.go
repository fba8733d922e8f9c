package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	wildcard           = "0.0.0.0"
	wildcardIPv6       = "::"
	localhost          = "127.0.0.1"
	transportTLS       = "tls"
	transportRawBuffer = "raw_buffer"
)

// plaintextALPN is what Envoy's HTTP inspector reports for plaintext.
func plaintextALPN() []string { return []string{"http/1.1", "h2c"} }

// listenerKey is the address of a listener.
type listenerKey struct {
	Bind string
	Port uint32
}

// pendingListener is an outbound listener that is being built.
type pendingListener struct {
	key            listenerKey
	extraAddresses []string // further addresses
	bindToPort     bool
	// protocol of its chains; Undeclared if HTTP and TCP are told apart by protocol
	// detection.
	protocol mesh.Protocol
	locked   bool
	chains   []*FilterChain
	origins  []*mesh.Origin
}

// outboundListenerBuilder builds the outbound listeners of one proxy.
type outboundListenerBuilder struct {
	sc                *sidecarScope
	reserved          []listenerKey        // addresses that outbound listeners must not use
	prev              map[string]*Listener // the previous listeners, by name
	pending           map[listenerKey]*pendingListener
	l4VirtualServices map[*egressListener][]*virtualService // those with routes for TCP or TLS
	warnings          []Warning
	// routedBy are the origins of the VirtualServices and DestinationRules of the last TCP
	// chains.
	routedBy []*mesh.Origin
}

// servicePort is a port of a service that is added to a listener.
type servicePort struct {
	egress *egressListener
	svc    *service
	port   mesh.Port
	// bind is empty if the service's own addresses decide.
	bind           string
	bindToPort     bool
	extraAddresses []string
	cidrs          []string
	// loopback means that bind is the service's loopback address.
	loopback bool
}

// listeners returns the outbound listeners of the proxy, and the names of the route
// configurations that they request.
func (o *outboundListenerBuilder) listeners() ([]Part, []string) {
	sc := o.sc
	o.pending, o.l4VirtualServices = map[listenerKey]*pendingListener{}, map[*egressListener][]*virtualService{}
	o.addHTTPProxy()
	for _, e := range sc.egress {
		o.addEgress(e)
	}
	keys := make([]listenerKey, 0, len(o.pending))
	for k := range o.pending {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b listenerKey) int { return cmp.Or(cmp.Compare(a.Bind, b.Bind), cmp.Compare(a.Port, b.Port)) })
	for _, k := range keys {
		if en := o.pending[k]; k.Bind == wildcard && !en.bindToPort && sc.captureIPv6 {
			en.extraAddresses = []string{wildcardIPv6}
		}
	}
	o.dropSharedAddresses(keys)
	parts := make([]Part, 0, len(keys)+1)
	var names []string
	for _, k := range keys {
		l := o.buildListener(o.pending[k])
		for _, c := range append(slices.Clone(l.Chains), l.Default) {
			if c != nil && c.HTTP != nil {
				names = append(names, c.HTTP.RouteName)
			}
		}
		parts = append(parts, l)
	}
	if sc.proxy.Interception != InterceptNone {
		parts = append(parts, o.virtualOutbound())
	}
	slices.Sort(names)
	return parts, slices.Compact(names)
}

// dropSharedAddresses leaves each address to one listener: the one whose main address it
// is, else the first one that has it.
func (o *outboundListenerBuilder) dropSharedAddresses(keys []listenerKey) {
	used := map[listenerKey]bool{}
	for _, k := range keys {
		used[k] = true
	}
	for _, k := range keys {
		en := o.pending[k]
		en.extraAddresses = slices.DeleteFunc(slices.Clone(en.extraAddresses), func(a string) bool {
			at := listenerKey{Bind: a, Port: k.Port}
			taken := used[at]
			used[at] = true
			return taken
		})
	}
}

func (o *outboundListenerBuilder) addEgress(e *egressListener) {
	t := servicePort{egress: e, bind: e.spec.GetBind(), bindToPort: o.sc.proxy.Interception == InterceptNone}
	switch e.spec.GetCaptureMode() {
	case networking.CaptureMode_NONE:
		t.bindToPort = true
	case networking.CaptureMode_IPTABLES:
		t.bindToPort = o.sc.proxy.Interception == InterceptNone
	case networking.CaptureMode_DEFAULT:
	}
	if t.bind == "" && t.bindToPort {
		t.bind = localhost
	}
	if e.hasPort() {
		p := e.spec.GetPort()
		t.port = mesh.Port{Name: p.GetName(), Number: p.GetNumber(), Protocol: mesh.ParseProtocol(p.GetProtocol())}
	} else {
		for _, en := range o.pending { // a port with an egress listener of its own is complete
			en.locked = true
		}
	}
	for pass := range passes {
		for _, svc := range e.services {
			t.svc = svc
			if e.hasPort() {
				if o.passOf(svc, t.port.Number) == pass {
					o.add(t)
				}
				continue
			}
			for _, p := range svc.Ports {
				if o.passOf(svc, p.Number) == pass {
					t.port = p
					o.add(t)
				}
			}
		}
	}
}

// add adds a service's port to the listeners that it needs.
func (o *outboundListenerBuilder) add(t servicePort) {
	if t.port.Protocol == mesh.UDP || t.svc.Resolution == mesh.ResolutionDynamicDNS && !forwardsByName(t.port) {
		return
	}
	if at := o.loopbackFor(t); at != "" {
		local := t
		local.bind, local.loopback = at, true
		o.addListener(local)
		if !t.port.Protocol.IsHTTP() {
			return
		}
	}
	if t.port.Protocol.IsHTTP() {
		t.bind = cmp.Or(t.bind, wildcard)
		o.addListener(t)
		return
	}
	if t.bind != "" {
		o.addListener(t)
		return
	}
	var ips, cidrs []string
	for _, a := range o.sc.addressesOf(t.svc.Service) {
		if p, err := netip.ParsePrefix(a); err == nil && !p.IsSingleIP() {
			cidrs = append(cidrs, a)
		} else if err == nil {
			ips = append(ips, p.Addr().String())
		} else if isIP(a) {
			ips = append(ips, a)
		}
	}
	if len(ips) > 0 {
		vip := t
		vip.bind, vip.extraAddresses = ips[0], ips[1:]
		o.addListener(vip)
	}
	if len(cidrs) > 0 || len(ips) == 0 {
		t.bind, t.cidrs = wildcard, cidrs
		o.addListener(t)
	}
}

func (o *outboundListenerBuilder) addListener(t servicePort) {
	key := listenerKey{Bind: t.bind, Port: t.port.Number}
	if !o.mayListen(key, t) {
		return
	}
	cur := o.pending[key]
	if cur != nil && cur.locked {
		return
	}
	http := t.port.Protocol.IsHTTP()
	if cur != nil && http && (cur.protocol.IsHTTP() || cur.protocol == mesh.Undeclared) {
		return // its routes are in the route configuration of that listener
	}
	if cur != nil && cur.protocol != t.port.Protocol && (serverFirst(cur.protocol) || serverFirst(t.port.Protocol)) {
		o.conflict(key, t)
		return
	}
	pass := o.passOf(t.svc, t.port.Number)
	named := pass == yieldingPass && t.port.Protocol.IsTLS() // by server name
	if cur != nil && pass > 0 && (!named && cur.matchesAll() || pass == yieldingPass && cur.protocol.IsHTTP() && !http) {
		o.conflict(key, t)
		return
	}
	o.routedBy = nil
	chains, protocol := o.chains(t)
	origins := append([]*mesh.Origin{t.svc.Origin}, o.routedBy...)
	if e := t.egress; e.hasPort() || e.spec.GetBind() != "" {
		origins = append(origins, o.sc.sidecar.Origin)
	}
	if chains = t.allowedChains(chains); len(chains) == 0 {
		if t.egress.hasPort() {
			o.warn(t, fmt.Sprintf("no listener for %q on %s:%d: a service of a catalog gets a whole port only if a Sidecar names its host without a wildcard",
				t.svc.Hostname, key.Bind, key.Port))
		}
		return
	}
	if cur == nil || (t.port.Protocol == mesh.Undeclared && cur.protocol.IsHTTP()) {
		en := &pendingListener{
			key: key, extraAddresses: t.extraAddresses, bindToPort: t.bindToPort, protocol: protocol,
			origins: origins,
		}
		for _, c := range chains {
			if !en.addChain(c) {
				o.conflict(key, t)
			}
		}
		o.pending[key] = en
		return
	}
	if cur.protocol == mesh.Undeclared && t.port.Protocol == mesh.Undeclared {
		chains = slices.DeleteFunc(chains, func(c *FilterChain) bool { return c.HTTP != nil })
	}
	if http != cur.protocol.IsHTTP() {
		cur.protocol = mesh.Undeclared
	}
	for _, c := range chains {
		if !cur.addChain(c) {
			o.conflict(key, t)
		}
	}
	cur.origins = append(cur.origins, origins...)
}

// addChain adds a chain for the connections that no other chain of the listener matches:
// Envoy rejects two chains with the same match. It reports whether there are any.
func (en *pendingListener) addChain(c *FilterChain) bool {
	if c = withAcceptedNames(c); c == nil {
		return false
	}
	for _, have := range en.chains {
		if !matchesOverlap(&have.Match, &c.Match) {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(serverNames(&c.Match)), func(n string) bool { return slices.Contains(have.Match.ServerNames, n) })
		if len(left) == 0 {
			return false
		}
		trimmed := *c
		trimmed.Match.ServerNames = left
		c = &trimmed
	}
	en.chains = append(en.chains, c)
	return true
}

// serverFirst reports whether the server speaks first in a protocol. Such a protocol cannot
// share a port with another one.
func serverFirst(p mesh.Protocol) bool { return p == mesh.Mongo || p == mesh.MySQL }

func (o *outboundListenerBuilder) conflict(key listenerKey, t servicePort) {
	o.warn(t, fmt.Sprintf("port %d of %q has no listener of its own on %s: another service has that address first",
		t.port.Number, t.svc.Hostname, key.Bind))
}

func (o *outboundListenerBuilder) warn(t servicePort, text string) {
	o.warnings = append(o.warnings, Warning{Key: t.svc.Key, Origin: t.svc.Origin, Message: text})
}

// mayListen reports whether an outbound listener may use the address: not where the
// workload itself listens, nor on the ports of Envoy's own listeners.
func (o *outboundListenerBuilder) mayListen(key listenerKey, t servicePort) bool {
	if key.Bind == wildcard {
		switch key.Port {
		case 15021, 15090:
			return false
		case o.sc.outPort(), o.sc.inPort():
			return false
		}
	}
	if !t.bindToPort {
		return true
	}
	switch first := o.sc.access.firstPort; {
	case key == listenerKey{Bind: localhost, Port: o.sc.access.httpProxyPort}:
		o.warn(t, fmt.Sprintf("no listener for %q on %s:%d: the port is for applications that use an HTTP proxy", t.svc.Hostname, key.Bind, key.Port))
		return false
	case key.Port < first && !t.egress.hasPort():
		o.warn(t, fmt.Sprintf("no listener for %q on %s:%d: Envoy on this host may listen at ports from %d on", t.svc.Hostname, key.Bind, key.Port, first))
		return false
	}
	for _, k := range o.reserved {
		if k.Port == key.Port && (k.Bind == key.Bind || k.Bind == wildcard || key.Bind == wildcard) {
			o.warn(t, fmt.Sprintf("no listener for %q on %s:%d: the workload itself serves there", t.svc.Hostname, key.Bind, key.Port))
			if key.Bind == localhost && !t.egress.hasPort() { // a Sidecar that asks for it should hear of it
				o.warnings[len(o.warnings)-1].servedPort = key.Port
			}
			return false
		}
	}
	return true
}

func (o *outboundListenerBuilder) chains(t servicePort) ([]*FilterChain, mesh.Protocol) {
	if t.port.Protocol.IsHTTP() {
		http := o.httpChain(t)
		if t.port.Protocol != mesh.HTTPProxy && t.bind == wildcard {
			http.Match = FilterChainMatch{Transport: transportRawBuffer, ALPN: plaintextALPN()}
			return []*FilterChain{http}, mesh.Undeclared
		}
		return []*FilterChain{http}, t.port.Protocol
	}
	var chains []*FilterChain
	if t.port.Protocol.IsTLS() {
		chains = o.tlsChains(t)
	} else {
		chains = o.tcpChains(t)
	}
	if t.port.Protocol == mesh.Undeclared {
		http := o.httpChain(t)
		http.Match = FilterChainMatch{Transport: transportRawBuffer, ALPN: plaintextALPN()}
		chains = append(chains, http)
	}
	return chains, t.port.Protocol
}

func (o *outboundListenerBuilder) httpChain(t servicePort) *FilterChain {
	name := strconv.FormatUint(uint64(t.port.Number), 10)
	switch {
	case t.port.Number == 0:
		name = t.bind
	case t.port.Protocol == mesh.Undeclared && t.bind != wildcard:
		name = string(t.svc.Hostname) + ":" + name
	}
	http := o.sc.httpChain("outbound_"+listenerName(t.bind, t.port.Number), o.sc.headers.settings())
	http.RouteName = name
	http.AllowAbsoluteURL = t.port.Protocol == mesh.HTTPProxy
	http.GRPCWeb = t.port.Protocol == mesh.GRPCWeb
	return &FilterChain{HTTP: http}
}

func (mc *meshContext) httpChain(stat string, headers *meshconfig.ProxyConfig_ProxyHeaders) *HTTPConnectionManager {
	http := &HTTPConnectionManager{StatPrefix: stat + ";", Headers: headers}
	switch mc.config.GetPathNormalization().GetNormalization().String() {
	case "NONE":
	case "MERGE_SLASHES":
		http.NormalizePath, http.MergeSlashes = true, true
	case "DECODE_AND_MERGE_SLASHES":
		http.NormalizePath, http.MergeSlashes, http.UnescapeSlashes = true, true, true
	default:
		http.NormalizePath = true
	}
	return http
}

func listenerName(bind string, port uint32) string {
	return bind + "_" + strconv.FormatUint(uint64(port), 10)
}

// matchesOverlap reports whether two matches have a pair of address range and server name
// in common.
func matchesOverlap(a, b *FilterChainMatch) bool {
	return a.DestinationPort == b.DestinationPort && a.Transport == b.Transport && slices.Equal(a.ALPN, b.ALPN) &&
		intersect(serverNames(a), serverNames(b)) && intersect(maskedCIDRs(a.CIDRs), maskedCIDRs(b.CIDRs))
}

// intersect reports whether two lists have an element in common. An empty list is "any",
// which is a value of its own.
func intersect(a, b []string) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
}

func serverNames(m *FilterChainMatch) []string {
	if slices.Contains(m.ServerNames, "*") {
		return nil
	}
	return m.ServerNames
}

func maskedCIDRs(cidrs []string) []string {
	out := make([]string, 0, len(cidrs))
	for _, c := range cidrs {
		if p, err := netip.ParsePrefix(c); err == nil {
			c = p.Masked().String()
		}
		out = append(out, c)
	}
	return out
}

// buildListener turns a pending listener into a part.
func (o *outboundListenerBuilder) buildListener(en *pendingListener) *Listener {
	l := &Listener{
		Name:       listenerName(en.key.Bind, en.key.Port),
		Addresses:  append([]string{en.key.Bind}, en.extraAddresses...),
		Port:       en.key.Port,
		BindToPort: en.bindToPort,
		Telemetry:  o.sc.telemetry.Outbound,
	}
	for _, c := range en.chains {
		if len(c.Match.ServerNames) > 0 {
			l.InspectTLS = true
		}
		if len(c.Match.ALPN) > 0 {
			l.InspectHTTP = true
		}
		if c.Match.matchesAll() {
			l.Default = c
		} else {
			l.Chains = append(l.Chains, c)
		}
	}
	switch {
	case l.Default != nil && len(l.Chains) == 0:
		l.Chains, l.Default = []*FilterChain{l.Default}, nil
	case l.Default == nil:
		l.Default = o.sc.catchAllChain("PassthroughFilterChain")
	}
	if l.InspectHTTP {
		l.InspectTimeout = o.sc.config.GetProtocolDetectionTimeout().AsDuration()
	}
	if have := o.prev[l.Name]; have != nil && l.sameAs(have) {
		return have
	}
	l.origins = originsOf(en.origins...)
	return o.sc.listeners.intern(l)
}

// catchAllChain is for connections to unknown hosts.
func (sc *sidecarScope) catchAllChain(name string) *FilterChain {
	ca := sc.catchAll()
	to := ca.Cluster
	if ca.Refuse {
		to = ClusterRef{Kind: BlackHoleCluster}
	}
	return &FilterChain{Name: name, TCP: &TCPProxy{StatPrefix: statPrefix(to), CatchAll: true, Destinations: []WeightedCluster{{Cluster: to}}}}
}

func (mc *meshContext) outPort() uint32 {
	return uint32(cmp.Or(mc.config.GetProxyListenPort(), 15001))
}

func (mc *meshContext) inPort() uint32 {
	return uint32(cmp.Or(mc.config.GetProxyInboundListenPort(), 15006))
}
