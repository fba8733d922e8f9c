package bootstrap

import (
	"fmt"
	"net/netip"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	healthv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/health_check/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Paths that the static listeners answer, Istio's.
const (
	StatsPath  = "/stats/prometheus"
	HealthPath = "/healthz/ready"
)

// statsListener serves Envoy's metrics on the host's address: one path of the
// admin interface, and nothing else of it.
func statsListener(at netip.AddrPort) (*listenerv3.Listener, error) {
	return httpListener("fairlead_stats", at, []*routev3.Route{{
		Match: &routev3.RouteMatch{
			PathSpecifier: &routev3.RouteMatch_Path{Path: StatsPath},
			Headers: []*routev3.HeaderMatcher{{
				Name:                 ":method",
				HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: exact("GET")},
			}},
		},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: prometheusCluster},
			// Without counters of what never happened: most of them are of clusters that the
			// host never calls.
			PrefixRewrite: StatsPath + "?usedonly",
		}},
	}})
}

// healthListener answers whether Envoy accepts traffic. Envoy opens it with the other
// listeners, once it has its configuration, and its filter fails while Envoy drains.
func healthListener(at netip.AddrPort) (*listenerv3.Listener, error) {
	return httpListener("fairlead_health", at, nil, namedFilter{"envoy.filters.http.health_check", &healthv3.HealthCheck{
		PassThroughMode: wrapperspb.Bool(false),
		Headers: []*routev3.HeaderMatcher{{
			Name: ":path", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: exact(HealthPath)},
		}},
	}})
}

type namedFilter struct {
	name   string
	config proto.Message
}

func httpListener(name string, at netip.AddrPort, routes []*routev3.Route, filters ...namedFilter) (*listenerv3.Listener, error) {
	var chain []*hcmv3.HttpFilter
	for _, f := range append(filters, namedFilter{"envoy.filters.http.router", &routerv3.Router{}}) {
		a, err := anypb.New(f.config)
		if err != nil {
			return nil, fmt.Errorf("marshalling the filter %s: %w", f.name, err)
		}
		chain = append(chain, &hcmv3.HttpFilter{Name: f.name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: a}})
	}
	hcm, err := anypb.New(&hcmv3.HttpConnectionManager{
		StatPrefix: name + ";",
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name:         name,
			VirtualHosts: []*routev3.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: routes}},
		}},
		HttpFilters: chain,
	})
	if err != nil {
		return nil, fmt.Errorf("marshalling the listener %s: %w", name, err)
	}
	return &listenerv3.Listener{
		Name:             name,
		Address:          address(at),
		TrafficDirection: corev3.TrafficDirection_INBOUND,
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: hcm},
		}}}},
		// Probes and scrapers must be able to connect when traffic has reached the limits
		// of the process.
		IgnoreGlobalConnLimit: true,
		BypassOverloadManager: true,
	}, nil
}

func exact(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: s}}
}

// runtimeLayers keeps the admin layer that a stock Envoy has without this section.
func runtimeLayers(v Version) *bootstrapv3.LayeredRuntime {
	static := map[string]*structpb.Value{
		// Istio accepts regular expressions of up to 1,024 characters; Envoy
		// by default rejects those that compile to more than 100 instructions.
		"re2.max_program_size.error_level": structpb.NewNumberValue(32768),
		// As in Istio, the fragment of a path is removed, and the request is served.
		"envoy.reloadable_features.http_reject_path_with_fragment": structpb.NewBoolValue(false),
	}
	// An Envoy logs an error for a guard that it does not know.
	if v.AtLeast(1, 38) {
		// Off in Istio, too: https://github.com/envoyproxy/envoy/issues/45212
		static["envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update"] = structpb.NewBoolValue(false)
	}
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{
		{
			Name:           "static",
			LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: static}},
		},
		{
			Name:           "admin",
			LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}},
		},
	}}
}
