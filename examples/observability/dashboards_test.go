package observability

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the dashboards anew")

// dashboard is one dashboard of Grafana.
type dashboard struct {
	file, title, about string
	variables          []variable
	rows               []row
}

// variable is a variable of a dashboard, whose values a query has.
type variable struct {
	name, label, query string
	all                bool
}

type row struct {
	title  string
	panels []panel
}

// panel is one panel. An empty kind is a graph over time; a stat has the value of now, and a table
// the values of now by labels.
type panel struct {
	kind, title, about, unit string
	// bad is the value from which a stat is red; 0 means never. With less, it is red below it.
	bad     float64
	less    bool
	queries []query
}

type query struct{ expr, legend string }

const (
	stat  = "stat"
	table = "table"
)

// one is a single query whose labels tell its lines apart.
func one(expr, legend string) []query { return []query{{expr, legend}} }

// quantiles are the median, and what one in ten and one in a hundred take longer than.
func quantiles(metric, matchers, by string) (out []query) {
	labels, legend := "le", ""
	if by != "" {
		labels, legend = "le, "+by, " {{"+by+"}}"
	}
	for _, q := range [][2]string{{"0.5", "p50"}, {"0.9", "p90"}, {"0.99", "p99"}} {
		out = append(out, query{"histogram_quantile(" + q[0] + ", sum by (" + labels + ") (rate(" + metric + "_bucket" + matchers + "[$__rate_interval])))", q[1] + legend})
	}
	return out
}

// sum is the sum of a counter's rates, by labels.
func sum(by, metric, matchers string) string {
	if by != "" {
		by = "by (" + by + ") "
	}
	return "sum " + by + "(rate(" + metric + matchers + "[$__rate_interval]))"
}

// successes is the share of requests that did not fail at the server.
func successes(by, matchers string) string {
	good := strings.TrimSuffix(matchers, "}") + `, response_code!~"5..|0"}`
	return sum(by, "istio_requests_total", good) + " / " + sum(by, "istio_requests_total", matchers)
}

func dashboards() []dashboard {
	return []dashboard{controlPlane(), meshDashboard(), service(), workload()}
}

func controlPlane() dashboard {
	const (
		at      = `{instance=~"$server"}`
		process = `{instance=~"$server", job="fairlead"}`
	)
	return dashboard{
		file: "fairlead-control-plane.json", title: "Fairlead control plane", about: "What needs a person, and what the control plane does.",
		variables: []variable{{name: "server", label: "Server", query: "label_values(fairlead_snapshot_generation, instance)", all: true}},
		rows: []row{
			{"Needs a person", []panel{
				{kind: stat, title: "Conditions", about: "What `fairlead proxy-status` lists below UNWELL.", bad: 1, queries: one("sum(fairlead_mesh_unwell"+at+")", "")},
				{kind: stat, title: "Connected proxies", queries: one("sum(pilot_xds"+at+")", "")},
				{kind: stat, title: "Hosts that do not answer", about: "Prometheus cannot scrape them.", bad: 1, queries: one(`count(up{job="fairlead-hosts"} == 0) or vector(0)`, "")},
				{kind: stat, title: "Hosts without a control plane", about: "They serve their last configuration.", bad: 1, queries: one("count(fairlead_agent_connected == 0) or vector(0)", "")},
				{kind: stat, title: "Removals on hold", about: "`fairlead release SOURCE` confirms them.", bad: 1, queries: one("sum(fairlead_source_held_removals"+at+")", "")},
				{kind: stat, title: "The authority ends in", unit: "s", bad: 90 * 86400, less: true, queries: one("min(citadel_server_root_cert_expiry_timestamp"+at+") - time()", "")},
				{title: "Conditions by reason", about: "Since when, and which: the reasons are those of `fairlead proxy-status`.", queries: one("sum by (reason) (fairlead_mesh_unwell"+at+")", "{{reason}}")},
				{title: "Alerts that fire", queries: one(`count by (alertname) (ALERTS{alertstate="firing"}) or vector(0)`, "{{alertname}}")},
				{title: "Hosts that are refused", about: "Hosts that are refused, claim what is another's, or share a key.", queries: []query{
					{"sum(fairlead_refused_peers" + at + ")", "refused"}, {"sum(fairlead_claim_conflicts" + at + ")", "claims"}, {"sum(fairlead_shared_host_keys" + at + ")", "shared keys"},
				}},
			}},
			{"Sources", []panel{
				{title: "Sources that can be read", about: "0: the last known content stays in force.", queries: one("min by (source) (fairlead_source_available"+at+")", "{{source}}")},
				{title: "Objects in force", queries: one("sum by (source) (fairlead_source_objects"+at+")", "{{source}}")},
				{title: "Faults in manifests", queries: one("sum by (source, severity) (fairlead_source_faults"+at+")", "{{source}} {{severity}}")},
				{title: "Last good versions in force", about: "Broken objects, of which the version before is in force.", queries: one("sum by (source) (fairlead_source_kept_objects"+at+")", "{{source}}")},
				{title: "Changes of the mesh", unit: "ops", queries: one(sum("instance", "fairlead_snapshot_generation", at), "{{instance}}")},
				{title: "State that is not on disk", queries: one("sum by (source) (fairlead_source_unsaved"+at+")", "{{source}}")},
			}},
			{"Proxies", []panel{
				{title: "From a change to the last answer", about: "Until a proxy has acknowledged all of it.", unit: "s", queries: quantiles("pilot_proxy_convergence_time", at, "")},
				{title: "From a change to the first response", unit: "s", queries: quantiles("pilot_xds_push_time", at, "")},
				{title: "Proxies by release of Envoy", queries: one("sum by (version) (pilot_xds"+at+")", "{{version}}")},
				{title: "Responses sent", unit: "ops", queries: one(sum("type", "pilot_xds_pushes", at), "{{type}}")},
				{title: "Bytes sent", unit: "Bps", queries: one(sum("type", "fairlead_xds_bytes_sent_total", at), "{{type}}")},
				{title: "Proxies that reject resources now", queries: []query{
					{"sum(pilot_xds_cds_reject" + at + ")", "cds"},
					{"sum(pilot_xds_eds_reject" + at + ")", "eds"},
					{"sum(pilot_xds_lds_reject" + at + ")", "lds"},
					{"sum(pilot_xds_rds_reject" + at + ")", "rds"},
					{"sum(pilot_xds_ecds_reject" + at + ")", "ecds"},
					{"sum(pilot_xds_pcds_reject" + at + ")", "ProxyConfig"},
				}},
				{title: "Configurations that could not be built", about: "A bug: the proxy keeps its previous configuration.", unit: "ops", queries: one(sum("instance", "pilot_total_xds_internal_errors", at), "{{instance}}")},
				{title: "Resources built", about: "Each counts once, for all proxies that have it.", unit: "ops", queries: one(sum("type", "fairlead_xds_resources_built_total", at), "{{type}}")},
				{title: "Proxies looked at after a change", unit: "ops", queries: one(sum("result", "fairlead_xds_views_total", at), "{{result}}")},
			}},
			{"Identities and clocks", []panel{
				{title: "Certificates", unit: "ops", queries: []query{
					{sum("", "citadel_server_csr_count", at), "requests"}, {sum("", "citadel_server_success_cert_issuance_count", at), "issued"},
				}},
				{title: "Requests that were refused", unit: "ops", queries: []query{
					{sum("", "citadel_server_authentication_failure_count", at), "not authenticated"},
					{sum("", "citadel_server_id_extraction_err_count", at), "not entitled"},
					{sum("", "citadel_server_csr_parsing_err_count", at), "malformed"},
				}},
				{title: "Clocks", about: "1: nothing is signed, or the server's clock was set. `fairlead clock` says more.", queries: []query{
					{"max(fairlead_signing_on_hold" + at + ")", "signing on hold"}, {"max(fairlead_clock_alarm" + at + ")", "alarm"},
				}},
				{title: "Certificates of hosts: time left", about: "The ten that end first.", unit: "s", queries: one("bottomk(10, min by (host, resource_name) (istio_agent_cert_expiry_timestamp - time()))", "{{host}} {{resource_name}}")},
				{title: "Key sets of issuers", queries: one("sum by (state) (fairlead_jwks_key_sets"+at+")", "{{state}}")},
			}},
			{"Limits and process", []panel{
				{title: "Connections", queries: one("sum by (state) (fairlead_connections"+at+")", "{{state}}")},
				{title: "Refused because of a limit", about: "The log names the limit and the hosts.", unit: "ops", queries: []query{
					{sum("", "fairlead_xds_limited_streams_total", at), "streams"},
					{sum("", "fairlead_refused_connections_total", at), "connections"},
					{sum("reason", "fairlead_dropped_connections_total", at), "before authentication: {{reason}}"},
				}},
				{title: "Proxies that do not read", unit: "ops", queries: one(sum("instance", "fairlead_xds_slow_streams_total", at), "{{instance}}")},
				{title: "CPU", about: "Cores.", queries: one(sum("instance", "process_cpu_seconds_total", process), "{{instance}}")},
				{title: "Memory", unit: "bytes", queries: []query{
					{"sum by (instance) (process_resident_memory_bytes" + process + ")", "resident {{instance}}"},
					{"sum by (instance) (go_memstats_heap_inuse_bytes" + process + ")", "heap {{instance}}"},
				}},
				{title: "Goroutines", queries: one("sum by (instance) (go_goroutines"+process+")", "{{instance}}")},
			}},
		},
	}
}

func meshDashboard() dashboard {
	const (
		sent   = `{reporter="source"}`
		failed = `{reporter="source", response_flags!="-"}`
		server = "destination_service"
	)
	return dashboard{
		file: "fairlead-mesh.json", title: "Fairlead mesh", about: "All services, as their clients see them.",
		rows: []row{
			{"Requests", []panel{
				{kind: stat, title: "Requests", unit: "reqps", queries: one(sum("", "istio_requests_total", sent), "")},
				{kind: stat, title: "Success", about: "Requests without an answer count as failed.", unit: "percentunit", bad: 0.99, less: true, queries: one(successes("", sent), "")},
				{kind: stat, title: "5xx", unit: "reqps", queries: one(sum("", "istio_requests_total", `{reporter="source", response_code=~"5..|0"}`)+" or vector(0)", "")},
				{kind: stat, title: "4xx", unit: "reqps", queries: one(sum("", "istio_requests_total", `{reporter="source", response_code=~"4.."}`)+" or vector(0)", "")},
				{kind: stat, title: "p99", unit: "ms", queries: quantiles("istio_request_duration_milliseconds", sent, "")[2:]},
				{kind: stat, title: "TCP connections opened", unit: "ops", queries: one(sum("", "istio_tcp_connections_opened_total", sent), "")},
				{title: "Services that fail", about: "Answers of 5xx, and requests without an answer.", unit: "reqps", queries: one("topk(10, "+sum(server, "istio_requests_total", `{reporter="source", response_code=~"5..|0"}`)+")", "{{destination_service}}")},
				{title: "Why, as Envoy says it", about: "Response flags: UF could not connect, UH no healthy host, UO circuit breaker, NR no route, URX retries used up, DC the client left, FI an injected fault.", unit: "reqps", queries: one(sum("response_flags", "istio_requests_total", failed), "{{response_flags}}")},
				{title: "Whose requests fail", unit: "reqps", queries: one("topk(10, "+sum("source_workload, destination_service", "istio_requests_total", failed)+")", "{{source_workload}} to {{destination_service}}")},
				{kind: table, title: "Services", queries: []query{
					{sum(server, "istio_requests_total", sent), "requests/s"},
					{successes(server, sent), "success"},
					quantiles("istio_request_duration_milliseconds", sent, server)[0], quantiles("istio_request_duration_milliseconds", sent, server)[2],
				}},
			}},
			{"TCP", []panel{
				{title: "Connections opened", unit: "ops", queries: one("topk(10, "+sum(server, "istio_tcp_connections_opened_total", sent)+")", "{{destination_service}}")},
				{title: "Connections that fail", unit: "ops", queries: one(sum("destination_service, response_flags", "istio_tcp_connections_opened_total", failed)+" or vector(0)", "{{destination_service}} {{response_flags}}")},
				{title: "Bytes to servers", unit: "Bps", queries: one("topk(10, "+sum(server, "istio_tcp_received_bytes_total", sent)+")", "{{destination_service}}")},
				{title: "Bytes from servers", unit: "Bps", queries: one("topk(10, "+sum(server, "istio_tcp_sent_bytes_total", sent)+")", "{{destination_service}}")},
			}},
			{"Security", []panel{
				{title: "Requests by mTLS", about: "As servers see them: none means plaintext.", unit: "reqps", queries: one(sum("connection_security_policy", "istio_requests_total", `{reporter="destination"}`), "{{connection_security_policy}}")},
				{title: "Servers that get plaintext", unit: "reqps", queries: one(sum("destination_workload_namespace, destination_workload", "istio_requests_total", `{reporter="destination", connection_security_policy!="mutual_tls"}`), "{{destination_workload}}.{{destination_workload_namespace}}")},
			}},
			{"Hosts", []panel{
				{title: "Hosts", queries: []query{
					{`count(up{job="fairlead-hosts"})`, "known"},
					{`sum(up{job="fairlead-hosts"})`, "answer"},
					{"sum(fairlead_agent_connected)", "connected to a control plane"},
					{"sum(istio_agent_envoy_running)", "with a running Envoy"},
				}},
				{title: "Hosts whose Envoy rejects resources", queries: one("count(fairlead_agent_rejected_resources > 0) or vector(0)", "")},
				{title: "Versions", queries: one("sum by (component, tag) (istio_build)", "{{component}} {{tag}}")},
				{title: "Not counted by label", about: "Series beyond a limit of the agent count as one, with the label overflow.", unit: "ops", queries: one(sum("host", "fairlead_agent_request_label_sets_overflowed_total", "")+" > 0 or vector(0)", "{{host}}")},
				{title: "Pages of metrics with a missing part", unit: "ops", queries: one(sum("part", "fairlead_agent_stats_failures_total", ""), "{{part}}")},
			}},
		},
	}
}

func service() dashboard {
	const (
		sent     = `{reporter="source", destination_service=~"$service"}`
		received = `{reporter="destination", destination_service=~"$service"}`
		failed   = `{reporter="source", destination_service=~"$service", response_flags!="-"}`
		duration = "istio_request_duration_milliseconds"
		server   = "destination_workload_namespace, destination_workload"
		client   = "source_workload_namespace, source_workload"
	)
	return dashboard{
		file: "fairlead-service.json", title: "Fairlead service", about: "One service, as its clients and its servers see it.",
		variables: []variable{{name: "service", label: "Service", query: `label_values({__name__=~"istio_requests_total|istio_tcp_connections_opened_total"}, destination_service)`}},
		rows: []row{
			{"Now", []panel{
				{kind: stat, title: "Requests", unit: "reqps", queries: one(sum("", "istio_requests_total", sent), "")},
				{kind: stat, title: "Success", about: "Requests without an answer count as failed.", unit: "percentunit", bad: 0.99, less: true, queries: one(successes("", sent), "")},
				{kind: stat, title: "p50", unit: "ms", queries: quantiles(duration, sent, "")[:1]},
				{kind: stat, title: "p99", unit: "ms", queries: quantiles(duration, sent, "")[2:]},
				{kind: stat, title: "TCP connections opened", unit: "ops", queries: one(sum("", "istio_tcp_connections_opened_total", sent), "")},
				{kind: stat, title: "Plaintext at servers", unit: "reqps", queries: one(sum("", "istio_requests_total", `{reporter="destination", destination_service=~"$service", connection_security_policy!="mutual_tls"}`)+" or vector(0)", "")},
			}},
			{"What fails", []panel{
				{title: "Success by client", unit: "percentunit", queries: one(successes(client, sent), "{{source_workload}}.{{source_workload_namespace}}")},
				{title: "Success by server", about: "The server that the client chose.", unit: "percentunit", queries: one(successes(server, sent), "{{destination_workload}}.{{destination_workload_namespace}}")},
				{title: "Why, as Envoy says it", about: "Response flags: UF could not connect, UH no healthy host, UO circuit breaker, NR no route, URX retries used up, DC the client left, FI an injected fault.", unit: "reqps", queries: one(sum("response_flags, response_code", "istio_requests_total", failed), "{{response_flags}} {{response_code}}")},
			}},
			{"Clients", []panel{
				{title: "Requests by client and code", unit: "reqps", queries: one(sum(client+", response_code", "istio_requests_total", sent), "{{source_workload}}.{{source_workload_namespace}} {{response_code}}")},
				{title: "Duration at clients", unit: "ms", queries: quantiles(duration, sent, "source_workload")},
				{title: "Requests by identity of the client", about: "The certificate that the server saw; unknown means plaintext.", unit: "reqps", queries: one(sum("source_principal", "istio_requests_total", received), "{{source_principal}}")},
			}},
			{"Servers", []panel{
				{title: "Requests by server and code", about: "As servers count them.", unit: "reqps", queries: one(sum(server+", response_code", "istio_requests_total", received), "{{destination_workload}}.{{destination_workload_namespace}} {{response_code}}")},
				{title: "Duration at servers", unit: "ms", queries: quantiles(duration, received, "destination_workload")},
				{title: "Requests by version", unit: "reqps", queries: one(sum("destination_version", "istio_requests_total", received), "{{destination_version}}")},
				{title: "gRPC status", unit: "reqps", queries: one(sum("grpc_response_status", "istio_requests_total", `{reporter="source", destination_service=~"$service", request_protocol="grpc"}`), "{{grpc_response_status}}")},
				{title: "Size of requests", unit: "bytes", queries: quantiles("istio_request_bytes", received, "")},
				{title: "Size of answers", unit: "bytes", queries: quantiles("istio_response_bytes", received, "")},
			}},
			{"TCP", []panel{
				{title: "Connections opened", unit: "ops", queries: one(sum(client, "istio_tcp_connections_opened_total", sent), "{{source_workload}}.{{source_workload_namespace}}")},
				{title: "Open connections", queries: one("sum by ("+client+") (istio_tcp_connections_opened_total"+sent+") - sum by ("+client+") (istio_tcp_connections_closed_total"+sent+")", "{{source_workload}}.{{source_workload_namespace}}")},
				{title: "Bytes", unit: "Bps", queries: []query{{sum("", "istio_tcp_received_bytes_total", sent), "to the service"}, {sum("", "istio_tcp_sent_bytes_total", sent), "from the service"}}},
			}},
		},
	}
}

func workload() dashboard {
	const (
		serves   = `{reporter="destination", destination_workload_namespace=~"$namespace", destination_workload=~"$workload"}`
		sends    = `{reporter="source", source_workload_namespace=~"$namespace", source_workload=~"$workload"}`
		failed   = `{reporter="source", source_workload_namespace=~"$namespace", source_workload=~"$workload", response_flags!="-"}`
		host     = `{namespace=~"$namespace", workload=~"$workload"}`
		duration = "istio_request_duration_milliseconds"
	)
	return dashboard{
		file: "fairlead-workload.json", title: "Fairlead workload", about: "One workload: what it serves, what it sends, its agent and its Envoy.",
		variables: []variable{
			{name: "namespace", label: "Namespace", query: "label_values(fairlead_agent_connected, namespace)"},
			{name: "workload", label: "Workload", query: `label_values(fairlead_agent_connected{namespace=~"$namespace"}, workload)`},
		},
		rows: []row{
			{"Now", []panel{
				{kind: stat, title: "Control plane connected", bad: 1, less: true, queries: one("min(fairlead_agent_connected"+host+")", "")},
				{kind: stat, title: "Envoy runs", bad: 1, less: true, queries: one("min(istio_agent_envoy_running"+host+")", "")},
				{kind: stat, title: "Resources that Envoy rejects", bad: 1, queries: one("sum(fairlead_agent_rejected_resources"+host+")", "")},
				{kind: stat, title: "Certificate ends in", unit: "s", bad: 3600, less: true, queries: one("min(istio_agent_cert_expiry_timestamp"+host+" - time())", "")},
				{kind: stat, title: "Served", unit: "reqps", queries: one(sum("", "istio_requests_total", serves)+" or vector(0)", "")},
				{kind: stat, title: "Sent", unit: "reqps", queries: one(sum("", "istio_requests_total", sends)+" or vector(0)", "")},
			}},
			{"Served", []panel{
				{title: "Requests by code", unit: "reqps", queries: one(sum("response_code", "istio_requests_total", serves), "{{response_code}}")},
				{title: "Requests by identity of the client", about: "unknown means plaintext.", unit: "reqps", queries: one(sum("source_principal", "istio_requests_total", serves), "{{source_principal}}")},
				{title: "Duration", unit: "ms", queries: quantiles(duration, serves, "")},
				{title: "Success by client", unit: "percentunit", queries: one(successes("source_principal", serves), "{{source_principal}}")},
				{title: "TCP connections opened", unit: "ops", queries: one(sum("source_principal", "istio_tcp_connections_opened_total", serves), "{{source_principal}}")},
				{title: "TCP bytes", unit: "Bps", queries: []query{{sum("", "istio_tcp_received_bytes_total", serves), "received"}, {sum("", "istio_tcp_sent_bytes_total", serves), "sent"}}},
			}},
			{"Sent", []panel{
				{title: "Requests by service and code", unit: "reqps", queries: one(sum("destination_service, response_code", "istio_requests_total", sends), "{{destination_service}} {{response_code}}")},
				{title: "What fails, and why", about: "Response flags of Envoy.", unit: "reqps", queries: one(sum("destination_service, response_flags", "istio_requests_total", failed), "{{destination_service}} {{response_flags}}")},
				{title: "Duration", unit: "ms", queries: quantiles(duration, sends, "destination_service")},
				{title: "Success by service", unit: "percentunit", queries: one(successes("destination_service", sends), "{{destination_service}}")},
				{title: "TCP connections opened", unit: "ops", queries: one(sum("destination_service", "istio_tcp_connections_opened_total", sends), "{{destination_service}}")},
				{title: "TCP bytes", unit: "Bps", queries: []query{{sum("", "istio_tcp_received_bytes_total", sends), "sent"}, {sum("", "istio_tcp_sent_bytes_total", sends), "received"}}},
			}},
			{"Agent and Envoy", []panel{
				{title: "Connected", queries: one("min by (host) (fairlead_agent_connected"+host+")", "{{host}}")},
				{title: "Certificates: time left", unit: "s", queries: one("min by (host, resource_name) (istio_agent_cert_expiry_timestamp"+host+" - time())", "{{host}} {{resource_name}}")},
				{title: "Envoy: time since its start", about: "It falls where Envoy was started again.", unit: "s", queries: one("min by (host) (envoy_server_uptime"+host+")", "{{host}}")},
				{title: "Envoy: memory", unit: "bytes", queries: one("max by (host) (envoy_server_memory_physical_size"+host+")", "{{host}}")},
				{title: "Agent: memory", unit: "bytes", queries: one("max by (host) (istio_agent_process_resident_memory_bytes"+host+")", "{{host}}")},
				{title: "Agent: CPU", about: "Cores.", queries: one(sum("host", "istio_agent_process_cpu_seconds_total", host), "{{host}}")},
				{title: "Label sets of metrics", about: "`--max-request-series` is the limit.", queries: one("max by (host) (fairlead_agent_request_label_sets"+host+")", "{{host}}")},
			}},
		},
	}
}

type object = map[string]any

// source is the variable that every panel reads from.
func source() object { return object{"type": "prometheus", "uid": "${datasource}"} }

// json is the dashboard as Grafana imports it.
func (d dashboard) json() ([]byte, error) {
	variables := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": object{}}}
	for _, v := range d.variables {
		variables = append(variables, object{
			"name": v.name, "label": v.label, "type": "query", "datasource": source(), "query": object{"query": v.query, "refId": v.name}, "refresh": 2, "sort": 1,
			"includeAll": v.all, "multi": v.all, "current": object{},
		})
	}
	panels, id, y := []object{}, 0, 0
	place := func(p object, x, w, h int) {
		id++
		p["id"], p["gridPos"] = id, object{"x": x, "y": y, "w": w, "h": h}
		panels = append(panels, p)
	}
	const width = 24
	for _, r := range d.rows {
		place(object{"type": "row", "title": r.title, "collapsed": false, "panels": []object{}}, 0, width, 1)
		y++
		x, high := 0, 0
		for _, p := range r.panels {
			w, h := p.size()
			if x+w > width || h != high && x > 0 {
				x, y = 0, y+high
			}
			place(p.json(), x, w, h)
			x, high = x+w, h
		}
		y += high
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(object{
		"uid": strings.TrimSuffix(d.file, ".json"), "title": d.title, "description": d.about, "tags": []string{"fairlead"}, "schemaVersion": 39, "editable": true,
		"time": object{"from": "now-1h", "to": "now"}, "refresh": "30s", "templating": object{"list": variables}, "panels": panels, "annotations": object{"list": []object{}},
	})
	return b.Bytes(), err
}

func (p panel) size() (w, h int) {
	switch p.kind {
	case stat:
		return 4, 4
	case table:
		return 24, 8
	default:
		return 8, 8
	}
}

func (p panel) json() object {
	var targets []object
	for i, q := range p.queries {
		t := object{"refId": string(rune('A' + i)), "datasource": source(), "expr": q.expr, "legendFormat": q.legend, "range": p.kind != table && p.kind != stat, "instant": p.kind == table || p.kind == stat}
		if p.kind == table {
			t["format"] = "table"
		}
		targets = append(targets, t)
	}
	steps := []object{{"color": "green", "value": nil}}
	if p.bad != 0 {
		steps = append(steps, object{"color": "red", "value": p.bad})
	}
	if p.less {
		steps = []object{{"color": "red", "value": nil}, {"color": "green", "value": p.bad}}
	}
	defaults := object{"unit": p.unit, "thresholds": object{"mode": "absolute", "steps": steps}}
	out := object{
		"title": p.title, "description": p.about, "datasource": source(), "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": []object{}},
	}
	switch p.kind {
	case stat:
		out["type"], out["options"] = "stat", object{"reduceOptions": object{"calcs": []string{"lastNotNull"}}, "colorMode": "value", "graphMode": "none"}
	case table:
		out["type"], out["transformations"] = "table", []object{
			{"id": "merge", "options": object{}}, {"id": "organize", "options": object{"excludeByName": object{"Time": true}, "renameByName": p.columns()}},
		}
	default:
		out["type"], out["options"] = "timeseries", object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi", "sort": "desc"}}
		defaults["min"], defaults["custom"] = 0, object{"fillOpacity": 10, "showPoints": "never"}
	}
	return out
}

// columns are the names of a table's columns of values.
func (p panel) columns() object {
	out := object{}
	for i, q := range p.queries {
		name, _, _ := strings.Cut(q.legend, " {{")
		out["Value #"+string(rune('A'+i))] = name
	}
	return out
}

// TestDashboardsAreAsTheyAreWritten: the files are what this package makes.
func TestDashboardsAreAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	want := []string{}
	for _, d := range dashboards() {
		path := filepath.Join("dashboards", d.file)
		want = append(want, path)
		made, err := d.json()
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(path, made, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(b), string(made)); diff != "" {
			t.Errorf("%s differs; run go test ./examples/observability -update:\n%s", path, diff)
		}
	}
	if files, _ := filepath.Glob("dashboards/*"); cmp.Diff(want, files) != "" {
		t.Errorf("dashboards/ has %v", files)
	}
}
