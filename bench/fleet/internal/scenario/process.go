package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is one that is measured.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // once ended is closed
}

// start runs a command, its standard error to a file.
func start(cmd *exec.Cmd, log string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting %q: %w", cmd.Path, err)
	}
	defer f.Close()
	cmd.Stderr = f
	if cmd.Stdout == nil {
		cmd.Stdout = f
	}
	// What is measured must not outlive whoever measures.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %q: %w", cmd.Path, err)
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() error {
	select {
	case <-p.ended:
		return fmt.Errorf("process %q has ended: %w", p.cmd.Path, errors.Join(p.err, errEnded))
	default:
		return nil
	}
}

var errEnded = errors.New("it should be running")

// stop ends a process by a signal, and waits.
func (p *process) stop(ctx context.Context, sig syscall.Signal) error {
	if p.running() != nil {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("ending %q: %w", p.cmd.Path, err)
	}
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		return errors.Join(fmt.Errorf("process %q does not end", p.cmd.Path), p.cmd.Process.Kill())
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.cmd.Process.Kill())
	}
	return nil
}

// Usage is what a process has used until now, and what it holds.
type Usage struct {
	CPU  float64 `json:"cpu"`  // seconds
	RSS  float64 `json:"rss"`  // MB of 10^6 bytes, resident
	Peak float64 `json:"peak"` // the same, the most since the last reset
}

func (p *process) usage() (Usage, error) {
	if err := p.running(); err != nil {
		return Usage{}, err
	}
	// The clock of another process: its threads together, in nanoseconds.
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^p.pid())<<3|2, &ts); err != nil {
		return Usage{}, fmt.Errorf("reading the clock of process %d: %w", p.pid(), err)
	}
	content, err := os.ReadFile(p.file("status"))
	if err != nil {
		return Usage{}, fmt.Errorf("reading the memory of a process: %w", err)
	}
	u := Usage{CPU: float64(ts.Nano()) / 1e9}
	for line := range bytes.Lines(content) {
		words := strings.Fields(string(line))
		if len(words) != 3 {
			continue
		}
		kb, _ := strconv.ParseFloat(words[1], 64)
		switch words[0] {
		case "VmRSS:":
			u.RSS = kb * 1024 / 1e6
		case "VmHWM:":
			u.Peak = kb * 1024 / 1e6
		}
	}
	return u, nil
}

// resetPeak makes the peak begin anew.
func (p *process) resetPeak() error {
	if err := os.WriteFile(p.file("clear_refs"), []byte("5"), 0o600); err != nil {
		return fmt.Errorf("resetting the peak of a process: %w", err)
	}
	return nil
}

func (p *process) file(name string) string { return fmt.Sprintf("/proc/%d/%s", p.pid(), name) }

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
