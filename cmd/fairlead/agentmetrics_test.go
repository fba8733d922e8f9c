package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/agent"
	"github.com/fairlead/fairlead/agent/relay"
)

// TestAgentMetrics: an alert can tell a host that gets no changes, one whose Envoy
// refuses some, and one whose disk is full.
func TestAgentMetrics(t *testing.T) {
	t.Parallel()
	var s agent.Status
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newAgentCollector(func() agent.Status { return s }))
	read := func() map[string]float64 {
		t.Helper()
		list, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range list {
			out[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
		return out
	}
	want := map[string]float64{"istio_agent_envoy_running": 0, "fairlead_agent_connected": 0, "fairlead_agent_rejected_resources": 0, "fairlead_agent_unsaved_files": 0, "fairlead_agent_refused_calls_total": 0, "fairlead_agent_closed_connections_total": 0}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("before anything runs: %s", diff)
	}
	s.Envoy.PID, s.RefusedCalls, s.ClosedConnections = 7, 5, 6
	s.Relay = &relay.Status{Upstream: relay.UpstreamStatus{Server: "cp:15012"}, Rejected: make([]relay.Rejection, 3)}
	s.Unsaved = make([]agent.Unsaved, 2)
	s.Identities = []agent.IdentityStatus{{ID: "spiffe://td/ns/shop/sa/cart", NotBefore: time.Unix(1000, 0), NotAfter: time.Unix(9000, 0)}}
	want = map[string]float64{"istio_agent_cert_expiry_timestamp": 9000, "fairlead_agent_cert_start_timestamp": 1000, "istio_agent_envoy_running": 1, "fairlead_agent_connected": 1, "fairlead_agent_rejected_resources": 3, "fairlead_agent_unsaved_files": 2, "fairlead_agent_refused_calls_total": 5, "fairlead_agent_closed_connections_total": 6}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("running: %s", diff)
	}
}
