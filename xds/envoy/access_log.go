package envoy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	otellogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	withoutqueryv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/formatter/req_without_query/v3"
	otlpv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/xds/view"
)

// istioTextLog is the format of Istio's access log (pilot/pkg/model/telemetry_logging.go).
const istioTextLog = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
	`%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" %BYTES_RECEIVED% %BYTES_SENT% ` +
	`%DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" ` +
	`"%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% ` +
	`%DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%` + "\n"

// istioJSONLog are the keys of the same values in JSON.
func istioJSONLog() *structpb.Struct {
	out := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for key, format := range map[string]string{
		"authority": "%REQ(:AUTHORITY)%", "bytes_received": "%BYTES_RECEIVED%", "bytes_sent": "%BYTES_SENT%",
		"connection_termination_details": "%CONNECTION_TERMINATION_DETAILS%", "downstream_local_address": "%DOWNSTREAM_LOCAL_ADDRESS%",
		"downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%", "duration": "%DURATION%", "method": "%REQ(:METHOD)%",
		"path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%", "protocol": "%PROTOCOL%", "request_id": "%REQ(X-REQUEST-ID)%",
		"requested_server_name": "%REQUESTED_SERVER_NAME%", "response_code": "%RESPONSE_CODE%", "response_code_details": "%RESPONSE_CODE_DETAILS%",
		"response_flags": "%RESPONSE_FLAGS%", "route_name": "%ROUTE_NAME%", "start_time": "%START_TIME%", "upstream_cluster": "%UPSTREAM_CLUSTER_RAW%",
		"upstream_host": "%UPSTREAM_HOST%", "upstream_local_address": "%UPSTREAM_LOCAL_ADDRESS%",
		"upstream_service_time": "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%", "upstream_transport_failure_reason": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
		"user_agent": "%REQ(USER-AGENT)%", "x_forwarded_for": "%REQ(X-FORWARDED-FOR)%",
	} {
		out.Fields[key] = structpb.NewStringValue(format)
	}
	return out
}

// Names of logs of receivers whose provider has none, as Istio's.
const (
	httpLogName = "http_envoy_accesslog"
	tcpLogName  = "tcp_envoy_accesslog"
	otelLogName = "otel_envoy_accesslog"
)

// accessLogs are the access logs of a listener or filter chain. A filter, which may be nil, holds
// besides each log's own.
func accessLogs(t *view.Telemetry, filter *accesslogv3.AccessLogFilter) []*accesslogv3.AccessLog {
	if t == nil {
		return nil
	}
	var out []*accesslogv3.AccessLog
	for i := range t.AccessLogs {
		out = append(out, accessLog(&t.AccessLogs[i], filter))
	}
	return out
}

// listenerLogs are those of connections that match no filter chain, as in Istio. No chain writes
// a line about such a connection.
func listenerLogs(t *view.Telemetry) []*accesslogv3.AccessLog {
	if t == nil || !t.ListenerLogs {
		return nil
	}
	return accessLogs(t, &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}},
	}})
}

func accessLog(l *view.AccessLog, filter *accesslogv3.AccessLogFilter) *accesslogv3.AccessLog {
	out := &accesslogv3.AccessLog{Filter: filter}
	var config proto.Message
	switch {
	case l.File != nil:
		out.Name, config = "envoy.access_loggers.file", fileLog(l.File)
	case l.HTTP != nil:
		out.Name, config = "envoy.access_loggers.http_grpc", &grpclogv3.HttpGrpcAccessLogConfig{
			CommonConfig:                    logService(l, cmp.Or(l.HTTP.GetLogName(), httpLogName), l.HTTP.GetFilterStateObjectsToLog()),
			AdditionalRequestHeadersToLog:   l.HTTP.GetAdditionalRequestHeadersToLog(),
			AdditionalResponseHeadersToLog:  l.HTTP.GetAdditionalResponseHeadersToLog(),
			AdditionalResponseTrailersToLog: l.HTTP.GetAdditionalResponseTrailersToLog(),
		}
	case l.TCP != nil:
		out.Name, config = "envoy.tcp_grpc_access_log", &grpclogv3.TcpGrpcAccessLogConfig{
			CommonConfig: logService(l, cmp.Or(l.TCP.GetLogName(), tcpLogName), l.TCP.GetFilterStateObjectsToLog()),
		}
	default:
		out.Name, config = "envoy.access_loggers.open_telemetry", openTelemetryLog(l)
	}
	out.ConfigType = &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(config)}
	if l.Filter != "" {
		out.Filter = bothFilters(filter, celFilter(l.Filter))
	}
	return out
}

func bothFilters(a, b *accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{
		AndFilter: &accesslogv3.AndFilter{Filters: []*accesslogv3.AccessLogFilter{a, b}},
	}}
}

func celFilter(expression string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name:       "envoy.access_loggers.extension_filters.cel",
			ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: pack(&celv3.ExpressionFilter{Expression: expression})},
		},
	}}
}

func fileLog(f *view.FileLog) *filev3.FileAccessLog {
	format := &corev3.SubstitutionFormatString{OmitEmptyValues: f.OmitEmptyValues}
	if f.JSON != nil {
		fields := f.JSON
		if len(fields.GetFields()) == 0 {
			fields = istioJSONLog()
		}
		format.Format = &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: fields}
		// Not sorted, as in Istio: Envoy's order of an unsorted object is its own.
		format.JsonFormatOptions = &corev3.JsonFormatOptions{}
		format.Formatters = formatters(formatsIn(structpb.NewStructValue(fields))...)
	} else {
		text := f.Text
		switch {
		case text == "":
			text = istioTextLog
		case !strings.HasSuffix(text, "\n"):
			text += "\n"
		}
		format.Format = &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: text},
		}}
		format.Formatters = formatters(text)
	}
	return &filev3.FileAccessLog{Path: f.Path, AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: format}}
}

// formatters are the extensions that formats need.
func formatters(formats ...string) []*corev3.TypedExtensionConfig {
	if !slices.ContainsFunc(formats, func(f string) bool { return strings.Contains(f, "%REQ_WITHOUT_QUERY") }) {
		return nil
	}
	return []*corev3.TypedExtensionConfig{{
		Name: "envoy.formatter.req_without_query", TypedConfig: pack(&withoutqueryv3.ReqWithoutQuery{}),
	}}
}

// formatsIn are all formats in a value.
func formatsIn(v *structpb.Value) []string {
	var out []string
	switch of := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		out = append(out, of.StringValue)
	case *structpb.Value_ListValue:
		for _, e := range of.ListValue.GetValues() {
			out = append(out, formatsIn(e)...)
		}
	case *structpb.Value_StructValue:
		for _, e := range of.StructValue.GetFields() {
			out = append(out, formatsIn(e)...)
		}
	}
	return out
}

// logService is how an access log service is reached.
func logService(l *view.AccessLog, name string, state []string) *grpclogv3.CommonGrpcAccessLogConfig {
	return &grpclogv3.CommonGrpcAccessLogConfig{
		LogName: name, GrpcService: collector(l.Collector), TransportApiVersion: corev3.ApiVersion_V3, FilterStateObjectsToLog: state,
	}
}

func collector(c view.Collector) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: nameOf(c.Cluster), Authority: string(c.Host)},
	}}
}

func openTelemetryLog(l *view.AccessLog) *otellogv3.OpenTelemetryAccessLogConfig {
	p := l.OpenTelemetry
	name, text := cmp.Or(p.GetLogName(), otelLogName), cmp.Or(p.GetLogFormat().GetText(), istioTextLog)
	out := &otellogv3.OpenTelemetryAccessLogConfig{
		DisableBuiltinLabels: true,
		Body:                 &otlpv1.AnyValue{Value: &otlpv1.AnyValue_StringValue{StringValue: text}},
	}
	if l.OldForm {
		out.CommonConfig = logService(l, name, nil) //nolint:staticcheck // the only form that Envoy 1.36 knows
	} else {
		out.LogName, out.GrpcService = name, collector(l.Collector)
	}
	formats := []string{text}
	if labels := p.GetLogFormat().GetLabels().GetFields(); len(labels) > 0 {
		out.Attributes = &otlpv1.KeyValueList{}
		for _, key := range slices.Sorted(maps.Keys(labels)) {
			value := labels[key].GetStringValue()
			formats = append(formats, value)
			out.Attributes.Values = append(out.Attributes.Values, &otlpv1.KeyValue{
				Key: key, Value: &otlpv1.AnyValue{Value: &otlpv1.AnyValue_StringValue{StringValue: value}},
			})
		}
	}
	out.Formatters = formatters(formats...)
	return out
}
