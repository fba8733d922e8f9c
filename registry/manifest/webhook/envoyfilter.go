package webhook

import (
	"regexp"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

func envoyFilter(c cursor, _ Object, f *networking.EnvoyFilter) {
	c.warn("an EnvoyFilter changes Envoy's configuration as it happens to be today; prefer the other kinds where they suffice")
	c.workloadSelector("workloadSelector", f.WorkloadSelector)
	for i, p := range f.ConfigPatches {
		at := c.item("configPatches", i)
		if p == nil {
			at.wrong("the patch is null; remove it")
			continue
		}
		// Istio looks no further at patches for a kind of proxy that is not Envoy's.
		if p.GetMatch().GetContext() != networking.EnvoyFilter_WAYPOINT {
			at.configPatch(p)
		}
	}
}

func (c cursor) configPatch(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	if p.ApplyTo == networking.EnvoyFilter_INVALID {
		c.wrong("there is no applyTo; write what is patched, such as HTTP_FILTER or CLUSTER")
	}
	if p.Patch == nil {
		c.wrong("there is no patch; write patch.operation and patch.value")
	} else {
		c.at("patch").patchOperation(p)
	}
	if v := p.GetMatch().GetProxy().GetProxyVersion(); len(v) > maxRegexLen {
		c.at("match").at("proxy").at("proxyVersion").warn("the expression has more than %d characters and is ignored", maxRegexLen)
	} else if _, err := regexp.Compile(v); err != nil {
		c.at("match").at("proxy").at("proxyVersion").wrong("%q is not a regular expression of RE2: %s", v, regexFault(err))
	}
	c.at("match").patchMatch(p)
}

func (c cursor) patchOperation(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	switch {
	case p.Patch.Operation == networking.EnvoyFilter_Patch_INVALID:
		c.wrong("there is no operation; write one, such as MERGE or INSERT_BEFORE")
	case p.Patch.Operation != networking.EnvoyFilter_Patch_REMOVE && p.Patch.Value == nil:
		c.wrong("the operation %s needs a value", p.Patch.Operation)
	}
	if p.Patch.Value == nil || p.ApplyTo == networking.EnvoyFilter_INVALID {
		return
	}
	m := patched(p.ApplyTo)
	if m == nil {
		c.wrong("%s cannot be patched", p.ApplyTo)
		return
	}
	c.at("value").envoyMessage(m.ProtoReflect().Descriptor(), p.Patch.Value)
}

// patched returns an empty message of what a patch for a changes, or nil.
func patched(a networking.EnvoyFilter_ApplyTo) proto.Message {
	switch a {
	case networking.EnvoyFilter_LISTENER:
		return &listenerv3.Listener{}
	case networking.EnvoyFilter_LISTENER_FILTER:
		return &listenerv3.ListenerFilter{}
	case networking.EnvoyFilter_FILTER_CHAIN:
		return &listenerv3.FilterChain{}
	case networking.EnvoyFilter_NETWORK_FILTER:
		return &listenerv3.Filter{}
	case networking.EnvoyFilter_HTTP_FILTER:
		return &hcmv3.HttpFilter{}
	case networking.EnvoyFilter_ROUTE_CONFIGURATION:
		return &routev3.RouteConfiguration{}
	case networking.EnvoyFilter_VIRTUAL_HOST:
		return &routev3.VirtualHost{}
	case networking.EnvoyFilter_HTTP_ROUTE:
		return &routev3.Route{}
	case networking.EnvoyFilter_CLUSTER:
		return &clusterv3.Cluster{}
	case networking.EnvoyFilter_EXTENSION_CONFIG:
		return &corev3.TypedExtensionConfig{}
	case networking.EnvoyFilter_BOOTSTRAP:
		return &bootstrapv3.Bootstrap{}
	case networking.EnvoyFilter_INVALID:
	}
	return nil
}

// patchMatch wants the match to be for the same class of objects as the patch.
func (c cursor) patchMatch(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	m := p.GetMatch()
	if m.GetObjectTypes() == nil {
		return
	}
	const why = "applyTo %s is matched by %s; write match.%[2]s, or remove the match"
	switch p.ApplyTo {
	case networking.EnvoyFilter_LISTENER, networking.EnvoyFilter_FILTER_CHAIN,
		networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER:
		if m.GetListener() == nil {
			c.wrong(why, p.ApplyTo, "listener")
		}
		if f := m.GetListener().GetFilterChain().GetFilter(); f != nil {
			c.at("listener").at("filterChain").at("filter").filterMatch(p.ApplyTo, f)
		}
	case networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE:
		if m.GetRouteConfiguration() == nil {
			c.wrong(why, p.ApplyTo, "routeConfiguration")
		}
	case networking.EnvoyFilter_CLUSTER:
		if m.GetCluster() == nil {
			c.wrong(why, p.ApplyTo, "cluster")
		}
	case networking.EnvoyFilter_INVALID, networking.EnvoyFilter_LISTENER_FILTER,
		networking.EnvoyFilter_EXTENSION_CONFIG, networking.EnvoyFilter_BOOTSTRAP:
	}
}

const httpConnectionManager = "envoy.filters.network.http_connection_manager"

func (c cursor) filterMatch(a networking.EnvoyFilter_ApplyTo, f *networking.EnvoyFilter_ListenerMatch_FilterMatch) {
	if a == networking.EnvoyFilter_LISTENER || a == networking.EnvoyFilter_FILTER_CHAIN {
		c.warn("matching a filter has no effect with applyTo %s; remove it", a)
	}
	if f.Name == "" {
		c.wrong("the match of a filter has no name; write name")
		return
	}
	if s := f.SubFilter; s != nil {
		at := c.at("subFilter")
		switch {
		case a != networking.EnvoyFilter_HTTP_FILTER:
			at.wrong("subFilter goes only with applyTo HTTP_FILTER; remove it")
		case f.Name != httpConnectionManager && f.Name != "envoy.http_connection_manager":
			at.wrong("HTTP filters are in the connection manager; write filter.name: %s", httpConnectionManager)
		case s.Name == "":
			at.wrong("the match of an HTTP filter has no name; write subFilter.name")
		}
		at.at("name").filterName(s.Name)
	}
	c.at("name").filterName(f.Name)
}

// filterName warns of the names that Envoy's filters had in the past.
func (c cursor) filterName(name string) {
	for _, n := range oldFilterNames {
		if n[0] == name {
			c.warn("%q is an old name; write %q", name, n[1])
		}
	}
}

//nolint:gochecknoglobals // a read-only table
var oldFilterNames = [][2]string{
	{"envoy.buffer", "envoy.filters.http.buffer"},
	{"envoy.cors", "envoy.filters.http.cors"},
	{"envoy.csrf", "envoy.filters.http.csrf"},
	{"envoy.ext_authz", "envoy.filters.http.ext_authz"},
	{"envoy.fault", "envoy.filters.http.fault"},
	{"envoy.grpc_http1_bridge", "envoy.filters.http.grpc_http1_bridge"},
	{"envoy.grpc_json_transcoder", "envoy.filters.http.grpc_json_transcoder"},
	{"envoy.grpc_web", "envoy.filters.http.grpc_web"},
	{"envoy.gzip", "envoy.filters.http.gzip"},
	{"envoy.health_check", "envoy.filters.http.health_check"},
	{"envoy.lua", "envoy.filters.http.lua"},
	{"envoy.rate_limit", "envoy.filters.http.ratelimit"},
	{"envoy.router", "envoy.filters.http.router"},
	{"envoy.listener.http_inspector", "envoy.filters.listener.http_inspector"},
	{"envoy.listener.original_dst", "envoy.filters.listener.original_dst"},
	{"envoy.listener.proxy_protocol", "envoy.filters.listener.proxy_protocol"},
	{"envoy.listener.tls_inspector", "envoy.filters.listener.tls_inspector"},
	{"envoy.http_connection_manager", httpConnectionManager},
	{"envoy.mongo_proxy", "envoy.filters.network.mongo_proxy"},
	{"envoy.ratelimit", "envoy.filters.network.ratelimit"},
	{"envoy.redis_proxy", "envoy.filters.network.redis_proxy"},
	{"envoy.tcp_proxy", "envoy.filters.network.tcp_proxy"},
}
