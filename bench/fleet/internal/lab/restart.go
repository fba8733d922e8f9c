package lab

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// Restarted is what a restart of the server costs while the fleet has
// everything.
type Restarted struct {
	// Serving is until the server is ready, Back from then until every stream has
	// been answered, or until nothing came any more; in seconds.
	Serving float64 `json:"serving"`
	Back    float64 `json:"back"`
	// Again is how many resources were sent, of any type; nothing had changed.
	Again    int64   `json:"again"`
	Messages int64   `json:"messages"`
	Bytes    int64   `json:"bytes"`
	CPU      float64 `json:"cpu"` // seconds, from the start of the process
	Peak     float64 `json:"peak"`
	RSS      float64 `json:"rss"`
}

// RunRestart kills the server under a fleet that has everything, and starts it
// again, as often as is asked for.
func RunRestart(ctx context.Context, cfg CellConfig, times int) (out []Restarted, err error) {
	cfg.Subject, cfg.Reconnect = Ours, true
	c := &cell{cfg: cfg}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	if _, err := c.cold(ctx); err != nil {
		return nil, err
	}
	for range times {
		r, err := c.restart(ctx)
		if err != nil {
			return out, errors.Join(err, c.explain())
		}
		out = append(out, r)
	}
	return out, nil
}

func (c *cell) restart(ctx context.Context) (Restarted, error) {
	o, ok := c.subject.(*ours)
	if !ok {
		return Restarted{}, errors.New("only our control plane is restarted")
	}
	before, err := c.fleet.Totals()
	if err != nil {
		return Restarted{}, err
	}
	if err := o.server.stop(ctx, syscall.SIGKILL); err != nil {
		return Restarted{}, err
	}
	if o.server, err = StartServer(ctx, o.cfg); err != nil {
		return Restarted{}, err
	}
	ready := time.Now()
	// An answer may have nothing in it, and there may be none.
	times, err := c.fleet.Ready(c.cfg.World.Proxies, 3*time.Second)
	if err != nil {
		return Restarted{}, err
	}
	after, err := c.fleet.Totals()
	if err != nil {
		return Restarted{}, err
	}
	u, err := o.server.usage()
	if err != nil {
		return Restarted{}, err
	}
	r := Restarted{Serving: o.server.Start.Seconds(), CPU: u.CPU, Peak: u.Peak, RSS: u.RSS}
	r.Back = max(0, time.Unix(0, max(times.Last, after.LastUp)).Sub(ready).Seconds())
	for k, n := range after.Kinds {
		d := n.Minus(before.Kinds[k])
		r.Again += d.Resources + d.Removed
		r.Messages += d.Messages
		r.Bytes += d.Bytes
	}
	return r, nil
}
