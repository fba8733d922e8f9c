package envoy

import (
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcstatsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_stats/v3"
	grpcwebv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/xds/view"
)

const hcmFilter = "envoy.filters.network.http_connection_manager"

func httpConnectionManager(c *view.FilterChain, l *view.Listener) *hcmv3.HttpConnectionManager {
	h := c.HTTP
	out := &hcmv3.HttpConnectionManager{
		StatPrefix:                   h.StatPrefix,
		CodecType:                    hcmv3.HttpConnectionManager_AUTO,
		UseRemoteAddress:             wrapperspb.Bool(false),
		NormalizePath:                wrapperspb.Bool(h.NormalizePath),
		MergeSlashes:                 h.MergeSlashes,
		PathWithEscapedSlashesAction: hcmv3.HttpConnectionManager_KEEP_UNCHANGED,
		StreamIdleTimeout:            noTimeout(),
		Proxy_100Continue:            true,
		UpgradeConfigs:               []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		HttpFilters:                  httpFilters(c, l.Inbound),
		AppendXForwardedPort:         h.Headers.GetXForwardedPort().GetEnabled().GetValue(),
		AccessLog:                    append(accessLogs(l.Telemetry, nil), requestLogs(l.Telemetry, l.Inbound)...),
	}
	addTracing(out, l.Telemetry)
	if h.UnescapeSlashes {
		out.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
	}
	if h.AllowAbsoluteURL {
		out.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AllowAbsoluteUrl: wrapperspb.Bool(true)}
	}
	if f := headerCase(h.Headers.GetPreserveHttp1HeaderCase().GetValue()); f != nil {
		if out.HttpProtocolOptions == nil {
			out.HttpProtocolOptions = &corev3.Http1ProtocolOptions{}
		}
		out.HttpProtocolOptions.HeaderKeyFormat = f
	}
	headersOf(out, h)
	if l.QUIC {
		out.CodecType, out.Http3ProtocolOptions = hcmv3.HttpConnectionManager_HTTP3, &corev3.Http3ProtocolOptions{}
	}
	if h.Gateway != nil {
		gatewayHTTP(out, h.Gateway)
		if c.TLS != nil && c.TLS.MaxAge > 0 {
			out.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{MaxConnectionDuration: durationpb.New(c.TLS.MaxAge)}
		}
	}
	if h.Inbound == nil {
		out.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{
			Rds: &hcmv3.Rds{ConfigSource: ads(), RouteConfigName: h.RouteName},
		}
		return out
	}
	out.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: inboundRoutes(h.Inbound)}
	out.RequestHeadersTimeout = durationpb.New(requestHeadersTimeout)
	if c.TLS != nil && c.TLS.MaxAge > 0 {
		// Not the variant that drains HTTP/1 with the next response: an idle connection would
		// stay open, and its next request would be answered.
		out.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{MaxConnectionDuration: durationpb.New(c.TLS.MaxAge)}
	}
	return out
}

// httpFilters is the ordered list of filters.
func httpFilters(c *view.FilterChain, inbound bool) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	add := func(want bool, name string, config proto.Message) {
		if want {
			out = append(out, &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(config)}})
		}
	}
	for _, slot := range c.HTTP.Slots {
		out = append(out, discoveredFilter(slot))
	}
	add(c.HTTP.GRPCWeb, "envoy.filters.http.grpc_web", &grpcwebv3.GrpcWeb{})
	add(true, "envoy.filters.http.grpc_stats", &grpcstatsv3.FilterConfig{
		EmitFilterState:        true,
		PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{StatsForAllMethods: wrapperspb.Bool(false)},
	})
	add(!inbound, faultFilter, &faultv3.HTTPFault{})
	add(!inbound, corsFilter, &corsv3.Cors{})
	add(!inbound, alpnFilter, &setfilterstatev3.Config{})
	add(true, "envoy.filters.http.router", &routerv3.Router{SuppressEnvoyHeaders: c.HTTP.Headers.GetEnvoyDebugHeaders().GetDisabled().GetValue()})
	return out
}

func inboundRoutes(in *view.InboundRoute) *routev3.RouteConfiguration {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: nameOf(in.Cluster)},
		Timeout:          noTimeout(),
		MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{
			MaxStreamDuration: noTimeout(), GrpcTimeoutHeaderMax: noTimeout(),
		},
	}
	if in.Retry {
		action.RetryPolicy = inboundRetryPolicy(in.Retries)
	}
	return &routev3.RouteConfiguration{
		Name:             nameOf(in.Cluster),
		ValidateClusters: wrapperspb.Bool(false),
		VirtualHosts: []*routev3.VirtualHost{{
			Name:    "inbound|http|" + strconv.FormatUint(uint64(in.Cluster.Port), 10),
			Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Name:      "default",
				Match:     allPaths(),
				Decorator: &routev3.Decorator{Operation: in.Operation},
				Action:    &routev3.Route_Route{Route: action},
			}},
		}},
	}
}
