package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Restarted is what a restart of the server costs while the fleet has
// everything.
type Restarted struct {
	// Serving is until the server is ready, Back from then until it serves as many
	// streams as before; in seconds.
	Serving float64 `json:"serving"`
	Back    float64 `json:"back"`
	// Again is how many resources were sent, of any type; nothing had changed.
	Again    int64   `json:"again"`
	Messages int64   `json:"messages"`
	Bytes    int64   `json:"bytes"`
	CPU      float64 `json:"cpu"` // seconds, from the start of the process
	// Starting is how much of CPU the server had used when it was ready.
	Starting float64 `json:"starting"`
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
	begun, err := o.server.usage()
	if err != nil {
		return Restarted{}, err
	}
	done := c.profile(ctx, "restart", 5)
	if err := o.server.awaitStreams(ctx, c.cfg.Mesh.Proxies); err != nil {
		return Restarted{}, err
	}
	back := time.Since(ready)
	// An answer may have nothing in it, and there may be none.
	if _, err := c.fleet.Ready(c.cfg.Mesh.Proxies, 3*time.Second); err != nil {
		return Restarted{}, err
	}
	after, err := c.fleet.Totals()
	if err != nil {
		return Restarted{}, err
	}
	if err := done(); err != nil {
		return Restarted{}, err
	}
	u, err := o.server.usage()
	if err != nil {
		return Restarted{}, err
	}
	r := Restarted{Serving: o.server.Start.Seconds(), Back: back.Seconds(), CPU: u.CPU, Starting: begun.CPU, Peak: u.Peak, RSS: u.RSS}
	for k, n := range after.Kinds {
		d := n.Minus(before.Kinds[k])
		r.Again += d.Resources + d.Removed
		r.Messages += d.Messages
		r.Bytes += d.Bytes
	}
	// All must be in step: a change reaches every stream.
	_, err = c.change(ctx, Route)
	return r, err
}

// awaitStreams waits until the server counts so many.
func (s *Server) awaitStreams(ctx context.Context, want int) error {
	for begin := time.Now(); ; {
		body, err := s.Ask(ctx, "/metrics")
		if err != nil {
			return err
		}
		n := 0
		for line := range strings.Lines(string(body)) {
			if strings.HasPrefix(line, "pilot_xds{") {
				v, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
				n += int(v)
			}
		}
		if n >= want {
			return nil
		}
		if time.Since(begin) > patience {
			return fmt.Errorf("the server counts %d streams, not %d", n, want)
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}
