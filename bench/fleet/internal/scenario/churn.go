package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/bench/fleet/internal/envoys"
)

// Churned is what steady change costs.
type Churned struct {
	Seconds   float64 `json:"seconds"`
	Endpoints int     `json:"endpoints"` // changes that were made
	Routes    int     `json:"routes"`
	// P99 is the 99th percentile over all streams and all probed changes of the
	// time from the rename of the file until the stream has it; Worst the most.
	P99   float64 `json:"p99"`
	Worst float64 `json:"worst"`
	Probe int     `json:"probes"`
	// CPU is the server's share of one core, Bytes what the fleet was sent each
	// second.
	CPU   float64 `json:"cpu"`
	Bytes float64 `json:"bytes"`
	// RSS are the server's at the start, in the middle and at the end, in MB.
	RSS [3]float64 `json:"rss"`
}

// The rates of a steady change, each second.
const (
	churnEndpoints = 100
	churnRoutes    = 5
)

// RunChurn changes a hundred endpoints and five routes every second. Debounce is
// the one that is shipped: here it is a part of what people wait for.
func RunChurn(ctx context.Context, cfg CellConfig, d time.Duration) (out Churned, err error) {
	cfg.Subject, cfg.Debounced = Ours, true
	c := &cell{cfg: cfg}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	if err := c.begin(ctx); err != nil {
		return out, err
	}
	if _, err := c.cold(ctx); err != nil {
		return out, err
	}
	m, err := c.measure()
	if err != nil {
		return out, err
	}
	begin := time.Now()
	end, cancel := context.WithDeadline(ctx, begin.Add(d))
	defer cancel()
	g, gctx := errgroup.WithContext(end)
	var probed []probed
	g.Go(func() (err error) { out.Endpoints, err = c.every(gctx, time.Second/churnEndpoints, c.flap); return err })
	g.Go(func() (err error) { out.Routes, err = c.every(gctx, time.Second/churnRoutes, c.edit); return err })
	g.Go(func() (err error) { probed, err = c.probes(gctx); return err })
	g.Go(func() (err error) { out.RSS, err = c.memory(gctx, d); return err })
	if err := g.Wait(); err != nil {
		return out, errors.Join(err, c.explain())
	}
	cost, err := m.cost(begin, envoys.Times{})
	if err != nil {
		return out, err
	}
	out.Seconds = time.Since(begin).Seconds()
	out.CPU, out.Bytes = cost.CPU/out.Seconds, float64(cost.Bytes)/out.Seconds
	var p99 []float64
	for _, p := range probed {
		p99 = append(p99, p.p99)
		out.Worst = max(out.Worst, p.worst)
	}
	if len(p99) == 0 {
		return out, errors.New("no change was followed")
	}
	slices.Sort(p99)
	out.P99, out.Probe = p99[(len(p99)*99+99)/100-1], len(p99)
	return out, nil
}

// every does something at a steady rate until ctx ends.
func (c *cell) every(ctx context.Context, period time.Duration, do func(i int) error) (n int, err error) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return n, nil
		case <-tick.C:
		}
		n++
		if err := do(n); err != nil {
			return n, err
		}
	}
}

// flap replaces an endpoint of one of the services that no proxy is of; the
// last one is left to the probes. Revisions begin where those of probes end.
func (c *cell) flap(i int) error {
	w := c.cfg.Mesh
	first, end := min(100, w.Services-2), w.Services-1
	_, err := w.ReplaceEndpoint(c.dir(), first+i%(end-first), 100_000+i%100_000)
	return err
}

// edit edits a route of one of the services, but not of the one that is probed.
func (c *cell) edit(i int) error {
	w := c.cfg.Mesh
	routes := make([]int, 0, w.Services)
	for s := range w.Services {
		if w.HasRoute(s) && s != w.EditedRoute() {
			routes = append(routes, s)
		}
	}
	_, err := w.EditRoute(c.dir(), routes[i%len(routes)], 100_000+i)
	return err
}

type probed struct{ p99, worst float64 }

// probes follows changes of both kinds, one after the other, until ctx ends.
func (c *cell) probes(ctx context.Context) ([]probed, error) {
	var out []probed
	for kind := Route; ctx.Err() == nil; kind = other(kind) {
		c.revision++
		if err := c.fleet.Arm(marker(c.cfg.Mesh, kind, c.revision)); err != nil {
			return out, err
		}
		at, err := c.subject.change(ctx, kind, c.revision)
		if err != nil {
			return out, err
		}
		t, err := c.fleet.Probe(c.cfg.Mesh.Proxies)
		if err != nil {
			return out, fmt.Errorf("following a change: %w", err)
		}
		out = append(out, probed{time.Unix(0, t.P99).Sub(at).Seconds(), time.Unix(0, t.Last).Sub(at).Seconds()})
	}
	return out, nil
}

func other(k Kind) Kind {
	if k == Route {
		return Endpoint
	}
	return Route
}

// memory is the server's after a tenth of the time, in the middle and at the
// end.
func (c *cell) memory(ctx context.Context, d time.Duration) (out [3]float64, err error) {
	for i, wait := range []time.Duration{d / 10, d * 4 / 10, d * 45 / 100} {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done(): // the time is over
			timer.Stop()
			return out, nil
		case <-timer.C:
		}
		u, err := c.subject.proc().usage()
		if err != nil {
			return out, err
		}
		out[i] = u.RSS
	}
	return out, nil
}
