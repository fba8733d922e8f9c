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
		streams:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pilot_xds", Help: "Number of endpoints connected to this server using XDS."}, []string{"version"}),
		pushes:       counter("pilot_xds_pushes", "Responses sent, by type.", "type"),
		pushTime:     histogram("pilot_xds_push_time", "Seconds from the announcement of a snapshot until a proxy's first response is sent."),
		sendTime:     histogram("pilot_xds_send_time", "Seconds that sending one response takes."),
		convergence:  histogram("pilot_proxy_convergence_time", "Seconds from the announcement of a snapshot until a proxy has answered all of it."),
		rejects:      prometheus.NewCounter(prometheus.CounterOpts{Name: "pilot_total_xds_rejects", Help: "Responses that proxies refused."}),
		rejecting:    map[stream.TypeURL]prometheus.Gauge{},
		sizes:        map[stream.TypeURL]prometheus.Observer{},
		expiredNonce: counter("pilot_xds_expired_nonce", "Answers to responses that nobody waits for.", "type"),
		size: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pilot_xds_config_size_bytes", Help: "Size of responses.", Buckets: []float64{1e3, 1e4, 1e5, 1e6, 4e6, 1e7, 4e7},
		}, []string{"type"}),
		resources: counter("fairlead_xds_resources_sent_total", "Resources sent, by type.", "type"),
		gates:     counter("fairlead_xds_gate_timeouts_total", "Times that something was sent although what it waited for was not answered in time.", "type"),
		refused:   prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_xds_refused_streams_total", Help: "Streams that were not admitted."}),
		limited:   prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_xds_limited_streams_total", Help: "Streams that were refused for a limit."}),
		slow:      prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_xds_slow_streams_total", Help: "Streams that were ended because the peer read too little, for too long."}),
		faults:    prometheus.NewCounter(prometheus.CounterOpts{Name: "pilot_xds_internal_errors", Help: "Views that could not be built."}),
	}
	for t, name := range map[stream.TypeURL]string{
		stream.ClusterType: "cds", stream.EndpointType: "eds", stream.ListenerType: "lds", stream.RouteType: "rds",
		stream.VirtualHostType: "vhds",
	} {
		m.rejecting[t] = prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pilot_xds_" + name + "_reject", Help: "Proxies that refuse something of what they were sent by " + name + ".",
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
	case stream.ListenerType:
		return "lds"
	case stream.RouteType:
		return "rds"
	case stream.VirtualHostType:
		return "vhds"
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
