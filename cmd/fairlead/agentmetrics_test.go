package main

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/agent"
	"github.com/fairlead/fairlead/agent/credential"
	"github.com/fairlead/fairlead/agent/logrotate"
	"github.com/fairlead/fairlead/agent/relay"
	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/internal/envoytest"
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
	want := map[string]float64{"istio_agent_envoy_running": 0, "fairlead_agent_connected": 0, "fairlead_agent_rejected_resources": 0, "fairlead_agent_unsaved_files": 0, "fairlead_agent_refused_calls_total": 0, "fairlead_agent_closed_connections_total": 0, "fairlead_agent_credentials": 0, "fairlead_agent_reports_dropped_total": 0}
	rotation := []string{
		"fairlead_agent_access_log_rotations_total", "fairlead_agent_access_log_removed_early_total",
		"fairlead_agent_access_log_dropped_bytes_total", "fairlead_agent_access_log_problems",
	}
	for _, name := range rotation {
		want[name] = 0
	}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("before anything runs: %s", diff)
	}
	s.Envoy.PID, s.RefusedCalls, s.ClosedConnections = 7, 5, 6
	s.Relay = &relay.Status{Upstream: relay.UpstreamStatus{Server: "cp:15012"}, Rejected: make([]relay.Rejection, 3)}
	s.Unsaved = make([]agent.Unsaved, 2)
	s.Identities = []agent.IdentityStatus{{ID: "spiffe://td/ns/shop/sa/cart", NotBefore: time.Unix(1000, 0), NotAfter: time.Unix(9000, 0)}}
	want = map[string]float64{
		"istio_agent_cert_expiry_timestamp": 9000, "fairlead_agent_cert_start_timestamp": 1000, "istio_agent_envoy_running": 1, "fairlead_agent_connected": 1, "fairlead_agent_rejected_resources": 3, "fairlead_agent_unsaved_files": 2, "fairlead_agent_refused_calls_total": 5, "fairlead_agent_closed_connections_total": 6,
		"fairlead_agent_credentials": 1, "fairlead_agent_credential_expiry_timestamp": 5000, "fairlead_agent_credential_problem": 1, "fairlead_agent_reports_dropped_total": 15,
	}
	s.Credentials = []workload.Credential{{Name: "shop", State: credential.Mismatch, Served: true, NotAfter: time.Unix(5000, 0)}}
	s.AccessLogs = logrotate.Status{Rotations: 11, RemovedEarly: 12, DroppedBytes: 13, Problems: make([]string, 14)}
	s.Reports.Calls = 15
	for i, name := range rotation {
		want[name] = float64(11 + i)
	}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("running: %s", diff)
	}
}

// TestSeveralAgentsOnOneHost: the second one has its metrics at a free port, unless somebody chose
// the one that is in use.
func TestSeveralAgentsOnOneHost(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	first, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	c := admin.Config{
		Logger: slog.New(slog.DiscardHandler), Address: first.Addr().String(), Socket: filepath.Join(envoytest.ShortDir(t), "admin.sock"),
		Registerer: prometheus.NewRegistry(),
	}
	if s, err := newAgentAdmin(t.Context(), c, true); err == nil {
		t.Errorf("listens at %s", s.Address())
	}
	s, err := newAgentAdmin(t.Context(), c, false)
	if err != nil {
		t.Fatal(err)
	}
	if host, port, err := net.SplitHostPort(s.Address()); err != nil || host != "127.0.0.1" || port == "0" || s.Address() == c.Address {
		t.Errorf("listens at %s", s.Address())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestPageOfAnAgent: metrics of the process have Istio's prefix on the page with the application's,
// and their usual names on the agent's own.
func TestPageOfAnAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := agent.New(agent.Config{Logger: slog.New(slog.DiscardHandler), StateDir: dir, RunDir: envoytest.ShortDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	page, err := newAgentPage(a, nil)
	if err != nil {
		t.Fatal(err)
	}
	get := func(h http.Handler) string {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
		return rec.Body.String()
	}
	for name, on := range map[string][2]bool{
		"go_goroutines": {true, false}, "istio_agent_go_goroutines": {false, true}, "istio_agent_process_open_fds": {false, true},
		"istio_agent_envoy_running": {true, true}, `istio_build{component="proxy",tag="` + version + `"}`: {true, true},
	} {
		for i, h := range []http.Handler{page.own, page.all} {
			if got := strings.Contains(get(h), "\n"+name+" "); got != on[i] {
				t.Errorf("%s is on page %d: %v", name, i, got)
			}
		}
	}
}

// TestAgentHTTP: a flag wins over statusPort, and that over the usual port.
func TestAgentHTTP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flag  string
		given bool
		port  uint16
		want  string
	}{
		{usualAgentHTTP, false, 0, usualAgentHTTP},
		{usualAgentHTTP, false, 15077, "127.0.0.1:15077"},
		{usualAgentHTTP, true, 15077, usualAgentHTTP},
		{"10.0.0.7:1", true, 15077, "10.0.0.7:1"},
		{"", true, 15077, ""},
	} {
		if got := agentHTTP(c.flag, c.given, c.port); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
