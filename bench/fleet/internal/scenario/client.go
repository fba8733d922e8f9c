package scenario

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/envoys"
)

// Fleet is the process of a fleet, seen from outside.
type Fleet struct {
	*process
	in  io.WriteCloser
	out *bufio.Reader
}

// FleetCommand is the subcommand of this program that is a fleet.
const FleetCommand = "streams"

// StartFleet starts a process for a fleet, which connects to nobody yet.
func StartFleet(ctx context.Context, dir string, cfg FleetConfig) (*Fleet, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, FleetCommand)
	// One garbage collection more or less is not what is measured.
	cmd.Env = append(os.Environ(), "GOGC=400")
	in, out, err := pipes(cmd)
	if err != nil {
		return nil, err
	}
	p, err := start(cmd, filepath.Join(dir, "fleet.log"))
	if err != nil {
		return nil, err
	}
	f := &Fleet{process: p, in: in, out: out}
	_, err = f.order(order{Do: "make", Fleet: cfg})
	return f, err
}

func (f *Fleet) order(o order) (answer, error) {
	line, err := json.Marshal(o)
	if err != nil {
		return answer{}, fmt.Errorf("telling a fleet: %w", err)
	}
	if _, err := f.in.Write(append(line, '\n')); err != nil {
		return answer{}, fmt.Errorf("telling a fleet to %s: %w", o.Do, err)
	}
	line, err = f.out.ReadBytes('\n')
	if err != nil {
		return answer{}, fmt.Errorf("hearing whether a fleet did %s: %w", o.Do, err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{}, fmt.Errorf("hearing whether a fleet did %s: %w", o.Do, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("a fleet, command %s: %w", o.Do, errors.New(a.Error))
	}
	return a, nil
}

// patience separates slow from broken.
const patience = 4 * time.Minute

// Connect opens all streams.
func (f *Fleet) Connect() error {
	_, err := f.order(order{Do: "start"})
	return err
}

// Disconnect ends all streams.
func (f *Fleet) Disconnect() error {
	_, err := f.order(order{Do: "close"})
	return err
}

// Ready waits until so many streams have everything and nothing comes.
func (f *Fleet) Ready(want int, quiet time.Duration) (envoys.Times, error) {
	a, err := f.order(order{Do: "ready", Want: want, Quiet: quiet, Within: patience})
	return a.Times, err
}

// Arm begins to look for a change.
func (f *Fleet) Arm(marker string) error {
	_, err := f.order(order{Do: "arm", Marker: marker})
	return err
}

// Probe waits until so many streams have the change.
func (f *Fleet) Probe(want int) (envoys.Times, error) {
	a, err := f.order(order{Do: "probe", Want: want, Within: patience})
	return a.Times, err
}

// Totals counts what the fleet has been sent.
func (f *Fleet) Totals() (envoys.Totals, error) {
	a, err := f.order(order{Do: "totals"})
	return a.Totals, err
}

// Stop ends the process.
func (f *Fleet) Stop(ctx context.Context) error {
	return errors.Join(f.in.Close(), f.stop(ctx, syscall.SIGKILL))
}
