package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/svid"
)

// TestNotReadySaysWhatIsSo breaks one thing of a real Envoy after the other: each has its own words, and
// none of them is that there is no configuration. What is mended is not named any more.
func TestNotReadySaysWhatIsSo(t *testing.T) {
	t.Parallel()
	cp := newPlane(t, 0)
	port := envoytest.FreePorts(t, 1)[0]
	cp.set(port)
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	a := agentHere(t, m.set.config(&bytes.Buffer{}))
	says := func(want string) {
		t.Helper()
		envoytest.Eventually(t, deadline, func() error {
			why := a.NotReady(t.Context())
			if want == "" && len(why) == 0 || want != "" && len(why) == 1 && strings.Contains(why[0], want) {
				return nil
			}
			return fmt.Errorf("not ready: %q, want %q", why, want)
		})
		problems := a.hostProblems(t.Context())
		if (want == "") != (len(problems) == 0) {
			t.Errorf("the control plane is told %q", problems)
		}
	}
	envoytest.Eventually(t, deadline, cp.caller(port).call)
	says("")
	pid := a.Status().Envoy.PID

	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	says(fmt.Sprintf("Envoy (process %d) does not answer: it is stopped (by SIGSTOP, or a debugger) and serves nothing; `kill -CONT %d`", pid, pid))
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	says("")

	if _, err := a.askEnvoy(t.Context(), (*proxy.Admin).Post, "/healthcheck/fail"); err != nil {
		t.Fatal(err)
	}
	says("Envoy is draining")
	if _, err := a.askEnvoy(t.Context(), (*proxy.Admin).Post, "/healthcheck/ok"); err != nil {
		t.Fatal(err)
	}
	says("")

	// Another process has made the socket anew, and ended.
	a.mu.Lock()
	path := a.adminPaths.moved
	a.mu.Unlock()
	if err := os.Rename(path, path+"x"); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		err = errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Close(fd))
	}
	if err != nil {
		t.Fatal(err)
	}
	says("Envoy does not listen at its admin interface")
	if err := os.Rename(path+"x", path); err != nil {
		t.Fatal(err)
	}
	says("")
}

// TestReplacementIsNoProblem: an agent that replaces the Envoy of the agent before it, as at an upgrade,
// tells people so, and the control plane nothing.
func TestReplacementIsNoProblem(t *testing.T) {
	t.Parallel()
	cp := newPlane(t, 0)
	port := envoytest.FreePorts(t, 1)[0]
	cp.set(port)
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	web := cp.caller(port)
	m.start()
	envoytest.Eventually(t, deadline, web.call)
	open, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), web.tls) // which the drain waits for
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	old := m.envoyPID()
	m.kill()

	config := m.set.config(&bytes.Buffer{})
	config.DrainTime, config.EnvoyMaxHeapMiB = deadline, 512
	a := must[*Agent](t)(New(config))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	envoytest.Eventually(t, deadline, func() error {
		if why := strings.Join(a.NotReady(t.Context()), "; "); !strings.Contains(why, "Envoy is draining") {
			return fmt.Errorf("not ready: %q", why)
		}
		return nil
	})
	if problems := a.hostProblems(t.Context()); len(problems) > 0 {
		t.Errorf("the control plane is told %q", problems)
	}
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, deadline, func() error {
		if pid := m.envoyPID(); pid == old {
			return fmt.Errorf("envoy %d was not replaced", pid)
		}
		return web.call()
	})
}

// TestProblemsLast: what is shorter than the server's own patience is not reported, and an Envoy that
// crashes at each start, is.
func TestProblemsLast(t *testing.T) {
	t.Parallel()
	crashed, saved := problemOf(envoyExited, "exit status 1"), problemOf(fileUnsaved, "accepted.xds", "no space", "/var")
	limit := problemOf(connectionsClosed, 30)
	limit.lasted = true
	var l lasting
	start := time.Now()
	for at := range 60 {
		var is []problem
		var want []string
		add := func(p problem, reported bool) {
			if is = append(is, p); reported {
				want = append(want, p.String())
			}
		}
		if at < 50 && at%10 < 8 { // it runs for two seconds of ten
			add(crashed, at >= 30)
		}
		if at >= 10 {
			add(problemOf(envoyFrozen, at), at >= 40) // its details change
		}
		if at >= 20 && at < 49 {
			add(saved, false)
		}
		if at == 5 { // it was there at two readings
			add(limit, true)
		}
		if got := l.of(is, start.Add(time.Duration(at)*time.Second)); !slices.Equal(got, want) {
			t.Errorf("after %d s: %q, want %q", at, got, want)
		}
	}
	if got := l.of([]problem{crashed, saved}, start.Add(time.Hour)); len(got) > 0 {
		t.Errorf("an hour later: %q", got)
	}
	var o overload
	for i, want := range []bool{false, true, true} {
		if o.set([]problem{problemOf(connectionsClosed, i)}, start); o.problems[0].lasted != want {
			t.Errorf("reading %d of a limit: lasted is %v", i, !want)
		}
	}
	if o.set([]problem{problemOf(requestsRefused, 1)}, start); o.problems[0].lasted {
		t.Error("the first reading of another limit has lasted")
	}
}

// TestExpiredCertificateIsAProblem: nothing else tells the control plane.
func TestExpiredCertificateIsAProblem(t *testing.T) {
	t.Parallel()
	a := &Agent{saver: newSaver(slog.New(slog.DiscardHandler))}
	a.workload.Store(&svid.Identity{SVID: x509svid.SVID{Certificates: []*x509.Certificate{{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(-time.Minute)}}}})
	if got := strings.Join(asTexts(a.hostProblems(t.Context())), "; "); !strings.Contains(got, "the workload's certificate expired at ") {
		t.Errorf("the control plane is told %q", got)
	}
}

// TestExplainsWithoutEnvoy: what cannot be provoked from outside of a process.
func TestExplainsWithoutEnvoy(t *testing.T) {
	t.Parallel()
	a := &Agent{}
	for err, want := range map[error]string{
		fmt.Errorf("dialing: %w", syscall.EMFILE):    "the agent cannot open another file or connection (its limit is ",
		fmt.Errorf("dialing: %w", syscall.EAGAIN):    "Envoy (process 0) does not answer",
		proxy.ErrNoAdminSocket:                       "admin socket does not exist, and Envoy has not connected",
		&proxy.StateError{State: "PRE_INITIALIZING"}: "Envoy has no configuration yet",
		errors.New("something else"):                 "asking Envoy how it is: something else",
	} {
		if got := a.explain(err); !strings.Contains(got.Error(), want) || !errors.Is(got, err) {
			t.Errorf("%v is explained by %q, want %q", err, got, want)
		}
	}
	for want, s := range map[string]Status{
		"Envoy is not running; the agent starts it":                                                         {},
		"Envoy is not running: writing Envoy's bootstrap: no space left on device; correct what this names": {Envoy: proxy.Status{LastError: "writing Envoy's bootstrap: no space left on device", LastExit: "killed"}},
		"Envoy is not running: its last exit was exit status 1; envoy.log in the agent's run directory":     {Envoy: proxy.Status{LastExit: "exit status 1"}},
	} {
		if got := notRunning(&s).String(); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestOverloadSaysWhichLimit starts real Envoys with small limits, which refuse connections.
func TestOverloadSaysWhichLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		heapMiB int
		says    string
	}{
		"heap": {1, "Envoy refuses new connections: it uses nearly all of the 1 MiB that it may have; raise --envoy-max-heap-mib"},
		"none": {-1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cp := newPlane(t, 0)
			cp.set(envoytest.FreePorts(t, 1)[0])
			m := newMachine(t, cp.token("orders-1", "shop/orders"))
			config := m.set.config(&bytes.Buffer{})
			config.EnvoyMaxHeapMiB = c.heapMiB
			a := runHere(t, config) // an Envoy at its limit is never ready
			envoytest.Eventually(t, deadline, func() error {
				s := a.Status()
				if s.Relay == nil {
					return errors.New("the agent has not joined yet")
				}
				if why := a.NotReady(t.Context()); !live(&s) || strings.Join(why, "\n") != c.says && (c.says == "" || len(why) != 1 || !strings.HasPrefix(why[0], c.says)) {
					return fmt.Errorf("not ready: %q, want %q; Envoy is %s: %+v", why, c.says, s.Relay.Envoy, s.Relay.Envoys)
				}
				return nil
			})
			if starting := a.Starting(t.Context()); len(starting) > 0 {
				t.Errorf("a supervisor waits for %q", starting)
			}
		})
	}
}
