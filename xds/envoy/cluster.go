package envoy

import (
	"math"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// httpOptionsKey is the key of a cluster's HTTP options.
const httpOptionsKey = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// loopbackSource is the source address that capture rules do not redirect.
const loopbackSource = "127.0.0.6"

// loopbackSourceIPv6 is Istio's, too. No host has it unless somebody adds it to lo.
const loopbackSourceIPv6 = "::6"

const (
	// dnsJitter spreads the lookups of a fleet that started at one time.
	dnsJitter = 100 * time.Millisecond
	// passthroughIdleTime is how long a connection to an unknown address stays open without
	// a request. Each address has a pool of its own, and nothing else ends it.
	passthroughIdleTime = 5 * time.Minute
)

// clusterBuilder is a cluster with its HTTP options, which are encoded last.
type clusterBuilder struct {
	p    *view.Cluster
	c    *clusterv3.Cluster
	http *httpv3.HttpProtocolOptions
}

func buildCluster(p *view.Cluster) *clusterv3.Cluster {
	name := nameOf(p.Ref)
	b := &clusterBuilder{
		p: p,
		c: &clusterv3.Cluster{
			Name:           name,
			AltStatName:    name + ";",
			ConnectTimeout: durationpb.New(p.Defaults.ConnectTimeout),
			CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{},
			Metadata:       serviceMetadata(p.Service),
		},
	}
	b.discovery()
	switch p.Ref.Kind {
	case view.BlackHoleCluster:
		b.c.CommonLbConfig = nil
		return b.c
	case view.PassthroughCluster, view.InboundPassthroughCluster:
		b.downstreamProtocol()
		b.connectionPool()
		b.options().CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(passthroughIdleTime)}
	case view.InboundCluster:
		b.protocol()
		b.connectionPool()
		if p.Discovery == view.DiscoverOriginalDst { // the application's address does not go stale
			b.c.CleanupInterval = durationpb.New(math.MaxInt32 * time.Second)
		}
	case view.OutboundCluster, view.SNICluster:
		b.protocol()
		b.connectionPool()
		b.boundReports()
		b.outlierDetection()
		b.loadBalancer()
		b.transportSocket()
		b.proxyProtocol()
	}
	if p.BindLoopback {
		b.c.UpstreamBindConfig = &corev3.BindConfig{SourceAddress: &corev3.SocketAddress{
			Address: loopbackSource, PortSpecifier: &corev3.SocketAddress_PortValue{},
		}}
		if p.BindLoopbackIPv6 {
			b.c.UpstreamBindConfig.ExtraSourceAddresses = []*corev3.ExtraSourceAddress{{Address: &corev3.SocketAddress{
				Address: loopbackSourceIPv6, PortSpecifier: &corev3.SocketAddress_PortValue{},
			}}}
		}
	}
	if p.Discovery == view.DiscoverDynamic {
		b.dynamic()
	}
	if b.http != nil {
		if b.http.GetUpstreamProtocolOptions() == nil { // Envoy demands one
			b.http1()
		}
		b.c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptionsKey: pack(b.http)}
	}
	return b.c
}

func (b *clusterBuilder) discovery() {
	set := func(t clusterv3.Cluster_DiscoveryType) {
		b.c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: t}
	}
	switch b.p.Discovery {
	case view.DiscoverEDS:
		set(clusterv3.Cluster_EDS)
		b.c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()}
	case view.DiscoverStatic:
		set(clusterv3.Cluster_STATIC)
	case view.DiscoverStrictDNS, view.DiscoverLogicalDNS:
		set(clusterv3.Cluster_STRICT_DNS)
		if b.p.Discovery == view.DiscoverLogicalDNS {
			set(clusterv3.Cluster_LOGICAL_DNS)
		}
		b.c.DnsLookupFamily = lookupFamily(b.p.Lookup)
		b.c.DnsJitter = durationpb.New(dnsJitter)                  //nolint:staticcheck // as DnsRefreshRate
		b.c.DnsRefreshRate = optional(b.p.Defaults.DNSRefreshRate) //nolint:staticcheck // its successor is newer than 1.36
		b.c.RespectDnsTtl = true                                   //nolint:staticcheck // likewise
	case view.DiscoverDynamic: // when all else is known
	case view.DiscoverOriginalDst:
		set(clusterv3.Cluster_ORIGINAL_DST)
		b.c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		if b.p.UpstreamPort != 0 {
			b.c.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{
				OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{UpstreamPortOverride: wrapperspb.UInt32(b.p.UpstreamPort)},
			}
		}
	}
	if len(b.p.Localities) > 0 {
		b.c.LoadAssignment = loadAssignment(b.c.GetName(), b.p.Localities, b.p.TLS != nil && b.p.TLS.Auto)
	}
}

func lookupFamily(f view.LookupFamily) clusterv3.Cluster_DnsLookupFamily {
	switch f {
	case view.LookupV6:
		return clusterv3.Cluster_V6_ONLY
	case view.LookupAll:
		return clusterv3.Cluster_ALL
	case view.LookupV4:
	}
	return clusterv3.Cluster_V4_ONLY
}

func (b *clusterBuilder) options() *httpv3.HttpProtocolOptions {
	if b.http == nil {
		b.http = &httpv3.HttpProtocolOptions{}
	}
	return b.http
}

// isHTTP2 reports whether the cluster always speaks HTTP/2.
func (b *clusterBuilder) isHTTP2() bool {
	return b.http.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil
}

func (b *clusterBuilder) http2() {
	b.options().UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
				Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
			},
		},
	}
}

// http1 has the cluster speak HTTP/1.1.
func (b *clusterBuilder) http1() {
	b.options().UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{HeaderKeyFormat: headerCase(b.p.KeepHeaderCase)},
			},
		},
	}
}

// downstreamProtocol uses the protocol of the downstream request.
func (b *clusterBuilder) downstreamProtocol() {
	b.options().UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
		UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
			HttpProtocolOptions:  &corev3.Http1ProtocolOptions{HeaderKeyFormat: headerCase(b.p.KeepHeaderCase)},
			Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
		},
	}
}

func (b *clusterBuilder) protocol() {
	settings := b.p.Policy.GetConnectionPool().GetHttp()
	switch {
	case b.p.Protocol.IsHTTP2():
		b.http2()
	case b.p.Protocol == mesh.Undeclared: // whatever h2UpgradePolicy says, as in Istio
		b.downstreamProtocol()
		return
	case b.p.KeepHeaderCase && b.p.Protocol.IsHTTP(): // no upgrade to HTTP/2, which has no cases; as in Istio
		b.http1()
		return
	}
	if b.p.Ref.Kind != view.OutboundCluster || settings.GetUseClientProtocol() {
		return
	}
	switch settings.GetH2UpgradePolicy() {
	case networking.ConnectionPoolSettings_HTTPSettings_UPGRADE:
		b.http2()
	case networking.ConnectionPoolSettings_HTTPSettings_DO_NOT_UPGRADE:
	case networking.ConnectionPoolSettings_HTTPSettings_DEFAULT:
		if b.p.Defaults.H2Upgrade && b.p.Protocol.IsHTTP() {
			b.http2()
		}
	}
}

func (b *clusterBuilder) connectionPool() {
	pool := b.p.Policy.GetConnectionPool()
	limits := &clusterv3.CircuitBreakers_Thresholds{
		MaxRetries:         unlimited(),
		MaxRequests:        unlimited(),
		MaxConnections:     unlimited(),
		MaxPendingRequests: unlimited(),
	}
	if budget := b.p.Policy.GetRetryBudget(); budget != nil {
		limits.RetryBudget = retryBudget(budget)
	}
	limit := func(to **wrapperspb.UInt32Value, n int32) {
		if n > 0 {
			*to = wrapperspb.UInt32(uint32(n))
		}
	}
	limit(&limits.MaxRequests, pool.GetHttp().GetHttp2MaxRequests())
	limit(&limits.MaxPendingRequests, pool.GetHttp().GetHttp1MaxPendingRequests())
	limit(&limits.MaxRetries, pool.GetHttp().GetMaxRetries())
	limit(&limits.MaxConnections, pool.GetTcp().GetMaxConnections())
	if t := pool.GetTcp().GetConnectTimeout(); t != nil {
		b.c.ConnectTimeout = t
	}
	b.c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{limits}}
	b.keepalive(b.p.Defaults.Keepalive)
	b.keepalive(pool.GetTcp().GetTcpKeepalive())
	b.poolOptions(pool)
}

func retryBudget(in *networking.TrafficPolicy_RetryBudget) *clusterv3.CircuitBreakers_Thresholds_RetryBudget {
	out := &clusterv3.CircuitBreakers_Thresholds_RetryBudget{
		BudgetPercent:       &typev3.Percent{Value: 20},
		BudgetInterval:      in.GetBudgetInterval(),
		MinRetryConcurrency: wrapperspb.UInt32(3),
	}
	if in.GetPercent() != nil {
		out.BudgetPercent.Value = in.GetPercent().GetValue()
	}
	if in.GetMinRetryConcurrency() > 0 {
		out.MinRetryConcurrency.Value = in.GetMinRetryConcurrency()
	}
	return out
}

func (b *clusterBuilder) keepalive(k *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) {
	if k == nil {
		return
	}
	if b.c.GetUpstreamConnectionOptions() == nil {
		b.c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: &corev3.TcpKeepalive{}}
	}
	out := b.c.GetUpstreamConnectionOptions().GetTcpKeepalive()
	if k.GetProbes() > 0 {
		out.KeepaliveProbes = wrapperspb.UInt32(k.GetProbes())
	}
	if k.GetTime() != nil {
		out.KeepaliveTime = seconds(k.GetTime())
	}
	if k.GetInterval() != nil {
		out.KeepaliveInterval = seconds(k.GetInterval())
	}
}

func seconds(d *durationpb.Duration) *wrapperspb.UInt32Value {
	return wrapperspb.UInt32(uint32(max(d.GetSeconds(), 0)))
}

// maxAge is the shorter of the DestinationRule's limit and that of mTLS.
func (b *clusterBuilder) maxAge(wanted *durationpb.Duration) *durationpb.Duration {
	if b.p.TLS == nil || b.p.TLS.MaxAge == 0 || (wanted != nil && wanted.AsDuration() <= b.p.TLS.MaxAge) {
		return wanted
	}
	return durationpb.New(b.p.TLS.MaxAge)
}

func (b *clusterBuilder) poolOptions(pool *networking.ConnectionPoolSettings) {
	http, tcp := pool.GetHttp(), pool.GetTcp()
	idle := http.GetIdleTimeout()
	if idle == nil {
		idle = tcp.GetIdleTimeout()
	}
	common := &corev3.HttpProtocolOptions{IdleTimeout: idle, MaxConnectionDuration: b.maxAge(tcp.GetMaxConnectionDuration())}
	if n := http.GetMaxRequestsPerConnection(); n > 0 {
		common.MaxRequestsPerConnection = wrapperspb.UInt32(uint32(n))
	}
	if !proto.Equal(common, &corev3.HttpProtocolOptions{}) {
		b.options().CommonHttpProtocolOptions = common
	}
	if h2 := b.http.GetExplicitHttpConfig().GetHttp2ProtocolOptions(); h2 != nil {
		if n := http.GetMaxConcurrentStreams(); n > 0 {
			h2.MaxConcurrentStreams = wrapperspb.UInt32(uint32(n))
		}
		if k := http.GetHttp2KeepAlive(); k != nil {
			h2.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: k.GetInterval(), Timeout: k.GetTimeout()}
		}
	}
	if http.GetUseClientProtocol() {
		b.downstreamProtocol()
	}
}
