package view

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Metrics is which of Istio's metrics a proxy counts. Its agent completes their labels.
type Metrics struct {
	Form MetricsForm
	// Requests are the metrics of HTTP and gRPC, in the order of their names.
	Requests []RequestMetric
	// Connections says that connections of TCP are counted, by the agent. Without are the labels
	// that they do not have, sorted.
	Connections bool
	Without     []string
	// Interval is how often the agent gets what open connections have sent; 0 means the default.
	Interval time.Duration
}

// MetricsForm is how an Envoy counts requests.
type MetricsForm uint8

// The forms. Envoy 1.36 has no logger that counts, so that the agent counts its access log.
// That logger has limits and a scope of its own from 1.39 on.
const (
	MetricsByAgent MetricsForm = iota
	MetricsByPrefix
	MetricsByScope
)

// RequestMetric is one metric of requests.
type RequestMetric struct {
	// Name is Istio's, without istio_: requests_total, request_duration_milliseconds,
	// request_bytes or response_bytes.
	Name string
	// Without are labels that it does not have, sorted.
	Without []string
	// Labels are further ones, or other values, sorted by name.
	Labels []MetricLabel
}

// MetricLabel is a label of a metric. Format is in Envoy's format of access logs.
type MetricLabel struct{ Name, Format string }

// requestMetrics and connectionMetrics are the names of Telemetry's metrics. Those of messages of
// gRPC are not to be had from a stock Envoy.
func requestMetrics() map[string]string {
	return map[string]string{
		"REQUEST_COUNT": "requests_total", "REQUEST_DURATION": "request_duration_milliseconds",
		"REQUEST_SIZE": "request_bytes", "RESPONSE_SIZE": "response_bytes",
	}
}

func connectionMetrics() []string {
	return []string{"TCP_OPENED_CONNECTIONS", "TCP_CLOSED_CONNECTIONS", "TCP_SENT_BYTES", "TCP_RECEIVED_BYTES"}
}

// metrics are those of one direction; nil if there are none, or if no agent could complete them.
func (b *telemetryBuilder) metrics(mode telemetry.WorkloadMode) *Metrics {
	if !b.proxy.AccessLogService {
		return nil
	}
	var entries []*telemetry.Metrics
	for _, t := range b.applying {
		entries = append(entries, t.Spec.GetMetrics()...)
	}
	use := mergeMetrics(entries, b.config.GetDefaultProviders().GetMetrics(), mode, func(name string) bool {
		return b.provider(name).GetPrometheus() != nil || b.provider(name) == nil && strings.EqualFold(name, istioMetricsProvider)
	})
	if use == nil || use.disabled {
		return nil
	}
	out := &Metrics{Interval: use.interval}
	switch v := b.proxy.EnvoyVersion; {
	case v.atLeast(39):
		out.Form = MetricsByScope
	case v.atLeast(37):
		out.Form = MetricsByPrefix
	}
	for kind, name := range requestMetrics() {
		if o := use.overrides[kind]; !o.disabled {
			out.Requests = append(out.Requests, RequestMetric{Name: name, Without: o.without(), Labels: o.labels()})
		}
	}
	slices.SortFunc(out.Requests, func(a, c RequestMetric) int { return cmp.Compare(a.Name, c.Name) })
	for _, kind := range connectionMetrics() {
		if o := use.overrides[kind]; !o.disabled {
			out.Connections = true
			out.Without = append(out.Without, o.without()...)
		}
	}
	slices.Sort(out.Without)
	out.Without = slices.Compact(out.Without)
	if len(out.Requests) == 0 && !out.Connections {
		return nil
	}
	return out
}

// istioMetricsProvider is the provider of metrics that Istio's own MeshConfig has.
const istioMetricsProvider = "prometheus"

// metricsUse is what a provider counts.
type metricsUse struct {
	disabled  bool
	interval  time.Duration
	overrides map[string]metricOverride // by the name of a Telemetry's metric
}

type metricOverride struct {
	disabled bool
	tags     map[string]*telemetry.MetricsOverrides_TagOverride
}

func (o metricOverride) without() []string {
	var out []string
	for name, tag := range o.tags {
		if tag.GetOperation() == telemetry.MetricsOverrides_TagOverride_REMOVE {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (o metricOverride) labels() []MetricLabel {
	var out []MetricLabel
	for _, name := range slices.Sorted(maps.Keys(o.tags)) {
		if tag := o.tags[name]; tag.GetOperation() == telemetry.MetricsOverrides_TagOverride_UPSERT {
			out = append(out, MetricLabel{name, mesh.MetricLabelFormat(tag.GetValue())})
		}
	}
	return out
}

// mergeMetrics merges what Telemetries say of metrics, the most general first, for one direction;
// nil means that nothing is counted. Of several providers that count, the first by name does.
// (Istio's mergeMetrics, pilot/pkg/model/telemetry.go. As there, an override of a metric after
// one that disables all metrics has the others counted again.)
func mergeMetrics(entries []*telemetry.Metrics, defaults []string, mode telemetry.WorkloadMode, counts func(provider string) bool) *metricsUse {
	inUse := defaults
	for _, m := range entries {
		if names := providerNames(m.GetProviders()); len(names) > 0 {
			inUse = names
		}
	}
	uses := map[string]*metricsUse{}
	if len(entries) == 0 {
		for _, name := range defaults {
			uses[name] = &metricsUse{}
		}
	}
	names := defaults
	for _, m := range entries {
		if own := providerNames(m.GetProviders()); len(own) > 0 {
			names = own
		}
		for _, name := range names {
			if !slices.Contains(inUse, name) {
				continue
			}
			use := uses[name]
			if use == nil {
				use = &metricsUse{overrides: map[string]metricOverride{}}
				uses[name] = use
			}
			if m.GetReportingInterval() != nil {
				use.interval = m.GetReportingInterval().AsDuration()
			}
			for _, o := range m.GetOverrides() {
				if inMode(o.GetMatch().GetMode(), mode) {
					use.add(o)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		if counts(name) {
			return uses[name]
		}
	}
	return nil
}

// add adds an override of a Telemetry to those before it.
func (u *metricsUse) add(o *telemetry.MetricsOverrides) {
	kinds := metricsOf(o.GetMatch())
	if len(kinds) == len(telemetry.MetricSelector_IstioMetric_name) && o.GetDisabled().GetValue() {
		u.disabled = true
		return
	}
	u.disabled = false
	for _, kind := range kinds {
		have := u.overrides[kind]
		if o.GetDisabled() != nil {
			have.disabled = o.GetDisabled().GetValue()
		}
		have.tags = maps.Clone(have.tags)
		for name, tag := range o.GetTagOverrides() {
			if have.tags == nil {
				have.tags = map[string]*telemetry.MetricsOverrides_TagOverride{}
			}
			have.tags[name] = tag
		}
		u.overrides[kind] = have
	}
}

// metricsOf are the metrics that an override is about: all, one of Istio's, or one of others,
// which are not counted here.
func metricsOf(m *telemetry.MetricSelector) []string {
	switch of := m.GetMetricMatch().(type) {
	case *telemetry.MetricSelector_CustomMetric:
		return []string{of.CustomMetric}
	case *telemetry.MetricSelector_Metric:
		if of.Metric != telemetry.MetricSelector_ALL_METRICS {
			return []string{of.Metric.String()}
		}
	}
	out := make([]string, 0, len(telemetry.MetricSelector_IstioMetric_name))
	for _, name := range telemetry.MetricSelector_IstioMetric_name {
		out = append(out, name)
	}
	return out
}

func providerNames(list []*telemetry.ProviderRef) []string {
	out := make([]string, 0, len(list))
	for _, p := range list {
		out = append(out, p.GetName())
	}
	return out
}

// countsMetrics reports whether metrics are a default of the mesh. Then clusters and endpoints
// say whom they are for.
func countsMetrics(c *meshconfig.MeshConfig) bool {
	return len(c.GetDefaultProviders().GetMetrics()) > 0
}

// reportedName is who a workload is for the clients that count requests to it, as Istio's
// clients read it: name, namespace, canonical name and revision, cluster. It is empty if clients
// do not count, or for an address that is no workload.
func (mc *meshContext) reportedName(w *mesh.Workload) string {
	if !mc.counts || w.Name == "" {
		return ""
	}
	r := w.Reported()
	return strings.Join([]string{r.Name, r.Namespace, r.CanonicalName, r.CanonicalRevision, mesh.ClusterID}, ";")
}

// ReportedService is the service of a cluster, for metrics.
type ReportedService struct {
	Host            mesh.Hostname
	Name, Namespace string
}

// reportedService is whose a cluster of a service is; nil if nobody counts.
func (mc *meshContext) reportedService(host mesh.Hostname, namespace string) *ReportedService {
	if !mc.counts || host == "" {
		return nil
	}
	return &ReportedService{Host: host, Name: string(host), Namespace: namespace} // as Istio names a ServiceEntry's
}

// unknownService is for clusters without a service, such as PassthroughCluster. Istio puts the
// Host header in the place of the host, which is the caller's choice.
func (mc *meshContext) unknownService(cluster string) *ReportedService {
	if !mc.counts {
		return nil
	}
	return &ReportedService{Host: "unknown", Name: cluster, Namespace: "unknown"}
}
