package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// Envoy reports whether it is ready for traffic.
type Envoy interface {
	Ready(ctx context.Context) error
}

// Reporter gets every change, and nothing else.
type Reporter interface {
	ReportHealth(healthy bool, message string)
}

// Config is what a Checker needs.
type Config struct {
	// Logger, Envoy and Reporter must be non-nil.
	Logger   *slog.Logger
	Envoy    Envoy
	Reporter Reporter
	Probe    Probe
}

// Checker probes one application.
type Checker struct {
	c   Config
	log *slog.Logger
	// client is used for all probes: making one costs more than a probe.
	client *http.Client
}

// New checks the configuration; it starts nothing.
func New(c Config) (*Checker, error) {
	if c.Logger == nil || c.Envoy == nil || c.Reporter == nil {
		return nil, errors.New("configuring the health checker: Logger, Envoy and Reporter are needed")
	}
	if err := c.Probe.complete(); err != nil {
		return nil, err
	}
	return &Checker{c: c, log: c.Logger.With("component", "agent/health"), client: newClient()}, nil
}

// Run probes until ctx ends.
func (h *Checker) Run(ctx context.Context) error {
	delay := time.NewTimer(h.c.Probe.InitialDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-ctx.Done():
		return nil
	}
	// An Envoy that starts is not unhealthy: the relay reports it as starting.
	if !h.awaitEnvoy(ctx) {
		return nil
	}
	tick := time.NewTicker(h.c.Probe.Period)
	defer tick.Stop()
	j := thresholds{success: h.c.Probe.SuccessThreshold, failure: h.c.Probe.FailureThreshold}
	socket := newListener(h.c.Probe.target())
	defer socket.close()
	for {
		listens := socket.listening()
		err := h.probe(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if j.observe(err == nil) {
			h.report(err)
		}
		if errors.Is(err, errEnvoy) {
			// Envoy is usually ready again long before the next probe is due.
			if !h.awaitEnvoy(ctx) {
				return nil
			}
			tick.Reset(h.c.Probe.Period)
			continue
		}
		if !wait(ctx, tick.C, func() bool { return socket.listening() != listens }) {
			return nil
		}
	}
}

// wait returns true when the next probe is due, or something has changed; false
// if ctx ends before.
func wait(ctx context.Context, due <-chan time.Time, changed func() bool) bool {
	look := time.NewTicker(listenerPeriod)
	defer look.Stop()
	for {
		select {
		case <-due:
			return true
		case <-look.C:
			if changed() {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

// errEnvoy means that Envoy is not ready.
var errEnvoy = errors.New("Envoy is not ready")

// envoyPeriod is how often readiness is checked while Envoy is not ready.
const envoyPeriod = 100 * time.Millisecond

// awaitEnvoy returns true once Envoy is ready, false if ctx ends before.
func (h *Checker) awaitEnvoy(ctx context.Context) bool {
	tick := time.NewTicker(envoyPeriod)
	defer tick.Stop()
	for h.envoy(ctx) != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (h *Checker) envoy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.c.Probe.Timeout)
	defer cancel()
	return h.c.Envoy.Ready(ctx)
}

func (h *Checker) report(err error) {
	if err == nil {
		h.log.Info("application is healthy")
		h.c.Reporter.ReportHealth(true, "")
		return
	}
	h.log.Warn("application is unhealthy; peers stop sending to it", "err", err)
	h.c.Reporter.ReportHealth(false, err.Error())
}

func (h *Checker) probe(ctx context.Context) error {
	if err := h.envoy(ctx); err != nil {
		return fmt.Errorf("%w: %w", errEnvoy, err)
	}
	return h.c.Probe.ask(ctx, h.client)
}

// thresholds turns results of probes into changes of health.
type thresholds struct {
	success, failure int // thresholds

	known, healthy bool
	last           bool
	inARow         int // equal results in a row
}

// observe adds a result and reports whether it changes the health; the first decision counts
// as a change.
func (j *thresholds) observe(well bool) bool {
	if well != j.last {
		j.inARow = 0
	}
	j.last = well
	j.inARow++
	threshold := j.failure
	if well {
		threshold = j.success
	}
	if j.inARow < threshold || j.known && j.healthy == well {
		return false
	}
	j.known, j.healthy = true, well
	return true
}
