package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const (
	deadline = envoytest.Patience
	// childConfig makes the test binary an agent that is there to be killed.
	childConfig = "FAIRLEAD_TEST_AGENT"
)

// settings configure a child process.
type settings struct {
	StateDir, RunDir, Token, Envoy string
	StatsPort, HealthPort          int
	LeaveRunning                   bool
	// AsTold means that the agent has no flags for what a ProxyConfig says.
	AsTold bool
}

func (s settings) config(log io.Writer) Config {
	c := Config{
		Logger:   slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		StateDir: s.StateDir, RunDir: s.RunDir, Token: s.Token, Envoy: s.Envoy, Address: netip.MustParseAddr("127.0.0.1"),
		StatsPort: s.StatsPort, HealthPort: s.HealthPort, DrainTime: time.Second,
		EnvoyArgs: []string{"--concurrency", "1", "--log-level", "warning"}, LeaveRunning: s.LeaveRunning, Environ: os.Environ(),
	}
	if s.AsTold {
		c.DrainTime, c.EnvoyArgs = 0, []string{"--log-level", "warning"}
	}
	return c
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childConfig); text != "" {
		os.Exit(child(text))
	}
	goleak.VerifyTestMain(m)
}

func child(text string) int {
	var s settings
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		var a *Agent
		if a, err = New(s.config(os.Stderr)); err == nil {
			err = a.Run(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	return 0
}

// machine has the directories of one agent.
type machine struct {
	tb   testing.TB
	set  settings
	env  []string // of the agent, besides the test's own
	proc *exec.Cmd
}

func newMachine(tb testing.TB, token string) *machine {
	tb.Helper()
	run := envoytest.ShortDir(tb)
	m := &machine{tb: tb, set: settings{
		StateDir: tb.TempDir(), RunDir: run, Token: token, Envoy: envoytest.Binary(tb), StatsPort: -1, HealthPort: -1,
	}}
	tb.Cleanup(func() {
		m.kill()
		if pid := m.envoyPID(); pid > 1 {
			of, _ := filepath.EvalSymlinks(m.set.Envoy)
			if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == of {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if tb.Failed() {
			for _, name := range []string{"agent.log", "envoy.log"} {
				b, _ := os.ReadFile(filepath.Join(run, name))
				tb.Logf("%s:\n%s", name, b)
			}
		}
		_ = os.RemoveAll(run)
	})
	return m
}

// start runs the agent as a process of its own.
func (m *machine) start() {
	m.tb.Helper()
	b := must[[]byte](m.tb)(json.Marshal(m.set))
	m.proc = exec.Command(must[string](m.tb)(os.Executable()))
	m.proc.Env = append(os.Environ(), childConfig+"="+string(b))
	m.proc.Env = append(m.proc.Env, m.env...)
	f, err := os.OpenFile(filepath.Join(m.set.RunDir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.tb.Fatal(err)
	}
	defer f.Close()
	m.proc.Stdout, m.proc.Stderr = f, f
	if err := m.proc.Start(); err != nil {
		m.tb.Fatal(err)
	}
}

func (m *machine) kill() {
	if m.proc != nil {
		_ = m.proc.Process.Kill()
		_ = m.proc.Wait()
		m.proc = nil
	}
}

// stop stops the agent as Ctrl-C or systemd do.
func (m *machine) stop() {
	m.tb.Helper()
	if err := m.proc.Process.Signal(syscall.SIGTERM); err != nil {
		m.tb.Fatal(err)
	}
	if err := m.proc.Wait(); err != nil {
		m.tb.Error(err)
	}
	m.proc = nil
}

// envoyPID is the process id that the agent has recorded.
func (m *machine) envoyPID() int {
	var r struct {
		PID int `json:"pid"`
	}
	b, err := os.ReadFile(filepath.Join(m.set.RunDir, "envoy.process.json"))
	if err != nil || json.Unmarshal(b, &r) != nil {
		return 0
	}
	return r.PID
}

func running(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !slices.Contains(strings.Fields(string(b)), "Z")
}

// syncBuffer is a log that is read while it is written. mu guards all following
// fields.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buf.Bytes())
}
