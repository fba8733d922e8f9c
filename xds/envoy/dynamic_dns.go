package envoy

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dfpclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	snidfpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"

	"github.com/fairlead/fairlead/xds/view"
)

const (
	// dynamicCluster looks up the host of each request itself, in all Envoys from 1.36 on. Istio has a filter
	// do so, which would be one more thing in each listener.
	dynamicCluster = "envoy.clusters.dynamic_forward_proxy"
	// sniDynamicFilter looks up the server name of a connection, for the port of the service.
	sniDynamicFilter = "envoy.extensions.filters.network.sni_dynamic_forward_proxy"
	// hostCache is the cache of addresses of all such clusters and filters of an Envoy.
	hostCache = "dynamic_dns"
)

// hostCacheConfig has to be the same wherever the cache is named.
func hostCacheConfig(f view.LookupFamily) *dfpv3.DnsCacheConfig {
	return &dfpv3.DnsCacheConfig{Name: hostCache, DnsLookupFamily: lookupFamily(f)}
}

// dynamic has the cluster go to the host of each request, or to the server name of each connection.
func (b *clusterBuilder) dynamic() {
	b.c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
	config := &dfpclusterv3.ClusterConfig{
		ClusterImplementationSpecifier: &dfpclusterv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: hostCacheConfig(b.p.Lookup)},
	}
	// Envoy wants both from any cluster with options of HTTP, so that nobody sends a request to a server of
	// another name by mistake. A rule may name other names, or none, and HTTP/2 in plaintext has neither.
	if o := b.http.GetUpstreamHttpProtocolOptions(); (b.http != nil || b.c.GetTransportSocket() != nil) && (!o.GetAutoSni() || !o.GetAutoSanValidation()) {
		config.AllowInsecureClusterOptions = true
	}
	b.c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: dynamicCluster, TypedConfig: pack(config),
	}}
}

// lookUpServerName is the filter that looks up the server name of a connection.
func lookUpServerName(p *view.TCPProxy) *snidfpv3.FilterConfig {
	return &snidfpv3.FilterConfig{
		DnsCacheConfig: hostCacheConfig(p.LookUpFamily), PortSpecifier: &snidfpv3.FilterConfig_PortValue{PortValue: p.LookUp},
	}
}

// autoSNI has the server name of a TLS connection be the host of the request.
func (b *clusterBuilder) autoSNI() {
	if b.options().GetUpstreamHttpProtocolOptions() == nil {
		b.options().UpstreamHttpProtocolOptions = &corev3.UpstreamHttpProtocolOptions{}
	}
	b.options().UpstreamHttpProtocolOptions.AutoSni = true
}
