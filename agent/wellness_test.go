package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/internal/envoytest"
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
	says(fmt.Sprintf("Envoy (process %d) does not answer: it is stopped (by SIGSTOP, or a debugger) and serves nothing: `kill -CONT %d`", pid, pid))
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

// TestExplainsWithoutEnvoy: what cannot be provoked from outside of a process.
func TestExplainsWithoutEnvoy(t *testing.T) {
	t.Parallel()
	a := &Agent{}
	for err, want := range map[error]string{
		fmt.Errorf("dialing: %w", syscall.EMFILE):    "the agent cannot open another file or connection (its limit is ",
		fmt.Errorf("dialing: %w", syscall.EAGAIN):    "Envoy (process 0) does not answer",
		proxy.ErrNoAdminSocket:                       "admin socket does not exist, and Envoy has not connected",
		&proxy.StateError{State: "PRE_INITIALIZING"}: noConfiguration,
		errors.New("something else"):                 "asking Envoy how it is: something else",
	} {
		if got := a.explain(err); !strings.Contains(got.Error(), want) || !errors.Is(got, err) {
			t.Errorf("%v is explained by %q, want %q", err, got, want)
		}
	}
	for want, s := range map[string]Status{
		"Envoy is not running": {},
		"Envoy is not running: writing Envoy's bootstrap: no space left on device":  {Envoy: proxy.Status{LastError: "writing Envoy's bootstrap: no space left on device", LastExit: "killed"}},
		"Envoy is not running: its last exit was exit status 1; envoy.log says why": {Envoy: proxy.Status{LastExit: "exit status 1"}},
	} {
		if got := notRunning(&s); got != want {
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
		"heap": {1, "Envoy refuses new connections: it uses nearly all of the 1 MiB that it may have: raise --envoy-max-heap-mib"},
		"none": {-1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cp := newPlane(t, 0)
			cp.set(envoytest.FreePorts(t, 1)[0])
			m := newMachine(t, cp.token("orders-1", "shop/orders"))
			config := m.set.config(&bytes.Buffer{})
			config.EnvoyMaxHeapMiB = c.heapMiB
			a := agentHere(t, config)
			envoytest.Eventually(t, deadline, func() error {
				s := a.Status()
				if why := a.NotReady(t.Context()); !live(&s) || strings.Join(why, "\n") != c.says && (c.says == "" || len(why) != 1 || !strings.HasPrefix(why[0], c.says)) {
					return fmt.Errorf("not ready: %q, want %q", why, c.says)
				}
				return nil
			})
			if starting := a.Starting(t.Context()); len(starting) > 0 {
				t.Errorf("a supervisor waits for %q", starting)
			}
		})
	}
	for stats, want := range map[string]string{
		"overload.envoy.overload_actions.stop_accepting_requests.active: 1\n":    "answers new requests with 503",
		"overload.envoy.overload_actions.stop_accepting_connections.active: 0\n": "",
		"server.total_connections: 9\n":                                          "",
		"server.total_connections: 10\n":                                         "Envoy closes new connections: it has the 10 that it may have: raise --envoy-max-connections",
	} {
		if got := overloadText(stats, 1<<30, 10); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%q: %q, want %q", stats, got, want)
		}
	}
}
