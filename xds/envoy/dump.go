package envoy

import (
	"fmt"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/data/dns/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Decode decodes a resource's message.
func Decode(r Resource) (proto.Message, error) {
	var m proto.Message
	switch r.TypeURL {
	case ClusterType:
		m = &clusterv3.Cluster{}
	case EndpointType:
		m = &endpointv3.ClusterLoadAssignment{}
	case ExtensionType:
		m = &corev3.TypedExtensionConfig{}
	case ListenerType:
		m = &listenerv3.Listener{}
	case NameType:
		m = &dnsv3.DnsTable_DnsVirtualDomain{}
	case RouteType:
		m = &routev3.RouteConfiguration{}
	case VirtualHostType:
		m = &routev3.VirtualHost{}
	default:
		return nil, fmt.Errorf("decoding %q: type %q is not built here", r.Name, r.TypeURL)
	}
	if err := proto.Unmarshal(r.Body, m); err != nil {
		return nil, fmt.Errorf("decoding %s %q: %w", r.TypeURL, r.Name, err)
	}
	return m, nil
}

// ConfigDump is the resources in the form of Envoy's /config_dump?include_eds, as a proxy
// that has accepted all of them shows them.
func ConfigDump(resources []Resource) (*adminv3.ConfigDump, error) {
	clusters := &adminv3.ClustersConfigDump{}
	endpoints := &adminv3.EndpointsConfigDump{}
	listeners := &adminv3.ListenersConfigDump{}
	routes := &adminv3.RoutesConfigDump{}
	extensions := &adminv3.EcdsConfigDump{}
	for _, r := range resources {
		body := &anypb.Any{TypeUrl: r.TypeURL, Value: r.Body}
		switch r.TypeURL {
		case ClusterType:
			clusters.DynamicActiveClusters = append(clusters.DynamicActiveClusters,
				&adminv3.ClustersConfigDump_DynamicCluster{VersionInfo: r.Version, Cluster: body})
		case EndpointType:
			endpoints.DynamicEndpointConfigs = append(endpoints.DynamicEndpointConfigs,
				&adminv3.EndpointsConfigDump_DynamicEndpointConfig{VersionInfo: r.Version, EndpointConfig: body})
		case ListenerType:
			listeners.DynamicListeners = append(listeners.DynamicListeners, &adminv3.ListenersConfigDump_DynamicListener{
				Name:        r.Name,
				ActiveState: &adminv3.ListenersConfigDump_DynamicListenerState{VersionInfo: r.Version, Listener: body},
			})
		case RouteType:
			routes.DynamicRouteConfigs = append(routes.DynamicRouteConfigs,
				&adminv3.RoutesConfigDump_DynamicRouteConfig{VersionInfo: r.Version, RouteConfig: body})
		case ExtensionType:
			extensions.EcdsFilters = append(extensions.EcdsFilters,
				&adminv3.EcdsConfigDump_EcdsFilterConfig{VersionInfo: r.Version, EcdsFilter: body})
		default:
			return nil, fmt.Errorf("dumping %q: type %q has no place in a dump", r.Name, r.TypeURL)
		}
	}
	out := &adminv3.ConfigDump{}
	list := []proto.Message{clusters, endpoints, listeners, routes}
	if len(extensions.GetEcdsFilters()) > 0 { // as Envoy, which has no such dump before the first
		list = append(list, extensions)
	}
	for _, m := range list {
		out.Configs = append(out.Configs, pack(m))
	}
	return out, nil
}
