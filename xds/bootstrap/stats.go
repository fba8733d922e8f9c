package bootstrap

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// statsEviction is the interval at which Envoy forgets counters of requests that did not change
// since the one before. It is a multiple of the interval in which Envoy adds up its workers'
// statistics, 5 s, as Envoy requires.
const statsEviction = 10 * time.Minute

// statPrefixes begin the names of statistics about the Envoy itself: a few for each host.
// "istio" and "reporter=" are for metrics of requests with Istio's names.
func statPrefixes() []string {
	return []string{
		"cluster." + XDSCluster + ";", "cluster." + SDSCluster + ";", "cluster." + ALSCluster + ";", "cluster_manager.", "component", "control_plane.",
		"istio", "listener_manager.", "overload.", "reporter=", "sds.", "server.", "wasm",
	}
}

// statPatterns select statistics of clusters, listeners and connection managers. An Envoy
// has hundreds for each of them, and a mesh has thousands of clusters: these are the few by
// which people see what is wrong. The statistics of requests and connections to a cluster
// exist from the first use of the cluster on.
func statPatterns() []string {
	join := func(names ...string) string { return "(?:" + strings.Join(names, "|") + ")" }
	return []string{
		`cluster\..+;\.` + join(
			`membership_healthy`, `outlier_detection\.ejections_(?:active|enforced_total)`,
			`upstream_cx_(?:active|total|connect_fail|connect_timeout|destroy_remote_with_active_rq|overflow|rx_bytes_total|tx_bytes_total)`,
			`upstream_rq_(?:active|total|[1-5]xx|[1-5]\d\d|time|timeout|per_try_timeout|retry|retry_overflow|retry_limit_exceeded|pending_overflow|active_overflow|max_duration_reached|rx_reset|tx_reset)`,
			`ssl\.(?:connection_error|fail_verify_[a-z_]+|handshake)`, `grpc\.(?:total|success|failure|\d+)`,
		),
		`http\..+;\.` + join(
			`downstream_cx_(?:active|total|protocol_error|overload_reject)`,
			`downstream_rq_(?:active|total|[1-5]xx|timeout|header_timeout|rx_reset|tx_reset|overload_close)`, `no_route`, `no_cluster`,
		),
		// The time at clients is that of their clusters.
		`http\.inbound_.+;\.downstream_rq_time`,
		`tcp\.[Ii]nbound.+\.` + join(`downstream_cx_(?:total|rx_bytes_total|tx_bytes_total)`),
		// By it the agent notices connections that were not reported to it.
		`tcp\..+\.downstream_cx_total`,
		// Without those of each worker, which are parts of the sum.
		`listener\.(?:[0-9a-fA-F_.:\[\]]+|/.+)\.` + join(
			`downstream_cx_(?:active|total|overflow|overload_reject)`, `downstream_global_cx_overflow`, `no_filter_chain_match`,
			`ssl\.(?:connection_error|fail_verify_[a-z_]+|handshake|no_certificate)`,
		),
		`.*rbac\.(?:.+\.)?(?:shadow_)?(?:allowed|denied)`,
		`.*\.update_rejected`,
		// What a collector did not take.
		`access_logs\.\w+\.logs_dropped`, `tracing\.\w+\.(?:reports|segments)_dropped`,
		`vhost\..+\.route\..+`, // routes with a name for their statistics
	}
}

// statTags say which part of a statistic's name becomes a label, as in Istio. The first
// group is cut out of the name, the second is the value. The control plane ends the names of
// clusters and connection managers in ";" because they have dots.
func statTags() []struct{ name, regex string } {
	return []struct{ name, regex string }{
		{"cluster_name", `^cluster\.((.+?);\.)`},
		{"http_conn_manager_prefix", `^http\.((.+?);\.)`},
		{"http_conn_manager_listener_prefix", `^listener\..+?\.http\.((.+?);\.)`},
		{"route_config", `^http\..+?;\.(?:rds|vhds)\.((.+)\.)\w+$`},
		{"extension_config", `^extension_config_discovery\.\w+\.((.+)\.)\w+$`},
		{"listener_address", `^listener\.(([0-9a-fA-F_.:\[\]]+|/.+?)\.)(?:connection|downstream|extension|http|network_extension|no_filter|server_ssl|ssl|worker)`},
		{"tcp_prefix", `^tcp\.((.+)\.)\w+$`},
		{"mongo_prefix", `^mongo\.((.+?)\.)(?:collection|cmd|cx_|op_|delays_|decoding_)`},
		{"virtual_host", `^vhost\.((.+?)\.)(?:route|vcluster)\.`},
		{"route", `^vhost\..+?\.route\.((.+?)\.)\w+$`},
		{"secret_name", `^sds\.((.+)\.)\w+$`},
		{"response_code", `_rq(_(\d{3}))$`},
		{"response_code_class", `_rq(_(\dxx))$`},
		{"grpc_response_status", `;\.grpc(\.(\d+))$`},
		{"thread_name", `^server\.((.+)\.)watchdog`},
		{"cache", `(cache\.(.+?)\.)`},
		{"component", `(component\.(.+?)\.)`},
		{"tag", `(tag\.(.+?);\.)`},
		{"wasm_filter", `(wasm_filter\.(.+?)\.)`},
		{"authz_dry_run_action", `(\.istio_dry_run_(allow|deny)_)`},
		{"authz_enforce_result", `rbac(?:\..+)?(\.(allowed|denied))$`},
		{"authz_dry_run_result", `(\.shadow_(allowed|denied))$`},
	}
}

// StatsSettings are further statistics and labels, as Istio's ProxyConfig has them.
type StatsSettings struct {
	// Prefixes, Suffixes and Regexps match names of statistics that Envoy has besides the usual
	// ones (proxyStatsMatcher). A regular expression matches a whole name.
	Prefixes, Suffixes, Regexps []string
	// Tags are labels that are cut out of the names of statistics (extraStatTags): a tag TAG is
	// written TAG=.=VALUE;.; there (Istio's tools/packaging/common/envoy_bootstrap.json).
	Tags []string
}

// statsConfig chooses the statistics that Envoy has at all. include are further regular
// expressions of names.
func statsConfig(include []string, extra *StatsSettings) (*metricsv3.StatsConfig, error) {
	out := &metricsv3.StatsConfig{UseAllDefaultTags: wrapperspb.Bool(false)}
	for _, name := range extra.Tags {
		out.StatsTags = append(out.StatsTags, &metricsv3.TagSpecifier{
			TagName: name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: "(" + regexp.QuoteMeta(name) + `=\.=(.*?);\.;)`},
		})
	}
	for _, t := range statTags() {
		out.StatsTags = append(out.StatsTags, &metricsv3.TagSpecifier{
			TagName: t.name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: t.regex},
		})
	}
	list := &matcherv3.ListStringMatcher{}
	for _, p := range statPrefixes() {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p}})
	}
	add := func(regex string) {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: regex},
		}})
	}
	for _, p := range statPatterns() {
		add(p)
	}
	for _, p := range include {
		if _, err := regexp.Compile(p); err != nil {
			return nil, fmt.Errorf("the pattern %q of statistics is not a regular expression as RE2 reads them: %w", p, err)
		}
		add(".*(?:" + p + ").*")
	}
	for _, p := range extra.Prefixes {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p}})
	}
	for _, p := range extra.Suffixes {
		list.Patterns = append(list.Patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: p}})
	}
	for _, p := range extra.Regexps {
		if _, err := regexp.Compile(p); err != nil {
			return nil, fmt.Errorf("the pattern %q of statistics is not a regular expression as RE2 reads them: %w", p, err)
		}
		add(p)
	}
	out.StatsMatcher = &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_InclusionList{InclusionList: list}}
	return out, nil
}

// deferredStats creates the statistics of requests and connections to a cluster with its
// first use.
func deferredStats() *bootstrapv3.Bootstrap_DeferredStatOptions {
	return &bootstrapv3.Bootstrap_DeferredStatOptions{EnableDeferredCreationStats: true}
}
