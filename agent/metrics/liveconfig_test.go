package metrics

import (
	"fmt"
	"strings"
)

// indent indents all lines.
func indent(n int, s string) string {
	return strings.Repeat(" ", n) + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n"+strings.Repeat(" ", n)) + "\n"
}

func httpListener(name string, port int, action, log, tls string) string {
	return indent(0, fmt.Sprintf(`- name: %s
  address: {socket_address: {address: 127.0.0.1, port_value: %d}}
  filter_chains:
  - filters:
    - name: envoy.filters.network.http_connection_manager
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: %s;
        route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /none}, direct_response: {status: 503}}, {match: {prefix: /}, %s}]}]}
        http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
        access_log:
`, name, port, name, action)) + indent(8, log) + tls
}

func tcpListener(name string, port int, to string, side reporter, tls string) string {
	return fmt.Sprintf(`- name: %s
  address: {socket_address: {address: 127.0.0.1, port_value: %d}}
  filter_chains:
  - filters:
    - name: envoy.filters.network.tcp_proxy
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
        stat_prefix: %s
        cluster: %s
        access_log_options: {flush_access_log_on_connected: true, access_log_flush_interval: 1s}
        access_log:
`, name, port, name, to) + indent(8, grpcLog("tcp_grpc", "TcpGrpcAccessLogConfig", side, "")) + tls
}

func grpcLog(name, kind string, side reporter, more string) string {
	return fmt.Sprintf(`- name: envoy.access_loggers.%s
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.%s
    common_config:
      log_name: istio/%s
      transport_api_version: V3
      grpc_service: {envoy_grpc: {cluster_name: als-grpc}}
      buffer_flush_interval: 1s
      custom_tags:
      - {tag: peer, metadata: {kind: {host: {}}, metadata_key: {key: istio, path: [{key: workload}]}}}
      - {tag: service, metadata: {kind: {cluster: {}}, metadata_key: {key: fairlead, path: [{key: service}]}}}
`, name, kind, side) + more
}

// httpLog is the logger of a connection manager: Envoy's own counters, or the access log service
// where an Envoy has none.
func httpLog(minor, maxCounters int, side reporter) string {
	if minor < 37 {
		return grpcLog("http_grpc", "HttpGrpcAccessLogConfig", side, "    additional_request_headers_to_log: [content-type]\n")
	}
	scope := "stat_prefix: istio"
	if minor >= 39 {
		scope = fmt.Sprintf("stats_scope: {prefix: istio, sharing_name: istio, enable_eviction: true, max_counters: %d, max_histograms: 6000}", maxCounters)
	}
	peer, principal := "%UPSTREAM_METADATA(istio:workload)%", "%UPSTREAM_PEER_URI_SAN%"
	if side == destination {
		peer, principal = "%DOWNSTREAM_PEER_SUBJECT%", "%DOWNSTREAM_PEER_URI_SAN%"
	}
	tags := fmt.Sprintf(`tags: [{name: reporter, value_format: %s}, {name: peer, value_format: "%s"}, {name: peer_principal, value_format: "%s"}, `+
		`{name: service, value_format: "%%CLUSTER_METADATA(fairlead:service)%%"}, {name: response_code, value_format: "%%RESPONSE_CODE%%"}, `+
		`{name: response_flags, value_format: "%%RESPONSE_FLAGS%%"}, {name: grpc_response_status, value_format: "%%GRPC_STATUS_NUMBER%%"}]`, side, peer, principal)
	return fmt.Sprintf(`- name: envoy.access_loggers.stats
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.stats.v3.Config
    %[1]s
    counters: [{stat: {name: requests_total, %[2]s}, value_fixed: 1}]
    histograms:
    - {stat: {name: request_duration_milliseconds, %[2]s}, unit: Milliseconds, value_format: "%%DURATION%%"}
    - {stat: {name: request_bytes, %[2]s}, unit: Bytes, value_format: "%%DOWNSTREAM_WIRE_BYTES_RECEIVED%%"}
    - {stat: {name: response_bytes, %[2]s}, unit: Bytes, value_format: "%%DOWNSTREAM_WIRE_BYTES_SENT%%"}
`, scope, tags)
}

func cluster(name string, port int, tls string) string {
	return fmt.Sprintf(`- name: %[1]s
  connect_timeout: 5s
  metadata: {filter_metadata: {fairlead: {service: "%[1]s.shop;%[1]s;shop"}}}
  load_assignment:
    cluster_name: %[1]s
    endpoints:
    - lb_endpoints:
      - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[2]d}}}
        metadata: {filter_metadata: {istio: {workload: "%[1]s-v1;shop;%[1]s;v1;vms"}}}
`, name, port) + tls
}

func serverTLS(dir string) string {
	return indent(4, fmt.Sprintf(`transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
    require_client_certificate: true
    common_tls_context: {tls_certificates: [{certificate_chain: {filename: %[1]s/server.crt}, private_key: {filename: %[1]s/server.key}}], validation_context: {trusted_ca: {filename: %[1]s/root.crt}}}
`, dir))
}

func clientTLS(dir string) string {
	return indent(2, fmt.Sprintf(`transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
    common_tls_context: {tls_certificates: [{certificate_chain: {filename: %[1]s/client.crt}, private_key: {filename: %[1]s/client.key}}], validation_context: {trusted_ca: {filename: %[1]s/root.crt}}}
`, dir))
}
