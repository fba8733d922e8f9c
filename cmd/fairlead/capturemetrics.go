package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/agent/capture/beat"
	"github.com/fairlead/fairlead/agent/capture/keeper"
)

// captureCollector makes metrics of the status of the capture service, which has no TCP socket of its
// own: the agent asks it when metrics are collected.
type captureCollector struct {
	ask                                              func(context.Context) (keeper.Status, error)
	up, kept, pending, restored, fight, problem      *prometheus.Desc
	alive, beats, failedBeats, connections, lastMend *prometheus.Desc
}

// askService returns how to ask the capture service at a socket.
func askService(socket string) func(context.Context) (keeper.Status, error) {
	return func(ctx context.Context) (s keeper.Status, err error) {
		return s, beat.Ask(ctx, socket, &s)
	}
}

func newCaptureCollector(ask func(context.Context) (keeper.Status, error)) *captureCollector {
	return &captureCollector{
		ask:         ask,
		up:          prometheus.NewDesc("fairlead_capture_service_up", "1 if the capture service answers, else 0: nobody puts the table back, and in open mode connections go directly. Only with --capture.", nil, nil),
		kept:        prometheus.NewDesc("fairlead_capture_table_kept", "1 if the kernel has the confirmed table of packet capture, else 0.", nil, nil),
		pending:     prometheus.NewDesc("fairlead_capture_table_pending", "1 while an applied table is not confirmed, else 0.", nil, nil),
		restored:    prometheus.NewDesc("fairlead_capture_restored_total", "What the capture service put back after another program had changed it, by what: table, routes.", []string{"what"}, nil),
		lastMend:    prometheus.NewDesc("fairlead_capture_last_restored_timestamp", "When the capture service put something back last, in Unix seconds; 0 if it never did.", nil, nil),
		fight:       prometheus.NewDesc("fairlead_capture_contended", "1 while another program changes the table or its routes again and again, else 0.", nil, nil),
		problem:     prometheus.NewDesc("fairlead_capture_problem", "1 if the capture service cannot have capture as declared, else 0; fairlead capture status says why.", nil, nil),
		alive:       prometheus.NewDesc("fairlead_capture_reported_alive", "1 if the Envoy of a workload (what: envoy, in open mode) or its agent's DNS (what: dns, with dns-port) is reported as alive; at 0 connections or queries go directly.", []string{"workload", "what"}, nil),
		beats:       prometheus.NewDesc("fairlead_capture_beats_total", "Times that the capture service had the kernel go on capturing what is reported as alive.", nil, nil),
		failedBeats: prometheus.NewDesc("fairlead_capture_beat_failures_total", "Times that this failed; connections or queries go directly soon.", nil, nil),
		connections: prometheus.NewDesc("fairlead_capture_connections_total", "Connections by what became of them: outbound, inbound, self and dns (captured), direct (refused: to a port of Envoy itself), unanswered (packets, refused: to a virtual address, not captured).", []string{"what"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (c *captureCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.kept, c.pending, c.restored, c.lastMend, c.fight, c.problem, c.alive, c.beats, c.failedBeats, c.connections} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *captureCollector) Collect(ch chan<- prometheus.Metric) {
	const patience = time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience) // the interface has none
	defer cancel()
	s, err := c.ask(ctx)
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge(c.up, oneIf(err == nil))
	if err != nil {
		return
	}
	gauge(c.kept, oneIf(s.Kept))
	gauge(c.pending, oneIf(s.Pending))
	gauge(c.fight, oneIf(s.Fight != ""))
	gauge(c.problem, oneIf(s.Problem != ""))
	last := 0.0
	if !s.LastMended.IsZero() {
		last = float64(s.LastMended.Unix())
	}
	gauge(c.lastMend, last)
	for _, what := range []string{"table", "routes"} {
		count(c.restored, s.Mended[what], what)
	}
	for what, of := range map[string]map[string]bool{"envoy": s.Envoys, "dns": s.DNS} {
		for workload, alive := range of { // of capture.yaml: at most 64
			gauge(c.alive, oneIf(alive), workload, what)
		}
	}
	count(c.beats, s.Beats)
	count(c.failedBeats, s.FailedBeats)
	for what, n := range s.Counts { // of the table: six
		count(c.connections, n, what)
	}
}
