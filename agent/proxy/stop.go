package proxy

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// Timeouts of the ways to stop Envoy, from a request to SIGKILL.
const (
	askTime  = 2 * time.Second
	quitTime = 3 * time.Second
	termTime = 3 * time.Second
	killTime = 10 * time.Second
)

// stop drains and stops Envoy, and calls drained between. ctx must not have ended.
func (p *Process) stop(ctx context.Context, h *handle, ended <-chan error, drained func(context.Context)) error {
	p.setEnding(true)
	defer p.setEnding(false)
	p.log.InfoContext(ctx, "draining Envoy", "pid", h.pid, "drain_time", p.drainTimeNow())
	// The address of the admin interface is a setting, and may have become another one since an agent
	// before this one started this Envoy.
	asked := error(nil)
	if h.child == nil {
		asked = within(ctx, func(ctx context.Context) error { return p.c.Admin.isOf(ctx, h) })
	}
	if asked != nil {
		p.log.WarnContext(ctx, "draining Envoy failed", "err", asked)
	} else if done, err := p.drain(ctx, ended); done {
		return err
	}
	drained(ctx)
	ways := []struct {
		name string
		ask  func() error
		wait time.Duration
	}{
		{"quit", func() error {
			if asked != nil {
				return asked
			}
			return within(ctx, func(ctx context.Context) error { return p.c.Admin.command(ctx, "/quitquitquit") })
		}, quitTime},
		{"term", func() error { return h.signal(syscall.SIGTERM) }, termTime},
		{"kill", func() error { return h.signal(syscall.SIGKILL) }, killTime},
	}
	for _, w := range ways {
		if err := w.ask(); err != nil {
			p.log.DebugContext(ctx, "stopping Envoy failed", "way", w.name, "err", err)
			continue
		}
		timer := time.NewTimer(w.wait)
		select {
		case err := <-ended:
			timer.Stop()
			p.log.InfoContext(ctx, "Envoy stopped", "pid", h.pid, "way", w.name)
			return err
		case <-timer.C:
			p.log.WarnContext(ctx, "Envoy did not exit; escalating signal", "pid", h.pid, "way", w.name)
		}
	}
	return fmt.Errorf("stopping Envoy: process %d is still there after SIGKILL", h.pid)
}

// drain makes Envoy fail health checks and drain its listeners, and waits until it has no
// connections, or for DrainTime. It reports true if Envoy exited meanwhile.
func (p *Process) drain(ctx context.Context, ended <-chan error) (bool, error) {
	for _, path := range []string{"/healthcheck/fail", "/drain_listeners?graceful"} {
		err := within(ctx, func(ctx context.Context) error { return p.c.Admin.command(ctx, path) })
		if err != nil {
			// An Envoy that does not answer cannot be drained.
			p.log.WarnContext(ctx, "draining Envoy failed", "err", err)
			return false, nil
		}
	}
	deadline := time.NewTimer(p.drainTimeNow())
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if n, err := p.connections(ctx); err == nil && n == 0 {
			return false, nil
		}
		select {
		case err := <-ended:
			return true, err
		case <-deadline.C:
			return false, nil
		case <-tick.C:
		}
	}
}

func (p *Process) connections(ctx context.Context) (n int, err error) {
	err = within(ctx, func(ctx context.Context) error {
		n, err = p.c.Admin.Connections(ctx)
		return err
	})
	return n, err
}
