package envoy

import (
	"net/netip"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	rbacnetv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/xds/view"
)

// handshakeTimeout is how long a client may take for the TLS handshake, and
// requestHeadersTimeout for the headers of a request, from their first byte.
const (
	handshakeTimeout      = 15 * time.Second
	requestHeadersTimeout = 15 * time.Second
)

// inspectorBuffer is how much the TLS inspector reserves for each new connection, in bytes; it
// takes more if a handshake has more. Envoy's default is 64 KiB.
const inspectorBuffer = 512

// tproxyMark is set on packets that the proxy sends with a client's address.
const tproxyMark = 1337

func buildListener(p *view.Listener) (*listenerv3.Listener, []Diagnostic) {
	var x tcpAuthorizations
	out := &listenerv3.Listener{
		Name:                             p.Name,
		Address:                          address(p.Addresses[0], p.Port),
		TrafficDirection:                 corev3.TrafficDirection_OUTBOUND,
		ContinueOnListenerFiltersTimeout: true,
		ListenerFiltersTimeout:           durationpb.New(p.InspectTimeout),
	}
	for _, a := range p.Addresses[1:] {
		out.AdditionalAddresses = append(out.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: address(a, p.Port)})
	}
	if p.Gateway { // what says nothing in Envoy's 15 seconds is closed
		out.ContinueOnListenerFiltersTimeout, out.ListenerFiltersTimeout = false, nil
	}
	if p.Inbound || p.UseOriginalDst || p.Gateway { // as in Istio, not where a service has a listener of its own
		out.AccessLog = listenerLogs(p.Telemetry)
	}
	if p.Inbound {
		out.TrafficDirection = corev3.TrafficDirection_INBOUND
	}
	if p.QUIC {
		listenQUIC(out)
	}
	if p.UseOriginalDst {
		out.UseOriginalDst = wrapperspb.Bool(true)
		out.ContinueOnListenerFiltersTimeout, out.ListenerFiltersTimeout = false, nil
	}
	if p.Transparent {
		out.Transparent = wrapperspb.Bool(true)
	}
	if p.BindToPort {
		out.MaxConnectionsToAcceptPerSocketEvent = wrapperspb.UInt32(1)
	} else {
		out.BindToPort = wrapperspb.Bool(false)
	}
	out.ListenerFilters = listenerFilters(p)
	for _, c := range p.Chains {
		out.FilterChains = append(out.FilterChains, filterChain(c, p, &x))
	}
	if p.Default != nil {
		out.DefaultFilterChain = filterChain(p.Default, p, &x)
	}
	return out, x.diagnostics
}

// listenerFilters are in the order in which they have to be.
func listenerFilters(p *view.Listener) []*listenerv3.ListenerFilter {
	var out []*listenerv3.ListenerFilter
	add := func(want bool, name string, config proto.Message) {
		if want {
			out = append(out, &listenerv3.ListenerFilter{
				Name: name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: pack(config)},
			})
		}
	}
	add(p.ProxyProtocol, "envoy.filters.listener.proxy_protocol", &proxyprotocolv3.ProxyProtocol{})
	add(p.OriginalDst, "envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{})
	add(p.OriginalSrc, "envoy.filters.listener.original_src", &originalsrcv3.OriginalSrc{Mark: tproxyMark})
	add(p.InspectTLS, "envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{InitialReadBufferSize: wrapperspb.UInt32(inspectorBuffer)})
	add(p.InspectHTTP, "envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{})
	for _, f := range out {
		var ports []uint32
		switch f.GetName() {
		case "envoy.filters.listener.tls_inspector":
			ports = portsWithout(p, func(m *view.FilterChainMatch) bool { return m.Transport != "" || len(m.ServerNames) > 0 })
		case "envoy.filters.listener.http_inspector":
			ports = portsWithout(p, (*view.FilterChainMatch).PlaintextHTTP)
		}
		if len(ports) > 0 {
			f.FilterDisabled = anyPort(ports)
		}
	}
	return out
}

// portsWithout are the ports at which no chain needs an inspector. There the server may speak
// first, and an inspector would wait for the client without end.
func portsWithout(p *view.Listener, inspects func(*view.FilterChainMatch) bool) []uint32 {
	needs := map[uint32]bool{}
	for _, c := range p.Chains {
		port := c.Match.DestinationPort
		needs[port] = needs[port] || inspects(&c.Match)
	}
	var out []uint32
	for _, c := range p.Chains {
		port := c.Match.DestinationPort
		if port != 0 && !needs[port] {
			out = append(out, port)
			needs[port] = true // once is enough
		}
	}
	return out
}

func anyPort(ports []uint32) *listenerv3.ListenerFilterChainMatchPredicate {
	rules := make([]*listenerv3.ListenerFilterChainMatchPredicate, 0, len(ports))
	for _, port := range ports {
		n := int32(port)
		rules = append(rules, &listenerv3.ListenerFilterChainMatchPredicate{
			Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
				DestinationPortRange: &typev3.Int32Range{Start: n, End: n + 1},
			},
		})
	}
	if len(rules) == 1 {
		return rules[0]
	}
	return &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
		OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules},
	}}
}

func filterChain(c *view.FilterChain, l *view.Listener, x *tcpAuthorizations) *listenerv3.FilterChain {
	out := &listenerv3.FilterChain{Name: c.Name, FilterChainMatch: chainMatch(&c.Match), TransportSocket: serverSocket(c.TLS)}
	switch {
	case c.Gateway != nil && l.QUIC:
		out.TransportSocket = quicSocket(c.Gateway)
	case c.Gateway != nil:
		out.TransportSocket = socket(tlsSocket, pack(gatewayTLS(c.Gateway)))
	}
	if c.TLS != nil || c.Gateway != nil {
		out.TransportSocketConnectTimeout = durationpb.New(handshakeTimeout)
	}
	if c.Rules != "" {
		out.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"fairlead": {Fields: map[string]*structpb.Value{"rules": structpb.NewStringValue(c.Rules)}},
		}}
	}
	if c.HTTP != nil {
		out.Filters = []*listenerv3.Filter{networkFilter(hcmFilter, httpConnectionManager(c, l))}
		return out
	}
	if c.Deny {
		out.Filters = append(out.Filters, networkFilter(networkRBACFilter, &rbacnetv3.RBAC{
			StatPrefix: "unenforced.", Rules: denyAll(),
		}))
	}
	out.Filters = append(out.Filters, x.of(c.Authorization)...)
	proxy := tcpProxy(c.TCP)
	if !c.Unreported {
		proxy.AccessLog = accessLogs(l.Telemetry, nil)
		countConnections(proxy, l.Telemetry, l.Inbound)
	}
	if c.TLS != nil && c.TLS.MaxAge > 0 {
		proxy.MaxDownstreamConnectionDuration = durationpb.New(c.TLS.MaxAge)
	}
	if c.TCP.LookUp > 0 {
		out.Filters = append(out.Filters, networkFilter(sniDynamicFilter, lookUpServerName(c.TCP)))
	}
	out.Filters = append(out.Filters, networkFilter("envoy.filters.network.tcp_proxy", proxy))
	return out
}

func networkFilter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(config)}}
}

// denyAll refuses everybody: it allows only what an empty list of policies allows.
func denyAll() *rbacconfigv3.RBAC { return &rbacconfigv3.RBAC{Action: rbacconfigv3.RBAC_ALLOW} }

func chainMatch(m *view.FilterChainMatch) *listenerv3.FilterChainMatch {
	out := &listenerv3.FilterChainMatch{
		TransportProtocol:    m.Transport,
		ApplicationProtocols: m.ALPN,
	}
	if m.DestinationPort != 0 {
		out.DestinationPort = wrapperspb.UInt32(m.DestinationPort)
	}
	if !slices.Contains(m.ServerNames, "*") { // any name: no condition
		out.ServerNames = m.ServerNames
	}
	for _, c := range m.CIDRs {
		if r := cidr(c); r != nil {
			out.PrefixRanges = append(out.PrefixRanges, r)
		}
	}
	if proto.Equal(out, &listenerv3.FilterChainMatch{}) {
		return nil
	}
	return out
}

func cidr(text string) *corev3.CidrRange {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	return &corev3.CidrRange{
		AddressPrefix: p.Addr().String(),
		PrefixLen:     wrapperspb.UInt32(uint32(p.Bits())),
	}
}

func tcpProxy(c *view.TCPProxy) *tcpv3.TcpProxy {
	out := &tcpv3.TcpProxy{
		StatPrefix:                      c.StatPrefix,
		IdleTimeout:                     optional(c.IdleTimeout),
		MaxDownstreamConnectionDuration: optional(c.MaxDuration),
	}
	if len(c.Destinations) == 1 {
		out.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: nameOf(c.Destinations[0].Cluster)}
	} else {
		list := &tcpv3.TcpProxy_WeightedCluster{}
		for _, d := range c.Destinations {
			list.Clusters = append(list.Clusters, &tcpv3.TcpProxy_WeightedCluster_ClusterWeight{
				Name: nameOf(d.Cluster), Weight: d.Weight,
			})
		}
		out.ClusterSpecifier = &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: list}
	}
	if c.Tunnel != "" {
		out.TunnelingConfig = &tcpv3.TcpProxy_TunnelingConfig{Hostname: c.Tunnel, UsePost: c.TunnelPost}
	}
	if c.HashSourceIP {
		out.HashPolicy = []*typev3.HashPolicy{{PolicySpecifier: &typev3.HashPolicy_SourceIp_{SourceIp: &typev3.HashPolicy_SourceIp{}}}}
	}
	return out
}
