package metrics

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
)

// maxState bounds the file with the counters, in bytes.
const maxState = 64 << 20

// state is what a restart of the agent must not lose. It is written when the agent stops, and
// removed when the next one has read it: counters of an agent that was killed begin with 0,
// because Prometheus takes a counter that falls a little for one that began anew.
type state struct {
	// Owner is whose counters they are, Envoy the process that was read last.
	Owner string `json:"owner"`
	Envoy string `json:"envoy"`
	// Saved is when, and Left means that Envoy was left running then.
	Saved time.Time    `json:"saved"`
	Left  bool         `json:"left,omitempty"`
	Rows  []stateRow   `json:"rows"`
	Known []stateKnown `json:"known"`
	Open  []stateOpen  `json:"open"`
	// Uncounted is what is known of requests that Envoy does not report.
	Uncounted *stateUncounted `json:"uncounted,omitempty"`
}

type stateRow struct {
	// Overflow is the reporter of a row for what is beyond the limit; empty for others.
	Overflow reporter              `json:"overflow,omitempty"`
	Labels   string                `json:"labels"`
	Values   [counters]*uint64     `json:"values"` // nil where it was never used
	Hists    [histograms]*stateSum `json:"histograms"`
}

type stateSum struct {
	Bounds  []string `json:"bounds,omitempty"`
	Buckets []uint64 `json:"buckets"`
	Sum     float64  `json:"sum"`
}

type stateKnown struct {
	Labels   string                `json:"labels"`
	Requests uint64                `json:"requests"`
	Hists    [histograms]*stateSum `json:"histograms"`
}

type stateOpen struct {
	Key      string `json:"key"`
	Labels   string `json:"labels,omitempty"` // of its row
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
	Opened   bool   `json:"opened"`
}

// Finish reads Envoy for the last time, and saves the counters for the next agent. left means that
// Envoy is left running. Nothing is counted after it. Only the first call does something.
func (c *Collector) Finish(ctx context.Context, left bool) {
	if c.isFinished() {
		return
	}
	_, failed := c.read(ctx, requestsOnly, nil) // logged
	if err := c.save(ctx, left, failed); err != nil {
		c.log.WarnContext(ctx, "saving the counters of requests failed; they begin with 0 after the restart", "path", c.c.StateFile, "err", err)
	}
}

// ReadReplaced reads an Envoy for the last time that another one is about to replace. If that
// succeeds, its end is no loss.
func (c *Collector) ReadReplaced(ctx context.Context) {
	running := c.c.Process()
	if _, err := c.read(ctx, requestsOnly, nil); err != nil {
		return // logged, and its end is a loss
	}
	select {
	case <-c.reads:
		c.replaced = running
		c.reads <- struct{}{}
	case <-ctx.Done():
	}
}

func (c *Collector) isFinished() bool {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	return c.store.finished
}

// save saves the counters. failed is why Envoy could not be read for the last time, if it could not.
func (c *Collector) save(ctx context.Context, left bool, failed error) error {
	select {
	case <-c.reads:
		defer func() { c.reads <- struct{}{} }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if failed != nil && !left && c.followed.PID != 0 {
		c.lose(envoyEnded, c.lastRead)
	}
	c.store.mu.Lock()
	c.store.finished = true
	s := c.stateLocked()
	s.Saved, s.Left = time.Now(), left
	c.store.mu.Unlock()
	if c.c.StateFile == "" {
		return nil
	}
	return durable.Seal(c.c.StateFile, s, maxState)
}

// stateLocked is what is to be saved. The store's mu and the intake are held.
func (c *Collector) stateLocked() state {
	s := state{Owner: c.c.Owner, Envoy: c.c.Process().Birth}
	row := func(r *row, overflow reporter) {
		out := stateRow{Overflow: overflow, Labels: r.labels}
		for i, used := range r.used {
			if used {
				out.Values[i] = &r.values[i]
			}
		}
		for i, d := range r.hists {
			if d != nil {
				out.Hists[i] = &stateSum{Bounds: d.bounds, Buckets: d.buckets, Sum: d.sum}
			}
		}
		s.Rows = append(s.Rows, out)
	}
	for _, r := range c.store.rows {
		row(r, "")
	}
	for side, r := range c.store.overflow {
		row(r, side)
	}
	for _, k := range c.intake.known {
		out := stateKnown{Labels: k.labels, Requests: k.requests}
		for i, h := range k.hists {
			if h != nil {
				out.Hists[i] = &stateSum{Buckets: h.buckets, Sum: h.sum}
			}
		}
		s.Known = append(s.Known, out)
	}
	s.Uncounted = c.uncounted.state(s.Envoy)
	for key, o := range c.logs.open {
		out := stateOpen{Key: key, Sent: o.sent, Received: o.received, Opened: o.opened}
		if o.row != nil {
			out.Labels = o.row.labels
		}
		s.Open = append(s.Open, out)
	}
	return s
}

// restore takes the counters that an agent before this one saved, and removes the file. It reports
// whether there were any.
func (c *Collector) restore(now time.Time) (bool, error) {
	if c.c.StateFile == "" {
		return false, nil
	}
	var s state
	err := durable.Unseal(c.c.StateFile, &s, maxState)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	// A file that stays would be read again after a later crash, and is old by then.
	if err := errors.Join(err, durable.Remove(durable.OS{}, c.c.StateFile)); err != nil {
		return false, err
	}
	if s.Owner != c.c.Owner {
		return true, nil // of another workload
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	for i := range s.Rows {
		c.restoreRow(now, &s.Rows[i])
	}
	c.saved, c.savedOpen, c.uncounted.saved = &s, append([]stateOpen{}, s.Open...), s.Uncounted
	if s.Left {
		c.left = &s
	}
	return true, nil
}

func (c *Collector) restoreRow(now time.Time, in *stateRow) {
	if _, ok := parseLabels([]byte(in.Labels)); !ok {
		return
	}
	r := &row{labels: in.Labels, changed: now}
	for i, v := range in.Values {
		if v != nil {
			r.used[i], r.values[i] = true, *v
		}
	}
	for i, d := range in.Hists {
		if d != nil && len(d.Bounds) == len(d.Buckets) && len(d.Buckets) > 0 && len(d.Buckets) <= maxBuckets && slices.IsSorted(d.Buckets) && areNumbers(d.Bounds) {
			r.hists[i] = &distribution{bounds: d.Bounds, buckets: d.Buckets, sum: d.Sum}
		}
	}
	switch {
	case in.Overflow != "":
		c.store.overflow[in.Overflow] = r
	case len(c.store.rows) < c.store.max:
		c.store.rows[r.labels] = r
	}
}

func areNumbers(bounds []string) bool {
	return !slices.ContainsFunc(bounds, func(le string) bool { return !isNumber([]byte(le)) })
}

// resumes reports whether an Envoy is the one that was read last before the restart.
func (s *state) resumes(running Process) bool {
	return s != nil && s.Envoy != "" && s.Envoy == running.Birth
}

// resumeConnections follows the connections that were open on, if the same Envoy runs; else they
// have ended. The store's mu is held.
func (c *Collector) resumeConnections(now time.Time, running Process) {
	if c.savedOpen == nil || running.PID == 0 {
		return
	}
	same := c.saved.resumes(running)
	c.logs.resumed = same
	for _, o := range c.savedOpen {
		r := c.store.rows[o.Labels]
		switch {
		case !same && o.Opened && r != nil:
			r.add(now, closed, 1)
		case same && len(c.logs.open) < maxConnections:
			c.logs.open[o.Key] = &connection{row: r, sent: o.Sent, received: o.Received, opened: o.Opened, heard: now}
		}
	}
	c.savedOpen = nil
}

// resume remembers what was read last, if the same Envoy runs. The caller reads Envoy.
func (t *intake) resume(known []stateKnown) {
	t.baseline, t.restBaseline = false, true
	for _, k := range known {
		out := &series{labels: k.Labels, requests: k.Requests}
		for i, h := range k.Hists {
			if h != nil {
				out.hists[i] = &reading{buckets: h.Buckets, sum: h.Sum}
			}
		}
		if len(t.known) < t.maxSeries {
			t.known[out.labels] = out
		}
	}
}
