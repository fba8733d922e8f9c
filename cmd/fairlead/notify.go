package main

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify tells systemd, where it listens, that the process is ready once it is,
// and then that it is alive. The watchdog is fed by the same questions that
// readiness asks: a process whose parts hang does not answer them.
func notify(ctx context.Context, notReady func() []string) error {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("reading the watchdog's settings: %w", err)
	}
	if every == 0 || every > 10*time.Second {
		every = 10 * time.Second
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	told, fed := false, time.Time{}
	for {
		select {
		case <-ctx.Done():
			_, err := daemon.SdNotify(false, daemon.SdNotifyStopping)
			return err
		case now := <-tick.C:
			if !told && len(notReady()) == 0 {
				told = true
				if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
					return fmt.Errorf("telling systemd that the process is ready: %w", err)
				}
			}
			if now.Sub(fed) >= every/3 {
				_ = notReady()
				fed = now
				if _, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
					return fmt.Errorf("telling systemd that the process is alive: %w", err)
				}
			}
		}
	}
}
