package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Stalled is what it costs that a part of the fleet stops reading.
type Stalled struct {
	Streams int `json:"streams"` // that stop reading
	Edits   int `json:"edits"`   // that were made meanwhile
	// PerStream is by how much the server grew for each of them, in KB; it has
	// grown by Whole MB.
	PerStream float64 `json:"per_stream"`
	Whole     float64 `json:"whole"`
	// Before and During are the 99th percentile of the other streams' time to
	// have a change, in seconds: the median over the edits.
	Before float64 `json:"before"`
	During float64 `json:"during"`
	// Merged is how many resources each of those that stopped was sent when it
	// read again, and Caught how long until all had the newest, in seconds.
	Merged float64 `json:"merged"`
	Caught float64 `json:"caught"`
}

// RunStall stops the process of a tenth of the fleet, so that it reads nothing,
// makes edits, and lets it go on.
func RunStall(ctx context.Context, cfg CellConfig, edits int) (out Stalled, err error) {
	cfg.Subject = Ours
	c := &cell{cfg: cfg}
	all := cfg.World.Proxies
	stopped := all / 10
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	if err := c.beginWith(ctx, all-stopped); err != nil {
		return out, err
	}
	slow, err := c.newFleet(ctx, all-stopped, stopped)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, slow.Stop(ctx)) }()
	for _, f := range []*Fleet{c.fleet, slow} {
		if err := f.Connect(); err != nil {
			return out, err
		}
	}
	if _, err := slow.Ready(stopped, time.Second); err != nil {
		return out, err
	}
	if _, err := c.fleet.Ready(all-stopped, time.Second); err != nil {
		return out, err
	}
	out.Streams, out.Edits = stopped, edits
	if out.Before, _, err = c.edits(ctx, all-stopped, edits); err != nil {
		return out, err
	}
	return out, c.stalled(ctx, slow, &out)
}

func (c *cell) stalled(ctx context.Context, slow *Fleet, out *Stalled) error {
	server := c.subject.proc()
	before, err := server.usage()
	if err != nil {
		return err
	}
	held, err := slow.Totals()
	if err != nil {
		return err
	}
	if err := slow.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stopping a part of the fleet: %w", err)
	}
	var last string
	if out.During, last, err = c.edits(ctx, c.cfg.World.Proxies-out.Streams, out.Edits); err != nil {
		return errors.Join(err, slow.cmd.Process.Signal(syscall.SIGCONT))
	}
	after, err := server.usage()
	if err != nil {
		return err
	}
	out.Whole = max(0, after.RSS-before.RSS)
	out.PerStream = out.Whole * 1000 / float64(out.Streams)
	if err := slow.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("letting a part of the fleet go on: %w", err)
	}
	begin := time.Now()
	// It is armed only now; what has come before the stop is not looked at again.
	if err := slow.Arm(last); err != nil {
		return err
	}
	if _, err := slow.Ready(out.Streams, time.Second); err != nil {
		return err
	}
	out.Caught = max(0, time.Since(begin).Seconds()-1)
	now, err := slow.Totals()
	if err != nil {
		return err
	}
	if now.Endings > 0 {
		return fmt.Errorf("streams that had stopped reading were ended: %q", now.Examples)
	}
	for k, n := range now.Kinds {
		out.Merged += float64(n.Minus(held.Kinds[k]).Resources) / float64(out.Streams)
	}
	return nil
}

// edits makes route edits, and gives the median of the 99th percentiles and the
// last marker.
func (c *cell) edits(ctx context.Context, want, n int) (p99 float64, last string, err error) {
	var all []float64
	for range n {
		c.revision++
		last = marker(c.cfg.World, Route, c.revision)
		if err := c.fleet.Arm(last); err != nil {
			return 0, "", err
		}
		at, err := c.subject.change(ctx, Route, c.revision)
		if err != nil {
			return 0, "", err
		}
		times, err := c.fleet.Probe(want)
		if err != nil {
			return 0, "", errors.Join(err, c.explain())
		}
		decided, err := c.subject.decided(ctx, at)
		if err != nil {
			return 0, "", err
		}
		all = append(all, time.Unix(0, times.P99).Sub(decided).Seconds())
	}
	slices.Sort(all)
	return all[len(all)/2], last, nil
}
