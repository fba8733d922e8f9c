package accept

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// reason is why a connection was closed or refused.
type reason int

const (
	reasonRoom     reason = iota // for a new one
	reasonTime                   // not authenticated for too long
	reasonBytes                  // it sent too much
	reasonIdentity               // its identity has as many as it may
	reasonFull                   // all connections are authenticated
	reasonAccept                 // accept failed
	reasons
)

// label is the reason as a metric's label; empty for what is counted elsewhere.
func (r reason) label() string { return [...]string{"room", "timeout", "bytes", "identity", "", ""}[r] }

// text is the line of the log; empty where it is no news that this happens.
func (r reason) text() string {
	return [...]string{
		"oldest unauthenticated connection closed for a new one",
		"", "",
		"host reached its connection limit (2 × --max-streams-per-host)",
		"", "",
	}[r]
}

type metrics struct {
	refused prometheus.Counter
	dropped [reasons]prometheus.Counter // nil for a reason without a label
}

func newMetrics(r prometheus.Registerer, a *Acceptor) (*metrics, error) {
	m := &metrics{refused: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fairlead_refused_connections_total", Help: "Connections that were rejected because --max-connections was reached by authenticated hosts.",
	})}
	dropped := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fairlead_dropped_connections_total",
		Help: "Connections that were closed at a limit, by reason: room (the oldest unauthenticated one, for a new one), timeout (--unauthenticated-timeout), bytes (sent too much without authentication), identity (the host reached its connection limit).",
	}, []string{"reason"})
	for why := range reasons {
		if l := why.label(); l != "" {
			m.dropped[why] = dropped.WithLabelValues(l)
		}
	}
	if r == nil {
		return m, nil
	}
	list := []prometheus.Collector{m.refused, dropped}
	for s := range stages {
		list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fairlead_connections", Help: "Open connections to the port for hosts, by state (handshake, unauthenticated, authenticated).", ConstLabels: prometheus.Labels{"state": s.String()},
		}, func() float64 { return float64(a.counts()[s]) }))
	}
	list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fairlead_waiting_handshakes", Help: "Connections whose TLS handshake waits until the server has CPU time for it.",
	}, func() float64 { return float64(a.admission.waiting()) }))
	for _, c := range list {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("registering a metric: %w", err)
		}
	}
	return m, nil
}
