package envoy

import (
	"cmp"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	statslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/xds/view"
)

// The names by which agents know what Envoy counts and sends: see agent/metrics.
const (
	metricsPrefix = "istio"
	withoutLabel  = "fairlead_removed"
	workloadKey   = "workload" // of endpoints, in the namespace "istio", as Istio's
	serviceKey    = "service"  // of clusters, in the namespace "fairlead"
)

// alsCluster is a static cluster of the bootstrap: the agent's access log service.
const alsCluster = "als-grpc"

// Limits of the series of one Envoy. What is over is not counted by it; its agent says so.
const (
	maxCounters   = 4000
	maxHistograms = 6000
)

// defaultReportInterval is how often agents get what open connections have sent.
const defaultReportInterval = 5 * time.Second

// reporter is Istio's label of that name.
func reporter(inbound bool) string {
	if inbound {
		return "destination"
	}
	return "source"
}

// requestLogs count requests.
func requestLogs(t *view.Telemetry, inbound bool) []*accesslogv3.AccessLog {
	if t == nil || t.Metrics == nil || len(t.Metrics.Requests) == 0 {
		return nil
	}
	if t.Metrics.Form == view.MetricsByAgent {
		return []*accesslogv3.AccessLog{{
			Name: "envoy.access_loggers.http_grpc",
			ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(&grpclogv3.HttpGrpcAccessLogConfig{
				CommonConfig: agentLog(inbound, t.Metrics.Requests[0].Without), AdditionalRequestHeadersToLog: []string{"content-type"},
				AdditionalResponseHeadersToLog: []string{"grpc-status"}, AdditionalResponseTrailersToLog: []string{"grpc-status"},
			})},
		}}
	}
	config := &statslogv3.Config{}
	if t.Metrics.Form == view.MetricsByPrefix {
		config.StatPrefix = metricsPrefix //nolint:staticcheck // the only form of Envoy 1.37 and 1.38
	} else {
		config.StatsScope = &typev3.Scope{
			Prefix: metricsPrefix, SharingName: metricsPrefix, EnableEviction: true,
			MaxCounters: wrapperspb.UInt32(maxCounters), MaxHistograms: wrapperspb.UInt32(maxHistograms),
		}
	}
	for i := range t.Metrics.Requests {
		m := &t.Metrics.Requests[i]
		stat := &statslogv3.Config_Stat{Name: m.Name, Tags: metricTags(m, inbound)}
		switch m.Name {
		case "requests_total":
			config.Counters = append(config.Counters, &statslogv3.Config_Counter{Stat: stat, ValueFixed: wrapperspb.UInt64(1)})
		case "request_duration_milliseconds":
			config.Histograms = append(config.Histograms, &statslogv3.Config_Histogram{Stat: stat, Unit: statslogv3.Config_Histogram_Milliseconds, ValueFormat: "%DURATION%"})
		case "request_bytes":
			config.Histograms = append(config.Histograms, &statslogv3.Config_Histogram{Stat: stat, Unit: statslogv3.Config_Histogram_Bytes, ValueFormat: "%DOWNSTREAM_WIRE_BYTES_RECEIVED%"})
		case "response_bytes":
			config.Histograms = append(config.Histograms, &statslogv3.Config_Histogram{Stat: stat, Unit: statslogv3.Config_Histogram_Bytes, ValueFormat: "%DOWNSTREAM_WIRE_BYTES_SENT%"})
		}
	}
	return []*accesslogv3.AccessLog{{
		Name: "envoy.access_loggers.stats", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(config)},
	}}
}

// metricTags are the labels that Envoy gives a metric. Of the other workload it knows what the
// control plane wrote at the endpoint, and at the server what the client's certificate says.
func metricTags(m *view.RequestMetric, inbound bool) []*statslogv3.Config_Tag {
	peer, principal := "%UPSTREAM_METADATA(istio:workload)%", "%UPSTREAM_PEER_URI_SAN%"
	if inbound {
		peer, principal = "%DOWNSTREAM_PEER_SUBJECT%", "%DOWNSTREAM_PEER_URI_SAN%"
	}
	tags := []*statslogv3.Config_Tag{
		{Name: "reporter", ValueFormat: reporter(inbound)},
		{Name: "peer", ValueFormat: peer},
		{Name: "peer_principal", ValueFormat: principal},
		{Name: "service", ValueFormat: "%CLUSTER_METADATA(fairlead:service)%"},
		{Name: "response_code", ValueFormat: "%RESPONSE_CODE%"},
		{Name: "response_flags", ValueFormat: "%RESPONSE_FLAGS%"},
		{Name: "grpc_response_status", ValueFormat: "%GRPC_STATUS_NUMBER%"},
	}
	for _, l := range m.Labels {
		replaced := false
		for _, t := range tags {
			if t.GetName() == l.Name {
				t.ValueFormat, replaced = l.Format, true
			}
		}
		if !replaced {
			tags = append(tags, &statslogv3.Config_Tag{Name: l.Name, ValueFormat: l.Format})
		}
	}
	if len(m.Without) > 0 {
		tags = append(tags, &statslogv3.Config_Tag{Name: withoutLabel, ValueFormat: strings.Join(m.Without, ",")})
	}
	return tags
}

// countConnections has the agent count the connections of a TCP proxy. Envoy's logger that counts
// cannot: it would add what a connection has sent up to each line.
func countConnections(to *tcpv3.TcpProxy, t *view.Telemetry, inbound bool) {
	if t == nil || t.Metrics == nil || !t.Metrics.Connections {
		return
	}
	to.AccessLogOptions = &tcpv3.TcpProxy_TcpAccessLogOptions{
		FlushAccessLogOnConnected: true, AccessLogFlushInterval: durationpb.New(cmp.Or(t.Metrics.Interval, defaultReportInterval)),
	}
	// With these options Envoy writes a line when a connection begins, and then in intervals. Other
	// logs are about the end.
	for _, log := range to.GetAccessLog() {
		log.Filter = bothFilters(atEnd(), log.GetFilter())
	}
	to.AccessLog = append(to.AccessLog, &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.tcp_grpc",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(&grpclogv3.TcpGrpcAccessLogConfig{
			CommonConfig: agentLog(inbound, t.Metrics.Without),
		})},
	})
}

func atEnd() *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{
		LogTypeFilter: &accesslogv3.LogTypeFilter{Types: []datav3.AccessLogType{datav3.AccessLogType_TcpConnectionEnd}},
	}}
}

// agentLog sends an access log to the agent.
func agentLog(inbound bool, without []string) *grpclogv3.CommonGrpcAccessLogConfig {
	tags := []*tracingv3.CustomTag{
		metadataTag("peer", &metadatav3.MetadataKind{Kind: &metadatav3.MetadataKind_Host_{Host: &metadatav3.MetadataKind_Host{}}}, "istio", workloadKey),
		metadataTag("service", &metadatav3.MetadataKind{Kind: &metadatav3.MetadataKind_Cluster_{Cluster: &metadatav3.MetadataKind_Cluster{}}}, "fairlead", serviceKey),
	}
	if len(without) > 0 {
		tags = append(tags, &tracingv3.CustomTag{Tag: withoutLabel, Type: &tracingv3.CustomTag_Literal_{Literal: &tracingv3.CustomTag_Literal{Value: strings.Join(without, ",")}}})
	}
	return &grpclogv3.CommonGrpcAccessLogConfig{
		LogName: "istio/" + reporter(inbound), TransportApiVersion: corev3.ApiVersion_V3, BufferFlushInterval: durationpb.New(time.Second), CustomTags: tags,
		GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: alsCluster}}},
	}
}

func metadataTag(name string, kind *metadatav3.MetadataKind, namespace, key string) *tracingv3.CustomTag {
	return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_Metadata_{Metadata: &tracingv3.CustomTag_Metadata{
		Kind: kind, MetadataKey: &metadatav3.MetadataKey{Key: namespace, Path: []*metadatav3.MetadataKey_PathSegment{{
			Segment: &metadatav3.MetadataKey_PathSegment_Key{Key: key},
		}}},
	}}}
}

// serviceMetadata says whose cluster it is: in Istio's form, and as one text, because Envoy's
// formats print lists as JSON.
func serviceMetadata(s *view.ReportedService) *corev3.Metadata {
	if s == nil {
		return nil
	}
	text := structpb.NewStringValue
	service := &structpb.Struct{Fields: map[string]*structpb.Value{
		"host": text(string(s.Host)), "name": text(s.Name), "namespace": text(s.Namespace),
	}}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"istio":    {Fields: map[string]*structpb.Value{"services": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStructValue(service)}})}},
		"fairlead": {Fields: map[string]*structpb.Value{serviceKey: text(string(s.Host) + ";" + s.Name + ";" + s.Namespace)}},
	}}
}
