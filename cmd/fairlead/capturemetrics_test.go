package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/agent/capture/keeper"
)

// TestCaptureMetrics: an alert can tell a service that does not run, a table that others changed, and
// workloads whose connections or queries go directly.
func TestCaptureMetrics(t *testing.T) {
	t.Parallel()
	var s keeper.Status
	failed := errors.New("nobody answers")
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newCaptureCollector(func(context.Context) (keeper.Status, error) { return s, failed }))
	read := func() map[string]float64 {
		t.Helper()
		list, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range list {
			for _, m := range f.GetMetric() {
				name := []string{strings.TrimPrefix(f.GetName(), "fairlead_capture_")}
				for _, l := range m.GetLabel() {
					name = append(name, l.GetValue())
				}
				out[strings.Join(name, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		return out
	}
	if diff := cmp.Diff(map[string]float64{"service_up": 0}, read()); diff != "" {
		t.Errorf("without the service: %s", diff)
	}
	failed = nil
	want := map[string]float64{
		"service_up": 1, "table_kept": 0, "table_pending": 0, "contended": 0, "problem": 0, "last_restored_timestamp": 0,
		"restored_total table": 0, "restored_total routes": 0, "beats_total": 0, "beat_failures_total": 0,
	}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("without a table: %s", diff)
	}
	s = keeper.Status{
		Kept: true, Pending: true, Fight: "yes", Problem: "yes", LastMended: time.Unix(1000, 5), Mended: map[string]uint64{"table": 7, "routes": 8}, Beats: 9, FailedBeats: 10,
		Envoys: map[string]bool{"web": true, "db": false}, DNS: map[string]bool{"web": false}, Counts: map[string]uint64{"outbound": 11, "dns": 12},
	}
	want = map[string]float64{
		"service_up": 1, "table_kept": 1, "table_pending": 1, "contended": 1, "problem": 1, "last_restored_timestamp": 1000,
		"restored_total table": 7, "restored_total routes": 8, "beats_total": 9, "beat_failures_total": 10,
		"reported_alive envoy web": 1, "reported_alive envoy db": 0, "reported_alive dns web": 0,
		"connections_total outbound": 11, "connections_total dns": 12,
	}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Error(diff)
	}
}
