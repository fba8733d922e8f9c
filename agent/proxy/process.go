package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Config says which Envoy to run and how.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Binary is the path of Envoy, as [FindBinary] gives it.
	Binary string
	// BootstrapPath is the file that Envoy is started with. It must exist when
	// Run is called.
	BootstrapPath string
	// Bootstrap is the content of that file. It is written again before a start if somebody
	// removed the file; nil means that it is not.
	Bootstrap []byte
	// Admin reaches the admin interface that the bootstrap declares.
	Admin *Admin
	// StateFile is the record of the process, for the next agent.
	StateFile string
	// Save saves the record at StateFile by calling write, and again until that succeeds. nil means that
	// it is saved once, and an Envoy without a record is ended.
	Save func(ctx context.Context, write func() error)
	// LogFile gets Envoy's output. It is never a pipe of the agent: Envoy would end with the
	// agent.
	LogFile string
	// LogBounded means that somebody bounds LogFile while Envoy runs. Otherwise a start renames one
	// that is large.
	LogBounded bool
	// Fingerprint identifies the input of an Envoy's start, mainly the bootstrap. A running
	// Envoy with another fingerprint is drained and replaced.
	Fingerprint string

	// Args are further arguments, or nil.
	Args []string
	// Renew returns what the next Envoy is started with, in place of Bootstrap, Args, Env and
	// Fingerprint; it may wait until ctx ends. After an error those used last count. It may be
	// nil: nothing changes.
	Renew func(ctx context.Context) (Launch, error)
	// Env is Envoy's whole environment, NAME=value; nothing of the agent's own is
	// added. See [Environment].
	Env []string
	// Listens are the addresses that the bootstrap binds. Two Envoys can bind one port without
	// an error, so a start fails while one of them is in use.
	Listens []netip.AddrPort
	// DrainTime is how long a stop waits for connections to end; zero means
	// 5 s, as Istio's terminationDrainDuration.
	DrainTime time.Duration
	// LeaveRunning keeps Envoy running when Run ends.
	LeaveRunning bool
	// Leaving is called before Run stops Envoy at its end, when it has drained, or leaves it
	// running, which left says; may be nil.
	Leaving func(ctx context.Context, left bool)
	// Replacing is called before an Envoy of an earlier agent is stopped because it was started
	// with something else, when it has drained; may be nil.
	Replacing func(ctx context.Context)
	// Credential is the user that Envoy runs as, or nil: the agent's own.
	Credential *syscall.Credential
}

// Launch is what an Envoy is started with.
type Launch struct {
	Bootstrap   []byte
	Args, Env   []string
	Fingerprint string
}

// Status is the state of an Envoy at one moment.
type Status struct {
	// PID is 0 while there is no process.
	PID int `json:"pid"`
	// Since is when the process was started or taken over.
	Since time.Time `json:"since"`
	// Adopted means that an earlier agent started it.
	Adopted bool `json:"adopted"`
	// Restarts counts how often Envoy exited unexpectedly and was restarted.
	Restarts int `json:"restarts"`
	// LastExit says how the last process exited, or is empty.
	LastExit string `json:"last_exit,omitempty"`
	// LastError is why there is no process, or is empty.
	LastError string `json:"last_error,omitempty"`
}

// Process runs one Envoy.
type Process struct {
	c   Config
	log *slog.Logger

	// launch is what the last Envoy was started with, and the next one if there is no Renew.
	// Owned by Run.
	launch Launch

	mu        sync.Mutex // guards all following fields
	status    Status
	proc      int // of status.PID, below /proc
	drainTime time.Duration
	ending    bool // see Ending
}

// ErrLeave is the cause to cancel Run's context with if Envoy must keep serving: the agent
// ends because of an error of its own.
var ErrLeave = errors.New("Envoy is left running")

// Back-off between an exit and the next start. The first restart after quietTime is immediate.
const (
	firstDelay = 250 * time.Millisecond
	maxDelay   = 10 * time.Second
	quietTime  = 10 * time.Second
)

// New checks the configuration; it starts nothing.
func New(c Config) (*Process, error) {
	var errs []error
	for what, v := range map[string]string{
		"Binary": c.Binary, "BootstrapPath": c.BootstrapPath, "StateFile": c.StateFile, "LogFile": c.LogFile,
	} {
		if v == "" {
			errs = append(errs, fmt.Errorf("configuring the Envoy process: %s is missing", what))
		}
	}
	if c.Logger == nil || c.Admin == nil {
		errs = append(errs, errors.New("configuring the Envoy process: Logger and Admin are needed"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if c.DrainTime == 0 {
		c.DrainTime = 5 * time.Second
	}
	if c.Env == nil {
		c.Env = []string{} // nil would mean the agent's
	}
	return &Process{
		c: c, log: c.Logger.With("component", "agent/proxy"), drainTime: c.DrainTime,
		launch: Launch{Bootstrap: c.Bootstrap, Args: c.Args, Env: c.Env, Fingerprint: c.Fingerprint},
	}, nil
}

// SetDrainTime sets how long the next stop waits for connections to end.
func (p *Process) SetDrainTime(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drainTime = d
}

// drainTimeNow is how long a stop waits.
func (p *Process) drainTimeNow() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drainTime
}

// Running reports whether an Envoy of this run directory is alive, so that its own ports do not
// count as in use.
func Running(stateFile, bootstrapPath string) bool {
	if r, err := loadRecord(stateFile); err == nil {
		if h, err := r.open(); err == nil {
			h.close()
			return true
		}
	}
	found := strays(bootstrapPath)
	for _, h := range found {
		h.close()
	}
	return len(found) > 0
}

func (p *Process) leaving(ctx context.Context, left bool) {
	if p.c.Leaving != nil {
		p.c.Leaving(context.WithoutCancel(ctx), left)
	}
}

func (p *Process) replacing(ctx context.Context) {
	if p.c.Replacing != nil {
		p.c.Replacing(ctx)
	}
}

// Birth identifies the process that runs now, also among those of other boots; empty if there is
// none.
func (p *Process) Birth() string {
	p.mu.Lock()
	pid, proc := p.status.PID, p.proc
	p.mu.Unlock()
	if pid == 0 {
		return ""
	}
	boot, err := bootID()
	if err != nil {
		return ""
	}
	started, _, err := procStat(proc)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s %d %d", boot, pid, started)
}

// ProcID is the name below /proc of the process that runs now; 0 if there is none.
func (p *Process) ProcID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.PID == 0 {
		return 0
	}
	return p.proc
}

// Ending reports whether the Envoy that runs is being drained and stopped by Run.
func (p *Process) Ending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ending
}

func (p *Process) setEnding(ending bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = ending
}

// Status is the current state of Envoy.
func (p *Process) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// Run takes over the Envoy of an earlier agent, or starts one. It restarts Envoy whenever it
// exits, and drains and stops it when ctx ends. It returns an error if the first start fails
// or Envoy cannot be stopped.
func (p *Process) Run(ctx context.Context) error {
	h, err := p.adopt(ctx)
	if err != nil {
		return err
	}
	if h == nil {
		if h, err = p.start(ctx); err != nil {
			return err
		}
	}
	again := backoff.ExponentialBackOff{InitialInterval: firstDelay, Multiplier: 2, MaxInterval: maxDelay}
	delay := time.Duration(0)
	for {
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- h.wait() }()
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			err := p.finish(ctx, h, ended)
			h.close()
			return err
		}
		p.died(h)
		if time.Since(began) >= quietTime {
			delay = 0
			again.Reset()
		}
		if h, delay = p.restart(ctx, delay, &again); h == nil {
			return nil
		}
	}
}

// restart waits for the delay and starts Envoy, until that succeeds. It returns the delay for
// the next restart; nil means that ctx ended.
func (p *Process) restart(ctx context.Context, delay time.Duration, again backoff.BackOff) (*handle, time.Duration) {
	for {
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, 0
		}
		delay = again.NextBackOff()
		h, err := p.start(ctx)
		if err == nil {
			p.mu.Lock()
			p.status.Restarts++
			p.mu.Unlock()
			return h, delay
		}
		p.log.ErrorContext(ctx, "restarting Envoy failed", "err", err, "next_try_in", delay)
		p.mu.Lock()
		p.status.LastError = err.Error()
		p.mu.Unlock()
	}
}

// adopt takes over a running Envoy, or returns nil.
func (p *Process) adopt(ctx context.Context) (*handle, error) {
	r, err := loadRecord(p.c.StateFile)
	var h *handle
	if err == nil {
		h, err = r.open()
	}
	if err != nil {
		// What they were started with is unknown, so they are replaced.
		var errs []error
		for _, h := range strays(p.c.BootstrapPath) {
			errs = append(errs, p.replace(ctx, h))
		}
		return nil, errors.Join(errs...)
	}
	if r.Fingerprint != p.launch.Fingerprint {
		return nil, p.replace(ctx, h)
	}
	p.log.InfoContext(ctx, "taking over the running Envoy", "pid", h.pid)
	p.set(h, Status{PID: h.pid, Since: time.Now(), Adopted: true})
	return h, nil
}

// replace stops an Envoy of an earlier agent.
func (p *Process) replace(ctx context.Context, h *handle) error {
	p.log.WarnContext(ctx, "restarting Envoy: its bootstrap differs from this release's", "pid", h.pid)
	defer h.close()
	p.set(h, Status{PID: h.pid, Since: time.Now(), Adopted: true}) // until it has ended
	defer p.set(h, Status{})
	ended := make(chan error, 1)
	go func() { ended <- h.wait() }()
	return p.stop(context.WithoutCancel(ctx), h, ended, p.replacing)
}

// died records how the process exited.
func (p *Process) died(h *handle) {
	how := h.exit()
	h.close()
	p.mu.Lock()
	p.status.PID, p.status.LastExit = 0, how
	p.mu.Unlock()
	p.log.Warn("Envoy exited unexpectedly, restarting it", "pid", h.pid, "exit", how, "last_words", lastLogLine(p.c.LogFile), "path", p.c.LogFile)
}

// finish ends Run: Envoy is left alone or stopped.
func (p *Process) finish(ctx context.Context, h *handle, ended <-chan error) error {
	if p.c.LeaveRunning || errors.Is(context.Cause(ctx), ErrLeave) {
		p.log.InfoContext(ctx, "leaving Envoy running", "pid", h.pid)
		p.leaving(ctx, true)
		// Ends the goroutine that waits.
		h.close()
		if err := <-ended; err != nil {
			p.log.DebugContext(ctx, "no longer watching Envoy", "err", err)
		}
		return nil
	}
	err := p.stop(context.WithoutCancel(ctx), h, ended, func(ctx context.Context) { p.leaving(ctx, false) })
	p.mu.Lock()
	p.status.PID, p.status.LastExit = 0, "stopped"
	p.mu.Unlock()
	return errors.Join(err, ignoreMissing(os.Remove(p.c.StateFile)))
}

func (p *Process) set(h *handle, s Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proc = h.proc
	s.Restarts, s.LastExit = p.status.Restarts, p.status.LastExit
	p.status = s
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
