package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// Envoy says whether it takes traffic.
type Envoy interface {
	Ready(ctx context.Context) error
}

// Reporter is told every change, and nothing else.
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
	// client is kept from probe to probe: making one costs more than asking.
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
	j := judge{success: h.c.Probe.SuccessThreshold, failure: h.c.Probe.FailureThreshold}
	socket := newListener(h.c.Probe.target())
	defer socket.close()
	for {
		listens := socket.there()
		err := h.ask(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if j.see(err == nil) {
			h.tell(err)
		}
		if errors.Is(err, errEnvoy) {
			// It will be back long before the next probe is due.
			if !h.awaitEnvoy(ctx) {
				return nil
			}
			tick.Reset(h.c.Probe.Period)
			continue
		}
		if !wait(ctx, tick.C, func() bool { return socket.there() != listens }) {
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

// errEnvoy says that it is Envoy which is not ready.
var errEnvoy = errors.New("Envoy is not ready")

// envoyPeriod is how often an Envoy is asked that is not ready.
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

func (h *Checker) tell(err error) {
	if err == nil {
		h.log.Info("application is healthy")
		h.c.Reporter.ReportHealth(true, "")
		return
	}
	h.log.Warn("application is unhealthy; peers stop sending to it", "err", err)
	h.c.Reporter.ReportHealth(false, err.Error())
}

func (h *Checker) ask(ctx context.Context) error {
	if err := h.envoy(ctx); err != nil {
		return fmt.Errorf("%w: %w", errEnvoy, err)
	}
	return h.c.Probe.ask(ctx, h.client)
}

// judge turns answers into changes.
type judge struct {
	success, failure int // thresholds

	known, healthy bool
	last           bool
	row            int // equal answers
}

// see takes an answer and reports whether it makes a change; the first verdict is
// one.
func (j *judge) see(well bool) bool {
	if well != j.last {
		j.row = 0
	}
	j.last = well
	j.row++
	threshold := j.failure
	if well {
		threshold = j.success
	}
	if j.row < threshold || j.known && j.healthy == well {
		return false
	}
	j.known, j.healthy = true, well
	return true
}
