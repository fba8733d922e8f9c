package scenario

import (
	"context"
	"errors"
	"slices"
	"time"
)

// JoinCost is what it costs connected proxies that others connect, all at once and without
// configuration.
type JoinCost struct {
	// Before and During are the 99th percentile of the time until the connected proxies have a
	// change, in seconds: the median over the edits; Worst is the worst edit.
	Before float64 `json:"before"`
	During float64 `json:"during"`
	Worst  float64 `json:"worst"`
	Edits  int     `json:"edits"` // that were made while the others connected
	// Joined is until the last of the others had everything, in seconds.
	Joined float64 `json:"joined"`
}

// RunJoin connects half of the fleet, and then the other half while edits are made that the
// first half has to get.
func RunJoin(ctx context.Context, cfg CellConfig) (out JoinCost, err error) {
	cfg.Subject = Ours
	c := &cell{cfg: cfg}
	all := cfg.Mesh.Proxies
	half := all / 2
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	if err := c.beginWith(ctx, half); err != nil {
		return out, err
	}
	others, err := c.newFleet(ctx, half, all-half)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, others.Stop(ctx)) }()
	if err := c.fleet.Connect(); err != nil {
		return out, err
	}
	if _, err := c.fleet.Ready(half, time.Second); err != nil {
		return out, errors.Join(err, c.explain())
	}
	if out.Before, _, err = c.edits(ctx, half, 6); err != nil {
		return out, err
	}
	begin := time.Now()
	if err := others.Connect(); err != nil {
		return out, err
	}
	var during []float64
	for joined := false; !joined; {
		p99, _, err := c.edits(ctx, half, 1)
		if err != nil {
			return out, err
		}
		t, err := others.Totals()
		if err != nil {
			return out, err
		}
		joined = t.Ready == all-half
		during = append(during, p99)
	}
	times, err := others.Ready(all-half, quiet)
	if err != nil {
		return out, err
	}
	slices.Sort(during)
	out.During, out.Worst, out.Edits = during[len(during)/2], during[len(during)-1], len(during)
	out.Joined = time.Unix(0, times.Last).Sub(begin).Seconds()
	return out, nil
}
