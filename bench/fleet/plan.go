package main

import (
	"context"
	"errors"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/meshgen"
	"github.com/fairlead/fairlead/bench/fleet/internal/report"
	"github.com/fairlead/fairlead/bench/fleet/internal/scenario"
)

// old is the last release of Envoy that takes no virtual hosts on the
// aggregated stream.
const old = 37

// idle is how long nothing happens before memory is read: the runtime returns memory slowly.
const idle = 20 * time.Second

func newSizes(s *suite) *scenario.Sizes  { return &s.sizes }
func oldSizes(s *suite) *scenario.Sizes  { return &s.oldSizes }
func wideSizes(s *suite) *scenario.Sizes { return &s.wideSizes }

// changes sets how often each change is made.
func changes(routes, endpoints, many int, wait time.Duration) func(cfg *scenario.CellConfig) {
	return func(cfg *scenario.CellConfig) {
		cfg.Routes, cfg.Endpoints, cfg.Many, cfg.Idle = routes, endpoints, many, wait
	}
}

func and(all ...func(cfg *scenario.CellConfig)) func(cfg *scenario.CellConfig) {
	return func(cfg *scenario.CellConfig) {
		for _, f := range all {
			f(cfg)
		}
	}
}

func older(cfg *scenario.CellConfig)  { cfg.Minor = old }
func secure(cfg *scenario.CellConfig) { cfg.TLS = true }

// shortPlan is what `make bench` runs. What is done again without waiting for
// memory is there for six runs of what is noisy.
func shortPlan() []step {
	return []step{
		{"ours", 3, ours("", table(), changes(4, 4, 1, idle), newSizes)},
		{"ours-again", 3, ours("", table(), changes(2, 2, 1, 0), newSizes)},
		{"more", 2, more},
		{"limit", 6, bare("", table(), newSizes, changes(3, 3, 1, time.Second))},
		{"ours-old", 3, ours("old.", table(), and(older, changes(2, 0, 0, 0)), oldSizes)},
		{"limit-old", 3, bare("old.", table(), oldSizes, changes(2, 0, 0, 0))},
		{"linear", 3, peer(scenario.Linear, report.Linear, []string{"", "old."}, table(), changes(2, 2, 0, 5*time.Second))},
		{"wide", 3, ours("wide.", wide(), changes(2, 0, 0, idle), wideSizes)},
		{"wide-again", 3, ours("wide.", wide(), changes(2, 0, 0, 0), wideSizes)},
		{"limit-wide", 1, bare("wide.", wide(), wideSizes, changes(3, 0, 0, time.Second))},
		{"linear-wide", 1, peer(scenario.Linear, report.Linear, []string{"wide."}, wide(), changes(3, 0, 0, 5*time.Second))},
		{"small", 3, small},
		{"tls", 3, ours("tls.", table(), and(secure, changes(2, 2, 0, idle)), nil)},
		{"tls-again", 3, ours("tls.", table(), and(secure, changes(2, 2, 0, 0)), nil)},
		{"limit-tls", 1, bare("tls.", table(), newSizes, and(secure, changes(3, 3, 0, time.Second)))},
		{"heavy", 1, ours("heavy.", heavy(), changes(3, 3, 0, 5*time.Second), nil)},
		{"restart", 1, restarted(3)},
		{"join", 1, joining},
		{"stalled", 1, stalled(20)},
		{"own", 1, ours("own.", meshgen.Spec{Services: 1000, Endpoints: 10, Proxies: 200, OwnSidecars: true}, changes(3, 0, 0, 5*time.Second), nil)},
		{"churn", 1, churned("churn", 20*time.Second)},
		{"snapshot", 1, peer(scenario.Snapshot, report.Snapshot, []string{"", "old."}, table(), changes(1, 1, 0, time.Second))},
	}
}

// longPlan is what `make bench-worst` runs.
func longPlan() []step {
	many := func(s meshgen.Spec, n int) meshgen.Spec { s.Proxies = n; return s }
	c := changes(6, 6, 0, idle)
	return []step{
		{"own-1000", 1, ours("own1000.", meshgen.Spec{Services: 1000, Endpoints: 10, Proxies: 1000, OwnSidecars: true}, c, nil)},
		{"services", 1, ours("services.", many(meshgen.Spec{Services: 10_000, Endpoints: 10}, 100), c, nil)},
		{"endpoints", 1, ours("endpoints.", many(meshgen.Spec{Services: 1000, Endpoints: 100}, 500), c, nil)},
		{"streams", 1, ours("streams.", many(meshgen.Spec{Services: 200, Endpoints: 10}, 10_000), and(c, func(cfg *scenario.CellConfig) { cfg.PerConn = 4 }), nil)},
		{"checkout", 1, checkout(6)},
		{"long", 1, churned("long", 5*time.Minute)},
	}
}

// more is what a stream takes beside those of the table: of a fleet of twice the
// size.
func more(ctx context.Context, s *suite, dir string) error {
	w := table()
	w.Proxies *= 2
	r, err := scenario.RunCell(ctx, scenario.CellConfig{Binary: s.fairlead, Dir: dir, Mesh: w, Idle: idle})
	if err != nil {
		return err
	}
	fleet, ok := s.samples.Of(report.Ours, "idle.rss")
	if !ok {
		return errors.New("the memory of the table's fleet is not known: run the step ours, too")
	}
	s.samples.Add(report.Ours, "idle.twice", r.Idle.RSS)
	s.samples.Add(report.Ours, "idle.more", (r.Idle.RSS-fleet.Median)*1000/float64(table().Proxies))
	return nil
}

// small is a mesh of four hosts.
func small(ctx context.Context, s *suite, dir string) error {
	w := meshgen.Spec{Services: 10, Endpoints: 4, Proxies: 4, Clients: 4}
	r, err := scenario.RunCell(ctx, scenario.CellConfig{Binary: s.fairlead, Dir: dir, Mesh: w, TLS: true, Routes: 1, Endpoints: 1, Idle: 5 * time.Second})
	if err != nil {
		return err
	}
	s.samples.Add(report.Ours, "small.server", r.Idle.RSS)
	return nil
}

func restarted(times int) func(context.Context, *suite, string) error {
	return func(ctx context.Context, s *suite, dir string) error {
		list, err := scenario.RunRestart(ctx, scenario.CellConfig{Binary: s.fairlead, Dir: dir, Mesh: table()}, times)
		for _, r := range list {
			s.add("restart.", map[string]float64{
				"again": float64(r.Again), "serving": r.Serving, "back": r.Back, "cpu": r.CPU, "peak": r.Peak,
				"bytes": float64(r.Bytes) / float64(table().Proxies) / 1000,
			})
		}
		return err
	}
}

func joining(ctx context.Context, s *suite, dir string) error {
	r, err := scenario.RunJoin(ctx, scenario.CellConfig{Binary: s.fairlead, Dir: dir, Mesh: table()})
	if err != nil {
		return err
	}
	s.add("crowd.", map[string]float64{"before": r.Before, "during": r.During, "worst": r.Worst, "edits": float64(r.Edits), "joined": r.Joined})
	return nil
}

func stalled(edits int) func(context.Context, *suite, string) error {
	return func(ctx context.Context, s *suite, dir string) error {
		// Over TLS, as it is run.
		r, err := scenario.RunStalledReaders(ctx, scenario.CellConfig{Binary: s.fairlead, Dir: dir, Mesh: table(), TLS: true}, edits)
		if err != nil {
			return err
		}
		s.add("stall.", map[string]float64{
			"stream": r.PerStream, "before": r.Before, "during": r.During, "changed": r.Changed, "merged": r.Merged, "caught": r.Caught,
		})
		return nil
	}
}

func churned(id string, d time.Duration) func(context.Context, *suite, string) error {
	return func(ctx context.Context, s *suite, dir string) error {
		r, err := scenario.RunChurn(ctx, scenario.CellConfig{Binary: s.fairlead, Dir: dir, Mesh: table()}, d)
		if err != nil {
			return err
		}
		s.add(id+".", map[string]float64{
			"p99": r.P99, "worst": r.Worst, "cpu": r.CPU, "bytes": r.Bytes / 1e6, "growth": max(0, r.RSS[2]-r.RSS[0]),
			"rss.first": r.RSS[0], "rss.middle": r.RSS[1], "rss.last": r.RSS[2],
		})
		return nil
	}
}

// checkout changes a fifth of all services, several times.
func checkout(times int) func(context.Context, *suite, string) error {
	return func(ctx context.Context, s *suite, dir string) error {
		r, err := scenario.RunCell(ctx, scenario.CellConfig{Binary: s.fairlead, Dir: dir, Mesh: table(), Many: times})
		if err != nil {
			return err
		}
		for _, c := range r.Many {
			s.add("checkout.", map[string]float64{"last": c.Last, "cpu": c.CPU, "peak": c.Peak, "bytes": float64(c.Bytes) / 1e6})
		}
		return nil
	}
}

func (s *suite) add(prefix string, figures map[string]float64) {
	for id, v := range figures {
		s.samples.Add(report.Ours, prefix+id, v)
	}
}
