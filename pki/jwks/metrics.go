package jwks

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of requests have Istio's names, so that its dashboards work.
type metrics struct{ success, failure prometheus.Counter }

func newMetrics(r prometheus.Registerer, s *Store) (*metrics, error) {
	m := &metrics{
		success: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pilot_jwks_resolver_network_fetch_success_total", Help: "Key sets of issuers that were read.",
		}),
		failure: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pilot_jwks_resolver_network_fetch_fail_total", Help: "Attempts to read the key set of an issuer that failed.",
		}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.success, m.failure,
		collector{s},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fairlead_jwks_unsaved", Help: "1 while the disk does not have the keys of issuers that are in force.",
		}, func() float64 {
			if s.Unsaved() != "" {
				return 1
			}
			return 0
		}),
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("registering a metric: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) fetched(err error) {
	if err != nil {
		m.failure.Inc()
		return
	}
	m.success.Inc()
}

// collector counts key sets when somebody asks.
type collector struct{ s *Store }

func (collector) sets() *prometheus.Desc {
	return prometheus.NewDesc("fairlead_jwks_key_sets", "Key sets of issuers, by state.", []string{"state"}, nil)
}

func (collector) oldest() *prometheus.Desc {
	return prometheus.NewDesc("fairlead_jwks_oldest_seconds", "Seconds since the key set was confirmed that was not for longest.", nil, nil)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.sets()
	ch <- c.oldest()
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	list, over := c.s.Status()
	counts := map[State]int{StatePending: 0, StateCurrent: 0, StateStale: 0, StateNone: over}
	oldest := 0.0
	for _, st := range list {
		counts[st.State]++
		oldest = max(oldest, st.Age.Seconds())
	}
	for state, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.sets(), prometheus.GaugeValue, float64(n), string(state))
	}
	ch <- prometheus.MustNewConstMetric(c.oldest(), prometheus.GaugeValue, oldest)
}
