package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// StalledReaders is what it costs that a part of the fleet stops reading.
type StalledReaders struct {
	Streams int `json:"streams"` // that stop reading
	Edits   int `json:"edits"`   // of one VirtualService, that were made meanwhile
	// PerStream is the growth of the server's heap and stacks, without garbage, for each of
	// them, in KB, and Whole for all, in MB. Buffers of the kernel are not included.
	PerStream float64 `json:"per_stream"`
	Whole     float64 `json:"whole"`
	// Changed is the number of resources of each that changed meanwhile, and that it would
	// have been sent if it had read.
	Changed float64 `json:"changed"`
	// Before and During are the 99th percentile of the other streams' time to have a change,
	// in seconds: the median over the edits.
	Before float64 `json:"before"`
	During float64 `json:"during"`
	// Merged is the number of resources that each of those that stopped was sent when it read
	// again, and Caught the time until all had the newest, in seconds.
	Merged float64 `json:"merged"`
	Caught float64 `json:"caught"`
}

// How often everything is changed before a part of the fleet stops, and while it does not
// read: more than its kernel buffers, so that the server notices.
const (
	changesBefore = 3
	changesWhile  = 8
	// enough is the time after which no more of these are begun: a client that answers no ping
	// for 40 s counts as gone.
	enough = 15 * time.Second
	// smallBuffer is the kernel's, in bytes, of who is going to stop.
	smallBuffer = 64 << 10
)

// RunStalledReaders stops the process of a tenth of the fleet, so that it reads nothing, makes
// changes, and resumes it.
func RunStalledReaders(ctx context.Context, cfg CellConfig, edits int) (out StalledReaders, err error) {
	cfg.Subject = Ours
	c := &cell{cfg: cfg}
	all := cfg.Mesh.Proxies
	stopped := all / 10
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	if err := c.beginWith(ctx, all-stopped); err != nil {
		return out, err
	}
	slow, err := c.newFleetWith(ctx, FleetConfig{First: all - stopped, Size: stopped, ReadBuffer: smallBuffer})
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
	if err := c.changeAll(ctx, all-stopped, changesBefore); err != nil {
		return out, err
	}
	if _, err := slow.Ready(stopped, time.Second); err != nil {
		return out, err
	}
	return out, c.measureStalled(ctx, slow, &out)
}

func (c *cell) measureStalled(ctx context.Context, slow *Fleet, out *StalledReaders) error {
	o, ok := c.subject.(*ours)
	if !ok {
		return errors.New("only our control plane is looked into")
	}
	before, err := o.server.holds(ctx)
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
	others, err := c.fleet.Totals()
	if err != nil {
		return err
	}
	if err := c.changeAll(ctx, c.cfg.Mesh.Proxies-out.Streams, changesWhile); err != nil {
		return errors.Join(err, slow.cmd.Process.Signal(syscall.SIGCONT))
	}
	var last string
	if out.During, last, err = c.edits(ctx, c.cfg.Mesh.Proxies-out.Streams, out.Edits); err != nil {
		return errors.Join(err, slow.cmd.Process.Signal(syscall.SIGCONT))
	}
	after, err := o.server.holds(ctx)
	if err != nil {
		return err
	}
	during, err := c.fleet.Totals()
	if err != nil {
		return err
	}
	for k, n := range during.Kinds {
		out.Changed += float64(n.Minus(others.Kinds[k]).Resources) / float64(c.cfg.Mesh.Proxies-out.Streams)
	}
	out.Whole = max(0, after-before)
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

// holds is what the server has in its heap and on its stacks once garbage is
// collected, in MB.
func (s *Server) holds(ctx context.Context) (float64, error) {
	body, err := s.Ask(ctx, "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return 0, err
	}
	found, sum := 0, 0.0
	for line := range strings.Lines(string(body)) {
		var n float64
		for _, format := range []string{"# HeapAlloc = %f", "# Stack = %f"} {
			if _, err := fmt.Sscanf(line, format, &n); err == nil {
				found, sum = found+1, sum+n
			}
		}
	}
	if found < 2 {
		return 0, errors.New("the heap's profile does not say how large it is")
	}
	return sum / 1e6, nil
}

// changeAll edits the files of all services, some times if that does not take too
// long, and waits each time until so many streams have what came of it.
func (c *cell) changeAll(ctx context.Context, want, times int) error {
	begin := time.Now()
	for range times {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Since(begin) > enough {
			break
		}
		c.revision++
		if err := c.fleet.Arm(marker(c.cfg.Mesh, Many, c.revision)); err != nil {
			return err
		}
		if _, _, err := c.cfg.Mesh.EditMany(c.dir(), 1, c.revision); err != nil {
			return err
		}
		if _, err := c.fleet.Probe(want); err != nil {
			return errors.Join(err, c.explain())
		}
		if _, err := c.fleet.Ready(want, quiet); err != nil {
			return err
		}
	}
	return nil
}

// edits makes route edits, and gives the median of the 99th percentiles and the
// last marker.
func (c *cell) edits(ctx context.Context, want, n int) (p99 float64, last string, err error) {
	var all []float64
	for range n {
		c.revision++
		last = marker(c.cfg.Mesh, Route, c.revision)
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
