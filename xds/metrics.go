package xds

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/stream"
)

// metrics have the names of Istio's metrics if those exist, so that its dashboards work.
// No label has an unbounded number of values.
type metrics struct {
	streams      *prometheus.GaugeVec
	pushes       *prometheus.CounterVec
	pushTime     prometheus.Histogram
	sendTime     prometheus.Histogram
	convergence  prometheus.Histogram
	rejects      prometheus.Counter
	rejecting    map[stream.TypeURL]prometheus.Gauge
	expiredNonce *prometheus.CounterVec
	size         *prometheus.HistogramVec
	resources    *prometheus.CounterVec
	gates        *prometheus.CounterVec
	refused      prometheus.Counter
	limited      prometheus.Counter
	slow         prometheus.Counter
	faults       prometheus.Counter
	sizes        map[stream.TypeURL]prometheus.Observer // of size
}

func newMetrics(r prometheus.Registerer, made *cache.Work, sent *cache.ByType) (*metrics, error) {
	short := []float64{.001, .003, .01, .03, .1, .3, 1, 3, 5, 10, 20, 30}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: short})
	}
	m := &metrics{
		streams:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pilot_xds", Help: "Proxies with an open xDS stream, by release of Envoy (version)."}, []string{"version"}),
		pushes:       counter("pilot_xds_pushes", "xDS responses sent, by type (cds, eds, ecds, lds, nds, pcds, rds, vhds).", "type"),
		pushTime:     histogram("pilot_xds_push_time", "Seconds from a new snapshot of the mesh until the first response to a proxy is sent."),
		sendTime:     histogram("pilot_xds_send_time", "Seconds to send one xDS response."),
		convergence:  histogram("pilot_proxy_convergence_time", "Seconds from a new snapshot of the mesh until a proxy has acknowledged or rejected all of its responses."),
		rejects:      prometheus.NewCounter(prometheus.CounterOpts{Name: "pilot_total_xds_rejects", Help: "xDS responses that proxies rejected (NACK)."}),
		rejecting:    map[stream.TypeURL]prometheus.Gauge{},
		sizes:        map[stream.TypeURL]prometheus.Observer{},
		expiredNonce: counter("pilot_xds_expired_nonce", "Requests of proxies with a nonce of an outdated response, by type (cds, eds, ecds, lds, nds, pcds, rds, vhds).", "type"),
		size: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pilot_xds_config_size_bytes", Help: "Bytes of xDS responses, by type (cds, eds, ecds, lds, nds, pcds, rds, vhds).", Buckets: []float64{1e3, 1e4, 1e5, 1e6, 4e6, 1e7, 4e7},
		}, []string{"type"}),
		resources: counter("fairlead_xds_resources_sent_total", "Resources sent in xDS responses, by type (cds, eds, ecds, lds, nds, pcds, rds, vhds).", "type"),
		gates:     counter("fairlead_xds_gate_timeouts_total", "Responses that were sent after a timeout, although the proxy had not yet answered the response that they depend on, by type (cds, eds, ecds, lds, nds, pcds, rds, vhds).", "type"),
		refused:   prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_xds_refused_streams_total", Help: "xDS streams that were rejected for their identity or node: the proxy may not be that workload."}),
		limited:   prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_xds_limited_streams_total", Help: "xDS streams that were rejected because a limit was reached (--max-streams, --max-streams-per-host and the like)."}),
		slow:      prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_xds_slow_streams_total", Help: "xDS streams that were closed because the proxy read too slowly (--slow-proxy-timeout)."}),
		faults:    prometheus.NewCounter(prometheus.CounterOpts{Name: "pilot_total_xds_internal_errors", Help: "Errors while the configuration of a proxy was built."}),
	}
	for t, name := range map[stream.TypeURL]string{
		stream.ClusterType: "cds", stream.EndpointType: "eds", stream.ListenerType: "lds", stream.RouteType: "rds",
		stream.VirtualHostType: "vhds", stream.ExtensionType: "ecds", bootstrap.ProxyConfigType: "pcds", bootstrap.NameType: "nds",
	} {
		m.rejecting[t] = prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pilot_xds_" + name + "_reject", Help: "Proxies that reject (NACK) a resource of " + name + " now.",
		})
	}
	for _, t := range cache.Types() {
		m.sizes[t] = m.size.WithLabelValues(label(t))
	}
	if r == nil {
		return m, nil
	}
	all := []prometheus.Collector{
		m.streams, m.pushes, m.pushTime, m.sendTime, m.convergence, m.rejects, m.expiredNonce, m.size, m.resources, m.gates, m.refused, m.limited, m.slow, m.faults,
	}
	for _, g := range m.rejecting {
		all = append(all, g)
	}
	all = append(all, workCollectors(made, sent)...)
	var errs []error
	for _, c := range all {
		errs = append(errs, r.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return m, nil
}

// label is the type as Istio's metrics name it.
func label(t stream.TypeURL) string {
	switch t {
	case stream.ClusterType:
		return "cds"
	case stream.EndpointType:
		return "eds"
	case stream.ExtensionType:
		return "ecds"
	case stream.ListenerType:
		return "lds"
	case stream.RouteType:
		return "rds"
	case stream.VirtualHostType:
		return "vhds"
	case bootstrap.ProxyConfigType:
		return "pcds"
	case bootstrap.NameType:
		return "nds"
	case stream.SecretType:
		return "sds"
	default:
		return "other"
	}
}

// versionLabel is the release of an Envoy without its patch. A proxy may claim any
// version: one that Envoy will not have for years is "other".
func versionLabel(v bootstrap.Version) string {
	switch {
	case v == (bootstrap.Version{}):
		return v.String()
	case v.Major != 1 || v.Minor > 99:
		return "other"
	default:
		return "1." + strconv.FormatUint(uint64(v.Minor), 10)
	}
}

func (m *metrics) sized(t stream.TypeURL) prometheus.Observer {
	if o, ok := m.sizes[t]; ok {
		return o
	}
	return m.sizes[""]
}

func (m *metrics) event(e stream.Event) {
	switch e.Kind {
	case stream.EventSent:
		m.pushes.WithLabelValues(label(e.Type)).Inc()
		if !e.Removal {
			m.resources.WithLabelValues(label(e.Type)).Add(float64(e.Names))
		}
	case stream.EventNacked:
		m.rejects.Inc()
	case stream.EventStale:
		m.expiredNonce.WithLabelValues(label(e.Type)).Inc()
	case stream.EventGateTimeout:
		m.gates.WithLabelValues(label(e.Type)).Inc()
	case stream.EventAccepted, stream.EventRejected, stream.EventConverged:
	}
}

func seconds(d time.Duration) float64 { return d.Seconds() }
