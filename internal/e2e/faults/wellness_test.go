package faults

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	sys "golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// says waits until the /readyz of the agent of orders-v1 says why it is not ready, or that it is; and until
// proxy-status has the same words, below one of the reasons.
func (s *shop) says(want string, reasons ...string) {
	s.t.Helper()
	const host = "orders-v1"
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		ready, err := s.Admin(host, "/readyz")
		if said := strings.Contains(fmt.Sprint(ready, err), want); want != "" && !said || want == "" && (err != nil || !strings.HasPrefix(ready, "ready\n")) {
			return fmt.Errorf("/readyz of the agent, want %q: %w\n%s", want, err, ready)
		}
		out, _ := s.CLI("proxy-status", "--run-dir", s.RunDir("server"), host)
		if want == "" {
			if strings.Contains(out, "UNWELL") {
				return fmt.Errorf("all should be well:\n%s", out)
			}
			return nil
		}
		_, list, _ := strings.Cut(out, "\nUNWELL (")
		for _, reason := range reasons {
			for line := range strings.Lines(list) {
				if strings.HasPrefix(line, "  "+reason+": ") && strings.Contains(line, want) {
					return nil
				}
			}
		}
		return fmt.Errorf("proxy-status does not say %q below %v:\n%s", want, reasons, out)
	})
}

// TestEnvoyFrozen stops an Envoy by a signal: its agent and the server say so, clients use the other host,
// and all is well when it runs again.
func TestEnvoyFrozen(t *testing.T) {
	s := newShop(t)
	s.evenly()
	s.start()
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 100)
	pid := s.EnvoyPID("orders-v1")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	s.says(fmt.Sprintf("Envoy (process %d) does not answer: it is stopped (by SIGSTOP", pid), "unhealthy", "host-problem")
	s.awaitHealth("orders-v1", "unhealthy")
	took := time.Since(began)
	load.Wait(t, 200)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.says("")
	load.Wait(t, 100)
	r := load.Stop()
	t.Logf("known after %s; %d of %d requests failed %v", took, r.Failed, r.Good+r.Failed, r.Errors)
	if now := s.EnvoyPID("orders-v1"); now != pid {
		t.Errorf("the Envoy was replaced: %d, then %d", pid, now)
	}
	// Those that are under way when it stops, and until the others know.
	if r.Failed > 55 {
		t.Errorf("%d of %d requests failed: %v", r.Failed, r.Good+r.Failed, r.Errors)
	}
	s.noRejections()
}

// TestEnvoyAtItsLimit takes all connections that an Envoy may have: those that are there go on, and agent
// and server say that new ones are closed.
func TestEnvoyAtItsLimit(t *testing.T) {
	s := newShop(t)
	for i := range s.hosts {
		if s.hosts[i].Name == "orders-v1" {
			s.hosts[i].Agent = append(s.hosts[i].Agent, "--envoy-max-connections", "30")
		}
	}
	s.evenly()
	s.start()
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 100)
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for range 60 {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(s.Address(12), "9080"), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	s.says("Envoy closes new connections: it has the 30 that it may have", "host-problem")
	load.Wait(t, 100)
	for _, c := range open {
		_ = c.Close()
	}
	s.says("")
	load.Wait(t, 100)
	r := load.Stop()
	t.Logf("%d of %d requests failed %v", r.Failed, r.Good+r.Failed, r.Errors)
	if r.Failed > r.Good/2 {
		t.Errorf("%d of %d requests failed: %v", r.Failed, r.Good+r.Failed, r.Errors)
	}
	s.noRejections()
}

// TestAgentOutOfDescriptors leaves the agent no descriptor: Envoy serves, and agent and server say what is
// the matter. What is away ends by itself.
func TestAgentOutOfDescriptors(t *testing.T) {
	s := newShop(t)
	s.evenly()
	s.start()
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 100)
	pid := s.agents["orders-v1"].PID()
	var was sys.Rlimit
	if err := sys.Prlimit(pid, sys.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	limit := func(n uint64) {
		t.Helper()
		if err := sys.Prlimit(pid, sys.RLIMIT_NOFILE, &sys.Rlimit{Cur: n, Max: was.Max}, nil); err != nil {
			t.Fatal(err)
		}
	}
	used, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	limit(uint64(len(used)) / 2) // those that are open stay
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, _ := s.CLI("proxy-status", "--run-dir", s.RunDir("server"), "orders-v1")
		if !strings.Contains(out, "the agent cannot open another file or connection (its limit is ") {
			return errors.New(out)
		}
		return nil
	})
	out, err := s.CLI("agent", "check", "--run-dir", s.RunDir("orders-v1"), "--state-dir", s.StateDir("orders-v1"))
	if err == nil || !strings.Contains(out, "descriptors") || !strings.Contains(out, fmt.Sprintf("process %d", pid)) {
		t.Errorf("agent check: %v\n%s", err, out)
	}
	load.Wait(t, 100)
	limit(was.Cur)
	s.says("")
	load.Wait(t, 100)
	unharmed(t, load)
}

// TestAgentRestartsWithoutAdminSocket removes Envoy's admin socket and kills the agent: the next one takes
// the Envoy over, no request fails, and the status says what does not work.
func TestAgentRestartsWithoutAdminSocket(t *testing.T) {
	s := newShop(t)
	s.start()
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 100)
	pid := s.EnvoyPID("orders-v1")
	s.agents["orders-v1"].Kill()
	s.removeSockets(s.RunDir("orders-v1"))
	s.restartAgent("orders-v1")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		ready, err := s.Admin("orders-v1", "/readyz")
		if err != nil || !strings.HasPrefix(ready, "ready\n") || !strings.Contains(ready, "Envoy's admin socket was removed") {
			return fmt.Errorf("/readyz of the agent: %w\n%s", err, ready)
		}
		out, _ := s.CLI("proxy-status", "--run-dir", s.RunDir("server"), "orders-v1")
		if !strings.Contains(out, "  host-problem: ") || !strings.Contains(out, "Envoy's admin socket was removed") {
			return fmt.Errorf("proxy-status does not say so:\n%s", out)
		}
		return nil
	})
	load.Wait(t, 100)
	unharmed(t, load)
	if now := s.EnvoyPID("orders-v1"); now != pid {
		t.Errorf("the Envoy was replaced: %d, then %d", pid, now)
	}
}
