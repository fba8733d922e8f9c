package issue

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics have the names of Istio's CA, so that its dashboards work.
type metrics struct {
	csr, authentication, csrParsing, idExtraction, success prometheus.Counter

	signing *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, a Authority) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "citadel_server_" + name, Help: help})
	}
	m := &metrics{
		csr:            counter("csr_count", "Certificate requests received."),
		authentication: counter("authentication_failure_count", "Certificate requests that were rejected because the client is not authenticated."),
		csrParsing:     counter("csr_parsing_err_count", "Certificate requests that were rejected because their CSR is invalid."),
		idExtraction:   counter("id_extraction_err_count", "Certificate requests that were rejected because the client is not entitled to the identity."),
		success:        counter("success_cert_issuance_count", "Certificates that the authority has issued."),
		signing: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "citadel_server_csr_sign_err_count", Help: "Certificate requests that could not be signed, by cause (error).",
		}, []string{"error"}),
	}
	if r == nil {
		return m, nil
	}
	end := func() time.Time { return a.Bundle()[0].NotAfter }
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "citadel_server_" + name, Help: help}, f)
	}
	// The root signs itself, so it is the chain too, as in Istio.
	for _, c := range []prometheus.Collector{
		m.csr, m.authentication, m.csrParsing, m.idExtraction, m.success, m.signing,
		gauge("root_cert_expiry_timestamp", "Expiry of the root certificate, in Unix seconds.",
			func() float64 { return float64(end().Unix()) }),
		gauge("root_cert_expiry_seconds", "Seconds until the root certificate expires; negative after that.",
			func() float64 { return time.Until(end()).Seconds() }),
		gauge("cert_chain_expiry_timestamp", "Expiry of the signing certificate, in Unix seconds.",
			func() float64 { return float64(end().Unix()) }),
		gauge("cert_chain_expiry_seconds", "Seconds until the signing certificate expires; negative after that.",
			func() float64 { return time.Until(end()).Seconds() }),
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("registering a metric: %w", err)
		}
	}
	return m, nil
}
