package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/meshgen"
	"github.com/fairlead/fairlead/bench/fleet/internal/report"
	"github.com/fairlead/fairlead/bench/fleet/internal/scenario"
)

// suite runs cells and keeps their figures.
type suite struct {
	dir, fairlead, peers string
	samples              report.Samples
	log                  io.Writer
	began                time.Time
	// others is how many cores other programs had meanwhile.
	others float64
	// sizes of our messages, for the limit.
	sizes, oldSizes, wideSizes scenario.Sizes
}

// step is one cell, or several alike.
type step struct {
	name string
	runs int
	run  func(ctx context.Context, s *suite, dir string) error
}

func table() meshgen.Spec { return meshgen.Spec{Services: 1000, Endpoints: 10, Proxies: 1000} }
func heavy() meshgen.Spec {
	return meshgen.Spec{Services: 1000, Endpoints: 10, Proxies: 1000, Rules: 30}
}
func wide() meshgen.Spec { return meshgen.Spec{Services: 100, Endpoints: 10, Proxies: 5000} }

// all runs the steps; one that fails stops nothing but itself.
func (s *suite) all(ctx context.Context, steps []step) (failed []string) {
	s.began = time.Now()
	busy := othersBusy()
	defer func() { s.others = (othersBusy() - busy).Seconds() / time.Since(s.began).Seconds() }()
	for _, st := range steps {
		begin := time.Now()
		for i := range st.runs {
			if ctx.Err() != nil {
				return append(failed, ctx.Err().Error())
			}
			dir := filepath.Join(s.dir, fmt.Sprintf("%s-%d", st.name, i))
			err := os.MkdirAll(dir, 0o750)
			if err == nil {
				err = st.run(ctx, s, dir)
			}
			if err != nil {
				failed = append(failed, fmt.Sprintf("%s: %.2000v", st.name, err))
				_, _ = fmt.Fprintf(s.log, "%s failed: %.2000v\n", st.name, err)
				break
			}
			_ = os.RemoveAll(dir) // what failed stays, to be looked at
		}
		_, _ = fmt.Fprintf(s.log, "%6.0f s  %s: %.0f s\n", time.Since(s.began).Seconds(), st.name, time.Since(begin).Seconds())
	}
	return failed
}

// keep keeps the figures of a cell, their ids behind a prefix.
func (s *suite) keep(subject report.Subject, prefix string, w meshgen.Spec, r scenario.Result) {
	add := func(id string, v float64) { s.samples.Add(subject, prefix+id, v) }
	n := float64(w.Proxies)
	add("cold.last", r.Cold.Last)
	add("cold.cpu", r.Cold.CPU)
	add("cold.peak", r.Cold.Peak)
	add("cold.bytes", float64(r.Cold.Bytes)/n/1000)
	add("start", r.Start)
	s.kinds(subject, prefix+"cold", n, r.Cold)
	again, rejects := r.Cold.Repeated, r.Cold.Rejects
	for kind, costs := range map[string][]scenario.Cost{"route": r.Routes, "endpoint": r.Endpoints, "many": r.Many} {
		for _, c := range costs {
			s.kinds(subject, prefix+kind, n, c)
			add(kind+".first", c.First)
			add(kind+".p99", c.P99)
			add(kind+".last", c.Last)
			add(kind+".median", c.Median)
			add(kind+".cpu", c.CPU)
			add(kind+".peak", c.Peak)
			add(kind+".bytes", float64(c.Bytes)/1e6)
			if kind != "many" {
				add("decision", c.Decision)
			}
			again += c.Repeated
			rejects += c.Rejects
		}
	}
	add("again", float64(again))
	add("rejects", float64(rejects))
	if r.Idle.RSS > 0 {
		add("idle.rss", r.Idle.RSS)
		add("idle.stream", (r.Idle.RSS-r.Empty.RSS)*1000/n)
	}
}

// kinds keeps what each of n proxies was sent, by type.
func (s *suite) kinds(subject report.Subject, id string, n float64, c scenario.Cost) {
	for k, counts := range c.Kinds {
		s.samples.Add(subject, id+"."+k+".bytes", float64(counts.Bytes)/n/1000)
		s.samples.Add(subject, id+"."+k+".resources", float64(counts.Resources)/n)
		s.samples.Add(subject, id+"."+k+".messages", float64(counts.Messages)/n)
	}
}

// ours makes a step of one cell of our control plane.
func ours(prefix string, w meshgen.Spec, more func(cfg *scenario.CellConfig), sizes func(s *suite) *scenario.Sizes) func(context.Context, *suite, string) error {
	return func(ctx context.Context, s *suite, dir string) error {
		cfg := scenario.CellConfig{Binary: s.fairlead, Dir: dir, Mesh: w}
		more(&cfg)
		r, err := scenario.RunCell(ctx, cfg)
		if err != nil {
			return err
		}
		s.keep(report.Ours, prefix, w, r)
		if sizes != nil {
			*sizes(s) = sizesOf(w, r)
		}
		return nil
	}
}

// sizesOf are the sizes of the messages of one stream.
func sizesOf(w meshgen.Spec, r scenario.Result) scenario.Sizes {
	each := func(costs []scenario.Cost) int {
		if len(costs) == 0 {
			return 0
		}
		return int(costs[0].Bytes) / w.Proxies
	}
	return scenario.Sizes{Cold: int(r.Cold.Bytes) / w.Proxies, Route: each(r.Routes), Endpoint: each(r.Endpoints), Table: each(r.Many)}
}

// peer makes a step of a server of go-control-plane's caches.
func peer(subject scenario.Subject, column report.Subject, prefixes []string, w meshgen.Spec, more func(cfg *scenario.CellConfig)) func(context.Context, *suite, string) error {
	return func(ctx context.Context, s *suite, dir string) error {
		// The cell of the control plane is in a directory of its own.
		feed := filepath.Join(dir, "feed")
		if err := scenario.WriteFeed(ctx, scenario.CellConfig{Binary: s.fairlead, Dir: dir, Mesh: w}, feed); err != nil {
			return err
		}
		cfg := scenario.CellConfig{Subject: subject, Binary: s.peers, Feed: feed, Dir: dir, Mesh: w, Minor: old}
		more(&cfg)
		r, err := scenario.RunCell(ctx, cfg)
		if err != nil {
			return err
		}
		for _, p := range prefixes {
			s.keep(column, p, w, r)
		}
		return nil
	}
}

// bare makes a step of the limit, with messages of the sizes of ours.
func bare(prefix string, w meshgen.Spec, sizes func(s *suite) *scenario.Sizes, more func(cfg *scenario.CellConfig)) func(context.Context, *suite, string) error {
	return func(ctx context.Context, s *suite, dir string) error {
		cfg := scenario.CellConfig{Subject: scenario.Limit, Dir: dir, Mesh: w, Sizes: *sizes(s)}
		more(&cfg)
		r, err := scenario.RunCell(ctx, cfg)
		if err != nil {
			return err
		}
		// Whether what it sends is the same is not its business.
		s.keep(report.Limit, prefix, w, r)
		return nil
	}
}
