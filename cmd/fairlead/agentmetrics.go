package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/agent"
)

// agentCollector turns the agent's status into metrics when somebody asks.
type agentCollector struct {
	a               *agent.Agent
	expiry, running *prometheus.Desc
}

func newAgentCollector(a *agent.Agent) *agentCollector {
	return &agentCollector{
		a:       a,
		expiry:  prometheus.NewDesc("istio_agent_cert_expiry_timestamp", "When a certificate ends, in seconds since 1970.", []string{"resource_name"}, nil),
		running: prometheus.NewDesc("istio_agent_envoy_running", "1 while Envoy runs.", nil, nil),
	}
}

// Describe implements [prometheus.Collector].
func (c *agentCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.expiry
	ch <- c.running
}

// Collect implements [prometheus.Collector].
func (c *agentCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.a.Status()
	for _, id := range s.Identities {
		ch <- prometheus.MustNewConstMetric(c.expiry, prometheus.GaugeValue, float64(id.NotAfter.Unix()), id.ID)
	}
	running := 0.0
	if s.Envoy.PID != 0 {
		running = 1
	}
	ch <- prometheus.MustNewConstMetric(c.running, prometheus.GaugeValue, running)
}
