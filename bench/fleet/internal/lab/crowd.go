package lab

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Crowded is what it costs proxies that are served that others come, all at once
// and with nothing.
type Crowded struct {
	// Before and During are the 99th percentile of the time until those that are
	// served have a change, in seconds: the median over the edits, and the worst.
	Before float64 `json:"before"`
	During float64 `json:"during"`
	Worst  float64 `json:"worst"`
	Edits  int     `json:"edits"` // that were made while the others came
	// Joined is until the last that came had everything, in seconds.
	Joined float64 `json:"joined"`
}

// RunCrowd connects a half of the fleet, and then the other half while edits are
// made that the first has to see.
func RunCrowd(ctx context.Context, cfg CellConfig) (out Crowded, err error) {
	cfg.Subject = Ours
	c := &cell{cfg: cfg}
	all := cfg.World.Proxies
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
