package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const (
	deadline = envoytest.Patience
	// childDir makes the test binary an agent that is there to be killed.
	childDir = "FAIRLEAD_TEST_PROXY_DIR"
	childBin = "FAIRLEAD_TEST_PROXY_BINARY"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		c := configIn(dir, os.Getenv(childBin))
		if _, err := os.Stat(c.BootstrapPath); errors.Is(err, os.ErrNotExist) {
			_ = writeBootstrap(c) // the directory of a container is empty
		}
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		p, err := New(c)
		if err == nil {
			err = p.Run(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func configIn(dir, binary string) Config {
	return Config{
		Logger: slog.New(slog.DiscardHandler), Binary: binary,
		BootstrapPath: filepath.Join(dir, "envoy.json"), StateFile: filepath.Join(dir, "envoy.pid.json"),
		LogFile: filepath.Join(dir, "envoy.log"), Admin: NewAdmin("unix", filepath.Join(dir, "admin.sock")),
		Fingerprint: "one", Args: []string{"--concurrency", "1"}, DrainTime: time.Second,
	}
}

// testConfig writes a bootstrap with nothing but an admin interface.
func testConfig(tb testing.TB) Config {
	tb.Helper()
	// A short path: unix sockets allow 107 bytes.
	dir := envoytest.ShortDir(tb)
	c := configIn(dir, envoytest.Binary(tb))
	if err := writeBootstrap(c); err != nil {
		tb.Fatal(err)
	}
	return c
}

func writeBootstrap(c Config) error {
	boot := fmt.Sprintf(`{"admin":{"address":{"pipe":{"path":%q}}}}`, filepath.Join(filepath.Dir(c.BootstrapPath), "admin.sock"))
	return os.WriteFile(c.BootstrapPath, []byte(boot), 0o600)
}

// running is a Process whose Run is under way; stop ends it once.
type running struct {
	*Process
	stop func() error
}

func run(tb testing.TB, c Config) *running {
	tb.Helper()
	p, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	r := &running{Process: p}
	stopped := false
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	tb.Cleanup(func() {
		if err := r.stop(); err != nil {
			tb.Error(err)
		}
	})
	return r
}

func (r *running) live(tb testing.TB, not int) Status {
	tb.Helper()
	envoytest.Eventually(tb, deadline, func() error {
		if pid := r.Status().PID; pid == 0 || pid == not {
			return fmt.Errorf("pid is %d", pid)
		}
		return r.c.Admin.Ready(tb.Context())
	})
	return r.Status()
}

func alive(pid int) bool {
	_, state, err := procStat(pid)
	return err == nil && state != "Z"
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	r := run(t, c)
	s := r.live(t, 0)
	sid, err := os.ReadFile(procPath(s.PID, "stat"))
	if err != nil {
		t.Fatal(err)
	}
	// Field 6 is the session: its own.
	after := strings.Fields(string(sid[strings.LastIndexByte(string(sid), ')')+1:]))
	if after[3] != strconv.Itoa(s.PID) {
		t.Errorf("envoy's session is %s, not its own", after[3])
	}
	if !IsEnvoy(s.PID) || IsEnvoy(os.Getpid()) || IsEnvoy(0) {
		t.Error("an Envoy is not distinguished from other processes")
	}
	out, err := os.Readlink(procPath(s.PID, "fd/1"))
	if err != nil || out != c.LogFile {
		t.Errorf("envoy writes to %q, %v", out, err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if alive(s.PID) {
		t.Error("envoy is still there")
	}
	if _, err := os.Stat(c.StateFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the note is still there: %v", err)
	}
}

func TestKilledEnvoyIsBackWithinASecond(t *testing.T) {
	t.Parallel()
	r := run(t, testConfig(t))
	pid := r.live(t, 0).PID
	began := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s := r.live(t, pid)
	// The promise is a second; the machine that tests has other things to do, and an
	// Envoy that waited for its back-off would take longer.
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("envoy was back after %s", took)
	}
	if s.Restarts != 1 || !strings.Contains(s.LastExit, "killed") {
		t.Errorf("status = %+v", s)
	}
}

func TestAdoptsRunningEnvoy(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	c.LeaveRunning = true
	first := run(t, c)
	pid := first.live(t, 0).PID
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if !alive(pid) || !Running(c.StateFile, c.BootstrapPath) {
		t.Fatal("envoy was not left running")
	}
	c.LeaveRunning = false
	second := run(t, c)
	if s := second.live(t, 0); s.PID != pid || !s.Adopted {
		t.Errorf("status = %+v, want the adopted %d", s, pid)
	}
	// An adopted Envoy is no child, and its death is seen all the same.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second.live(t, pid)
}

func TestReplacesAnotherConfiguration(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	c.LeaveRunning = true
	first := run(t, c)
	pid := first.live(t, 0).PID
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	c.LeaveRunning, c.Fingerprint = false, "two"
	if s := run(t, c).live(t, pid); s.Adopted {
		t.Errorf("status = %+v", s)
	}
	envoytest.Eventually(t, deadline, func() error {
		if alive(pid) {
			return errors.New("the first envoy is still there")
		}
		return nil
	})
}

// TestKilledAgent kills an agent, with and without the record on disk.
func TestKilledAgent(t *testing.T) {
	t.Parallel()
	for _, noted := range []bool{true, false} {
		t.Run(fmt.Sprintf("noted_%t", noted), func(t *testing.T) {
			t.Parallel()
			c := testConfig(t)
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			child := exec.Command(exe)
			child.Env = append(os.Environ(), childDir+"="+filepath.Dir(c.StateFile), childBin+"="+c.Binary)
			child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			envoytest.Eventually(t, deadline, func() error { return c.Admin.Ready(t.Context()) })
			rec, err := loadRecord(c.StateFile)
			if err != nil {
				t.Fatal(err)
			}
			// Its whole process group, as a terminal would: Envoy is in none of ours.
			if err := syscall.Kill(-child.Process.Pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = child.Wait()
			if err := c.Admin.Ready(t.Context()); err != nil {
				t.Fatalf("envoy ended with its agent: %v", err)
			}
			if !noted {
				if err := os.Remove(c.StateFile); err != nil {
					t.Fatal(err)
				}
				if !Running(c.StateFile, c.BootstrapPath) {
					t.Error("an envoy without a note was not found")
				}
			}
			r := run(t, c)
			if noted {
				if s := r.live(t, 0); s.PID != rec.PID {
					t.Errorf("pid = %d, want %d", s.PID, rec.PID)
				}
				return
			}
			r.live(t, rec.PID)
			if alive(rec.PID) {
				t.Error("two envoys run")
			}
		})
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c := testConfig(t)
	c.Listens = []netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Run = %v, want address in use", err)
	}
}

// TestAnotherProcessIsNotAdopted records this process as the Envoy.
func TestAnotherProcessIsNotAdopted(t *testing.T) {
	t.Parallel()
	self, err := openHandle(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.close()
	good, err := newRecord(self, "/proc/self/exe", "one")
	if err != nil {
		t.Fatal(err)
	}
	opens := func(r record) error {
		h, err := r.open()
		if err == nil {
			h.close()
		}
		return err
	}
	if err := opens(good); err != nil {
		t.Fatalf("the record that the cases spoil is not good: %v", err)
	}
	earlier := good
	if earlier.PIDNamespace = ""; opens(earlier) != nil {
		t.Error("a record of an earlier release, without the pid namespace, is not taken")
	}
	for name, spoil := range map[string]func(*record){
		"pid":   func(r *record) { r.PID = 1 },
		"start": func(r *record) { r.StartTime++ },
		"boot":  func(r *record) { r.BootID = "x" },
		"exe":   func(r *record) { r.Binary = "/usr/bin/envoy" },
		// The processes of another namespace have the same ids.
		"namespace": func(r *record) { r.PIDNamespace = "pid:[1]" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := good
			spoil(&r)
			if err := opens(r); !errors.Is(err, errGone) {
				t.Errorf("open = %v, want errGone", err)
			}
		})
	}
}

func TestDyingEnvoyIsRetriedSlowly(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	if err := os.WriteFile(c.BootstrapPath, []byte(`{"nonsense": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, c)
	envoytest.Eventually(t, deadline, func() error {
		if s := r.Status(); s.Restarts < 2 || !strings.Contains(s.LastExit, "exit status 1") {
			return fmt.Errorf("status = %+v", s)
		}
		return nil
	})
	if words := lastLogLine(c.LogFile); !strings.Contains(words, "nonsense") {
		t.Errorf("last words = %q", words)
	}
}

// TestFindBinary is not parallel: a process that is forked while a script is
// being written would hold it open, and running it would fail.
func TestFindBinary(t *testing.T) {
	for _, v := range envoytest.Versions() {
		b, err := FindBinary(t.Context(), envoytest.BinaryVersion(t, v), nil)
		if err != nil || b.Version.String() != v {
			t.Errorf("FindBinary(%s) = %+v, %v", v, b, err)
		}
	}
	fake := func(script string) string {
		path := filepath.Join(t.TempDir(), "envoy")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct{ path, says string }{
		"old":     {fake("echo 'envoy  version: abc/1.35.9/Clean/RELEASE/BoringSSL'"), "1.36 is the oldest"},
		"strange": {fake("echo hello"), "says no Envoy version"},
		"fails":   {fake("exit 3"), "exit status 3"},
		"missing": {"/nonexistent/envoy", "cannot be run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := FindBinary(t.Context(), c.path, nil); !errors.Is(err, ErrNoBinary) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("FindBinary = %v, want %q", err, c.says)
			}
		})
	}
}

// TestRemovedBootstrapIsWrittenAgain removes the bootstrap and the admin socket of an Envoy that
// runs, and kills it.
func TestRemovedBootstrapIsWrittenAgain(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	var err error
	if c.Bootstrap, err = os.ReadFile(c.BootstrapPath); err != nil {
		t.Fatal(err)
	}
	if err := c.Admin.Ready(t.Context()); !errors.Is(err, ErrNoAdminSocket) {
		t.Errorf("before the start: %v, want ErrNoAdminSocket", err)
	}
	r := run(t, c)
	pid := r.live(t, 0).PID
	if err := errors.Join(os.Remove(c.BootstrapPath), os.Remove(filepath.Join(filepath.Dir(c.BootstrapPath), "admin.sock"))); err != nil {
		t.Fatal(err)
	}
	if err := c.Admin.Ready(t.Context()); !errors.Is(err, ErrNoAdminSocket) {
		t.Errorf("without its socket: %v, want ErrNoAdminSocket", err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.live(t, pid)
}
