package main

import (
	"context"
	"slices"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/report"
	"github.com/fairlead/fairlead/bench/fleet/internal/scenario"
)

// consulPlan is what `make bench-consul` runs.
func consulPlan(binary string) []step {
	return []step{{"consul", 1, func(ctx context.Context, s *suite, dir string) error {
		r, err := scenario.RunCatalog(ctx, scenario.CatalogConfig{
			Binary: s.fairlead, Consul: binary, Dir: dir, Spec: full(), Proxies: 10, Secure: []bool{false, true},
			Starts: 3, Flips: 60, Added: 2, Flap: flapFor, Idle: idleFor,
		})
		if len(r.Ways) > 0 { // what was measured before something failed counts
			s.add("consul.", map[string]float64{"fill": r.Fill, "fill.cpu": r.Consul.CPU, "fill.rss": r.Consul.RSS})
		}
		for _, w := range r.Ways {
			s.keepWay(w)
		}
		return err
	}}}
}

// flapFor is for how long a check flaps, idleFor how long nothing happens.
const (
	flapFor = 10 * time.Second
	idleFor = 30 * time.Second
)

// prefix is that of a way's figures.
func prefix(secure bool) string {
	if secure {
		return "consul.https."
	}
	return "consul.http."
}

// keepWay keeps what was measured over HTTP, or over HTTPS.
func (s *suite) keepWay(w scenario.CatalogWay) {
	p := prefix(w.Secure)
	for _, st := range w.Starts {
		if st.Counted {
			s.add(p, map[string]float64{
				"start.reads": float64(st.Peaks.Reads), "connections": float64(st.Peaks.Connections), "start.bytes": float64(st.Counts.Bytes) / 1e6,
			})
			continue
		}
		s.add(p, map[string]float64{"start": st.Seconds, "start.cpu": st.CPU, "start.peak": st.Peak, "start.consul": st.Consul})
	}
	if w.Idle.RSS == 0 {
		return // it came no further
	}
	flips := float64(max(1, w.Flapped))
	s.add(p, map[string]float64{
		"restart": w.Restart.Seconds, "restart.cpu": w.Restart.CPU, "fleet": w.Fleet, "throttled": float64(w.Throttled),
		"idle.cpu": 100 * w.Cores, "idle.consul": 100 * w.CoresConsul, "idle.rss": w.Idle.RSS,
		"idle.reads": float64(w.IdleCounts.Reads), "idle.wakes": float64(w.IdleCounts.Wakes),
		"connections": float64(w.IdlePeaks.Connections), "waiting": float64(w.IdlePeaks.Waiting),
		"flips.p99": p99(slices.Concat(w.Out, w.In)), "flips.worst": slices.Max(append(slices.Concat(w.Out, w.In), 0)),
		"flap.cpu": 1000 * w.FlapCPU / flips, "flap.reads": float64(w.FlapCounts.Reads+w.FlapCounts.Wakes) / flips,
		"added.cpu":  w.AddedCPU / float64(max(1, len(w.AddedIn)+len(w.AddedOut))),
		"flap.bytes": float64(w.FlapCounts.Bytes) / flips / 1000,
	})
	for id, values := range map[string][]float64{"out": w.Out, "in": w.In, "added": w.AddedIn, "removed": w.AddedOut} {
		for _, v := range values {
			s.samples.Add(report.Ours, p+id, v)
		}
	}
}

// p99 is the 99th percentile.
func p99(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(99*n+99)/100-1]
}

func consulTables() []report.Table {
	ways := []struct {
		secure      bool
		title, text string
	}{
		{false, "Over plain HTTP: table watches and sweeps", "Stock Consul gives a client 200 connections: blocking queries on the tables report that something has changed."},
		{true, "Over HTTPS: a watch for each service", "250 watches share a connection by HTTP/2."},
	}
	tables := []report.Table{{
		Title: "The catalog: 5,000 services, 20 instances each, 2,000 nodes",
		Text:  "One Consul 1.20.1 in memory at its default limits, filled by transactions of 128 operations, four at once.",
		Rows: []report.Row{
			{ID: "consul.fill", Name: "Registering everything", Unit: report.Seconds, Budget: report.None},
			{ID: "consul.fill.cpu", Name: "Consul, CPU until then", Unit: report.CPU, Budget: report.None},
			{ID: "consul.fill.rss", Name: "Consul, resident then", Unit: report.MB, Budget: report.None},
		},
	}}
	for _, w := range ways {
		tables = append(tables, report.Table{Title: w.title, Text: w.text, Rows: wayRows(prefix(w.secure))})
	}
	return tables
}

func wayRows(p string) []report.Row {
	rows := []report.Row{
		{ID: "start", Name: "Start with an empty state directory, until ready with the complete catalog", Unit: report.Seconds, Budget: 10},
		{ID: "start.cpu", Name: "The same, CPU", Unit: report.CPU, Budget: report.None},
		{ID: "start.consul", Name: "The same, CPU of Consul", Unit: report.CPU, Budget: report.None},
		{ID: "start.peak", Name: "The same, peak memory", Unit: report.MB, Budget: report.None},
		{ID: "start.bytes", Name: "The same, bytes read", Unit: report.MB, Budget: report.None},
		{ID: "start.reads", Name: "The same, most reads in flight at once", Budget: 16},
		{ID: "restart", Name: "Start with the stored catalog, until ready", Unit: report.Seconds, Budget: report.None},
		{ID: "restart.cpu", Name: "The same, CPU", Unit: report.CPU, Budget: report.None},
		{ID: "fleet", Name: "10 proxies connect, last stream complete", Unit: report.Seconds, Budget: report.None},
		{ID: "connections", Name: "Connections to Consul, most at once", Budget: 64},
		{ID: "waiting", Name: "Blocking queries, most at once", Budget: report.None},
		{ID: "throttled", Name: "Answers 429, from the first start to the end", Budget: 0},
		{ID: "idle.cpu", Name: "Idle: CPU, of a core", Unit: report.Percent, Budget: 2},
		{ID: "idle.consul", Name: "The same, Consul", Unit: report.Percent, Budget: report.None},
		{ID: "idle.reads", Name: "The same, reads in 30 s", Budget: report.None},
		{ID: "idle.wakes", Name: "The same, blocking queries that ended", Budget: report.None},
		{ID: "idle.rss", Name: "The same, resident", Unit: report.MB, Budget: report.None},
		{ID: "out", Name: "A check fails: written to the endpoint gone on a stream, median", Unit: report.Seconds, Budget: report.None},
		{ID: "in", Name: "A check passes again: to the endpoint back, median", Unit: report.Seconds, Budget: report.None},
		{ID: "flips.p99", Name: "Both, 99th percentile of 120", Unit: report.Seconds, Budget: 0.5},
		{ID: "flips.worst", Name: "Both, the slowest", Unit: report.Seconds, Budget: report.None},
		{ID: "flap.reads", Name: "A check changes every second: answers for each change, one of them of the heartbeat", Budget: 5},
		{ID: "flap.bytes", Name: "The same, bytes a change", Unit: report.KB, Budget: report.None},
		{ID: "flap.cpu", Name: "The same, CPU a change, milliseconds", Unit: report.Count, Budget: report.None},
		{ID: "added", Name: "An instance is registered: to the endpoint on a stream, median", Unit: report.Seconds, Budget: report.None},
		{ID: "removed", Name: "It is deregistered: to the endpoint gone, median", Unit: report.Seconds, Budget: report.None},
		{ID: "added.cpu", Name: "The same, CPU of each", Unit: report.CPU, Budget: report.None},
	}
	for i := range rows {
		rows[i].ID = p + rows[i].ID
	}
	return rows
}
