package main

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// readyPeriod is how often a process is asked whether it is ready, until it is.
const readyPeriod = 100 * time.Millisecond

// notify notifies systemd, if it listens, that the process is ready once it is,
// and then, where it wants to know, that it is alive. The watchdog is fed by the
// same questions that readiness asks: a process whose parts hang does not answer
// them.
func notify(ctx context.Context, notReady func() []string) error {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("reading the watchdog's settings: %w", err)
	}
	tick := time.NewTicker(readyPeriod)
	defer tick.Stop()
	reported, fed := false, time.Time{}
	for {
		select {
		case <-ctx.Done():
			_, err := daemon.SdNotify(false, daemon.SdNotifyStopping)
			return err
		case now := <-tick.C:
			if !reported && len(notReady()) == 0 {
				reported = true
				if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
					return fmt.Errorf("notifying systemd that the process is ready: %w", err)
				}
				shrink()
				// Who is idle is not woken for nothing.
				tick.Stop()
				if every > 0 {
					tick.Reset(every / 3)
				}
			}
			if every > 0 && now.Sub(fed) >= every/3 {
				_ = notReady()
				fed = now
				if _, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
					return fmt.Errorf("notifying systemd that the process is alive: %w", err)
				}
			}
		}
	}
}
