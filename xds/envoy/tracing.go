package envoy

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	requestidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	detectorsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/resource_detectors/v3"
	samplersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/samplers/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/xds/view"
)

// Timeouts of requests with spans where the provider has none: Envoy demands one.
const (
	zipkinTimeout = 5 * time.Second // Istio's
	otlpTimeout   = 10 * time.Second
)

// zipkinPath is the path of Zipkin's API, version 2.
const zipkinPath = "/api/v2/spans"

// addTracing has the requests of a connection manager traced. (Istio's
// pilot/pkg/networking/core/tracing.go. Who the workload is stands in the environment that the
// agent gives its Envoy, so that proxies share their listeners.)
func addTracing(to *hcmv3.HttpConnectionManager, t *view.Telemetry) {
	if t == nil || t.Tracing == nil {
		return
	}
	tr := t.Tracing
	name, config := tracer(tr)
	to.Tracing = &hcmv3.HttpConnectionManager_Tracing{
		ClientSampling:       &typev3.Percent{Value: 100},
		RandomSampling:       &typev3.Percent{Value: tr.Percent},
		OverallSampling:      &typev3.Percent{Value: 100},
		CustomTags:           traceTags(tr),
		NoContextPropagation: tr.NoPropagation,
		Provider:             &tracev3.Tracing_Http{Name: name, ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: pack(config)}},
	}
	if tr.MaxPathLength > 0 {
		to.Tracing.MaxPathTagLength = wrapperspb.UInt32(tr.MaxPathLength)
	}
	if tr.Provider.GetSkywalking() != nil {
		to.Tracing.SpawnUpstreamSpan = wrapperspb.Bool(true)
	}
	if tr.IgnoreRequestID {
		to.RequestIdExtension = &hcmv3.RequestIDExtension{
			TypedConfig: pack(&requestidv3.UuidRequestIdConfig{UseRequestIdForTraceSampling: wrapperspb.Bool(false)}),
		}
	}
}

// tracer is the configuration of Envoy's extension for a provider. Zipkin and SkyWalking name the
// workload by the cluster of the node, Datadog and OpenTelemetry by variables of the environment.
func tracer(t *view.Tracing) (name string, config proto.Message) {
	switch p := t.Provider; {
	case p.GetZipkin() != nil:
		return "envoy.tracers.zipkin", zipkin(p.GetZipkin(), t.Collector)
	case p.GetDatadog() != nil:
		return "envoy.tracers.datadog", &tracev3.DatadogConfig{
			CollectorCluster: nameOf(t.Collector.Cluster), CollectorHostname: string(t.Collector.Host), ServiceName: "envoy", // unless DD_SERVICE says another one
		}
	case p.GetSkywalking() != nil:
		out := &tracev3.SkyWalkingConfig{GrpcService: collector(t.Collector)}
		if token := p.GetSkywalking().GetAccessToken(); token != "" {
			out.ClientConfig = &tracev3.ClientConfig{BackendTokenSpecifier: &tracev3.ClientConfig_BackendToken{BackendToken: token}}
		}
		return "envoy.tracers.skywalking", out
	default:
		return "envoy.tracers.opentelemetry", openTelemetry(p.GetOpentelemetry(), t)
	}
}

func zipkin(p *meshconfig.MeshConfig_ExtensionProvider_ZipkinTracingProvider, c view.Collector) *tracev3.ZipkinConfig {
	out := &tracev3.ZipkinConfig{
		CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
		TraceId_128Bit:           !p.GetEnable_64BitTraceId(),
		SharedSpanContext:        wrapperspb.Bool(false),
		CollectorService:         spanService(c, cmp.Or(p.GetPath(), zipkinPath), p.GetTimeout(), zipkinTimeout, p.GetHeaders()),
	}
	if p.GetTraceContextOption() == meshconfig.MeshConfig_ExtensionProvider_ZipkinTracingProvider_USE_B3_WITH_W3C_PROPAGATION {
		out.TraceContextOption = tracev3.ZipkinConfig_USE_B3_WITH_W3C_PROPAGATION
	}
	return out
}

func openTelemetry(p *meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider, t *view.Tracing) *tracev3.OpenTelemetryConfig {
	out := &tracev3.OpenTelemetryConfig{
		// The agent's variable OTEL_RESOURCE_ATTRIBUTES has the name of the service.
		ResourceDetectors: []*corev3.TypedExtensionConfig{{
			Name:        "envoy.tracers.opentelemetry.resource_detectors.environment",
			TypedConfig: pack(&detectorsv3.EnvironmentResourceDetectorConfig{}),
		}},
	}
	if p.GetResourceDetectors().GetDynatrace() != nil {
		out.ResourceDetectors = append(out.ResourceDetectors, &corev3.TypedExtensionConfig{
			Name:        "envoy.tracers.opentelemetry.resource_detectors.dynatrace",
			TypedConfig: pack(&detectorsv3.DynatraceResourceDetectorConfig{}),
		})
	}
	if h := p.GetHttp(); h != nil {
		out.HttpService = spanService(t.Collector, h.GetPath(), h.GetTimeout(), otlpTimeout, h.GetHeaders())
	} else {
		out.GrpcService = collector(t.Collector)
		out.GrpcService.Timeout = p.GetGrpc().GetTimeout()
		for _, m := range p.GetGrpc().GetInitialMetadata() {
			out.GrpcService.InitialMetadata = append(out.GrpcService.InitialMetadata, &corev3.HeaderValue{Key: m.GetName(), Value: m.GetValue()})
		}
	}
	if s := p.GetDynatraceSampler(); s != nil {
		out.Sampler = dynatraceSampler(s, p.GetHttp(), t.Sampler)
	}
	return out
}

// dynatraceSampler asks Dynatrace which requests to trace: at the address of the spans, or at its
// own.
func dynatraceSampler(
	s *meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider_DynatraceSampler, spans *meshconfig.MeshConfig_ExtensionProvider_HttpService, c view.Collector,
) *corev3.TypedExtensionConfig {
	http, path := spans, "/api/v2/samplingConfiguration"
	if own := s.GetHttpService(); own != nil {
		http, path = own.GetHttp(), own.GetHttp().GetPath()
	}
	return &corev3.TypedExtensionConfig{
		Name: "envoy.tracers.opentelemetry.samplers.dynatrace",
		TypedConfig: pack(&samplersv3.DynatraceSamplerConfig{
			Tenant: s.GetTenant(), ClusterId: s.GetClusterId(), RootSpansPerMinute: s.GetRootSpansPerMinute(),
			HttpService: spanService(c, path, http.GetTimeout(), otlpTimeout, http.GetHeaders()),
		}),
	}
}

// spanService is how a service is reached by HTTP.
func spanService(
	c view.Collector, path string, timeout *durationpb.Duration, usual time.Duration, headers []*meshconfig.MeshConfig_ExtensionProvider_HttpHeader,
) *corev3.HttpService {
	if timeout == nil {
		timeout = durationpb.New(usual)
	}
	out := &corev3.HttpService{HttpUri: &corev3.HttpUri{
		Uri:              "http://" + string(c.Host) + "/" + strings.TrimPrefix(path, "/"),
		HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: nameOf(c.Cluster)},
		Timeout:          timeout,
	}}
	for _, h := range headers {
		out.RequestHeadersToAdd = append(out.RequestHeadersToAdd, &corev3.HeaderValueOption{
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
			Header:       &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()},
		})
	}
	return out
}

// istioTags are Istio's tags of spans, the variables of Envoy's environment that have their values,
// as agents set them, and Istio's defaults (pilot/pkg/networking/core/tracing.go,
// buildServiceTags).
func istioTags() []struct{ tag, variable, otherwise string } {
	return []struct{ tag, variable, otherwise string }{
		{"istio.canonical_revision", "FAIRLEAD_SPAN_CANONICAL_REVISION", "latest"},
		{"istio.canonical_service", "FAIRLEAD_SPAN_CANONICAL_SERVICE", "unknown"},
		{"istio.cluster_id", "FAIRLEAD_SPAN_CLUSTER_ID", "unknown"},
		{"istio.mesh_id", "FAIRLEAD_SPAN_MESH_ID", "unknown"},
		{"istio.namespace", "FAIRLEAD_SPAN_NAMESPACE", "default"},
	}
}

// traceTags are the tags of all spans, sorted by name. Of two with one name the user's counts.
func traceTags(t *view.Tracing) []*tracingv3.CustomTag {
	byName := map[string]*tracingv3.CustomTag{}
	if t.IstioTags {
		for _, v := range istioTags() {
			byName[v.tag] = environmentTag(v.tag, v.variable, v.otherwise)
		}
		for _, kind := range []string{"allow", "deny"} {
			for tag, key := range map[string]string{"name": "shadow_effective_policy_id", "result": "shadow_engine_result"} {
				name := "istio.authorization.dry_run." + kind + "_policy." + tag
				byName[name] = metadataTag(name, &metadatav3.MetadataKind{Kind: &metadatav3.MetadataKind_Request_{Request: &metadatav3.MetadataKind_Request{}}},
					"envoy.filters.http.rbac", "istio_dry_run_"+kind+"_"+key)
			}
		}
	}
	for _, tag := range t.Tags {
		byName[tag.Name] = traceTag(tag)
	}
	out := make([]*tracingv3.CustomTag, 0, len(byName))
	for _, tag := range byName {
		out = append(out, tag)
	}
	slices.SortFunc(out, func(a, b *tracingv3.CustomTag) int { return cmp.Compare(a.GetTag(), b.GetTag()) })
	return out
}

func traceTag(t view.TraceTag) *tracingv3.CustomTag {
	switch t.Kind {
	case view.TagHeader:
		return &tracingv3.CustomTag{Tag: t.Name, Type: &tracingv3.CustomTag_RequestHeader{RequestHeader: &tracingv3.CustomTag_Header{Name: t.Value, DefaultValue: t.Default}}}
	case view.TagEnvironment:
		return environmentTag(t.Name, t.Value, t.Default)
	case view.TagFormat:
		return &tracingv3.CustomTag{Tag: t.Name, Type: &tracingv3.CustomTag_Value{Value: t.Value}}
	case view.TagLiteral:
	}
	return &tracingv3.CustomTag{Tag: t.Name, Type: &tracingv3.CustomTag_Literal_{Literal: &tracingv3.CustomTag_Literal{Value: t.Value}}}
}

func environmentTag(tag, variable, otherwise string) *tracingv3.CustomTag {
	return &tracingv3.CustomTag{Tag: tag, Type: &tracingv3.CustomTag_Environment_{
		Environment: &tracingv3.CustomTag_Environment{Name: variable, DefaultValue: otherwise},
	}}
}

// operation names what the requests of a route are for, as Istio's spans do: HOST:PORT and the
// path that matches. Where the requests are split, it is the VirtualService's name.
func operation(p *view.Route, m *routev3.RouteMatch) *routev3.Decorator {
	path := "/*"
	switch of := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		path = of.Prefix + "*"
	case *routev3.RouteMatch_Path:
		path = of.Path
	case *routev3.RouteMatch_SafeRegex:
		path = of.SafeRegex.GetRegex()
	}
	host, port := p.Config.Name, p.Port
	if len(p.Destinations) == 1 && (p.Rule == nil || p.Rule.GetRedirect() == nil && p.Rule.GetDirectResponse() == nil) {
		host, port = string(p.Destinations[0].Cluster.Host), p.Destinations[0].Cluster.Port
	}
	return &routev3.Decorator{Operation: host + ":" + strconv.FormatUint(uint64(port), 10) + path}
}
