package meshtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// Process is a process of a mesh. It is ended with its test.
type Process struct {
	Name string
	tb   testing.TB
	cmd  *exec.Cmd
	log  *envoytest.Log
	done chan struct{}
}

// Start starts a process in a session of its own and collects what it prints.
func (m *Mesh) Start(name string, argv ...string) *Process {
	m.tb.Helper()
	p := &Process{Name: name, tb: m.tb, cmd: exec.Command(argv[0], argv[1:]...), log: &envoytest.Log{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "FAIRLEAD_TEST_CLOCK="+m.clockFile(name))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		m.tb.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	m.tb.Cleanup(func() {
		p.Stop()
		// An Envoy outlives an agent that was killed: end it, too.
		if pid := m.EnvoyPID(name); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if m.tb.Failed() {
			m.tb.Logf("log of %s:\n%s", name, p.Log())
		}
	})
	return p
}

// SetClock sets the wall clock of a process of the product, which [NewWithClocks] made,
// whether it runs or not: by so much it is off from then on. Its Envoy's clock stays
// right.
func (m *Mesh) SetClock(name string, off time.Duration) {
	m.tb.Helper()
	tmp := m.clockFile(name) + ".new"
	if err := os.WriteFile(tmp, []byte(off.String()), 0o600); err != nil {
		m.tb.Fatal(err)
	}
	if err := os.Rename(tmp, m.clockFile(name)); err != nil {
		m.tb.Fatal(err)
	}
}

func (m *Mesh) clockFile(name string) string { return filepath.Join(m.Dir, name+".clock") }

// EnvoyPID is the process id of a host's Envoy, read from the kernel by the
// path of its bootstrap; 0 if none runs.
func (m *Mesh) EnvoyPID(host string) int {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0
	}
	for _, d := range dirs {
		line, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err != nil {
			continue
		}
		argv := strings.Split(string(line), "\x00")
		if !strings.HasSuffix(argv[0], "/envoy") {
			continue
		}
		for _, a := range argv[1:] {
			if strings.HasPrefix(a, m.RunDir(host)+"/") || strings.HasPrefix(a, m.StateDir(host)+"/") {
				pid, err := strconv.Atoi(filepath.Base(d))
				if err == nil {
					return pid
				}
			}
		}
	}
	return 0
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process at once, as kill -9 does, and waits for it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process to end, and kills it if it does not.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(envoytest.Patience):
		p.tb.Errorf("%s does not end on SIGTERM", p.Name)
		p.Kill()
	}
}

// Log is what the process has printed.
func (p *Process) Log() string { return p.log.String() }

// Ended reports whether the process is gone.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Eventually asks until the answer is nil; it fails at once if the process
// ends.
func (p *Process) Eventually(deadline time.Duration, ask func() error) {
	p.tb.Helper()
	envoytest.Eventually(p.tb, deadline, func() error {
		if p.Ended() {
			p.tb.Fatalf("%s ended: %v\n%s", p.Name, p.cmd.ProcessState, p.Log())
		}
		return ask()
	})
}
