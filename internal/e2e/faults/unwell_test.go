package faults

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// unwell waits until proxy-status says that something needs a person, and that it is exactly
// this; an empty text means that all is well. The metric and /readyz say the same.
func (s *shop) unwell(reason, text string, args ...string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		out, err := s.CLI(append([]string{"proxy-status", "--run-dir", s.RunDir("server")}, args...)...)
		_, list, found := strings.Cut(out, "\nUNWELL (")
		exit, exited := errors.AsType[*exec.ExitError](err)
		switch {
		case reason == "" && (err != nil || found):
			return fmt.Errorf("all should be well: %w\n%s", err, out)
		case reason != "" && (!exited || exit.ExitCode() != 1 || !strings.HasPrefix(list, "1)\n  "+reason+": ") || !strings.Contains(list, text)):
			return fmt.Errorf("exit code of %w; want 1 and %s alone, with %q:\n%s", err, reason, text, out)
		case len(args) > 0:
			return nil
		}
		ready, err := s.http("/readyz")
		if err != nil || !strings.HasPrefix(ready, "ready\n") || strings.Contains(ready, "unwell: "+reason+" 1;") != (reason != "") || strings.Contains(ready, "unwell") != (reason != "") {
			return fmt.Errorf("%w: /readyz says %q, want %q", err, ready, reason)
		}
		metrics, err := s.http("/metrics")
		if n := strings.Count(metrics, "\nfairlead_mesh_unwell{"); err != nil || n < 10 {
			return fmt.Errorf("%d values of the metric: %w", n, err)
		}
		for line := range strings.Lines(metrics) {
			if !strings.HasPrefix(line, "fairlead_mesh_unwell{") {
				continue
			}
			if is := strings.Contains(line, `"`+reason+`"`); is != strings.HasSuffix(strings.TrimSpace(line), " 1") || !is && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
				return fmt.Errorf("the metric says %s", line)
			}
		}
		return nil
	})
}

// http asks the port for health and metrics; an answer that is not 200 is an error.
func (s *shop) http(path string) (string, error) {
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+net.JoinHostPort(s.Address(1), "15014")+path, nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, res.Status)
	}
	return string(b), err
}

// TestStatusCanBeAlertedOn: exit code, metric and /readyz are well when all is, and not before: not
// while an agent is stopped, and not after a host has died while the server was away. A start that
// was a mistake, and was repaired, is over.
func TestStatusCanBeAlertedOn(t *testing.T) {
	s := newShop(t)
	s.evenly()
	s.start("--absent-after", "3s")
	s.unwell("", "")

	// An agent is stopped, and started with another address by mistake; then as it was.
	s.agents["orders-v1"].Stop()
	s.unwell("host-absent", "host orders-v1 left ")
	s.unwell("host-absent", "host orders-v1 left ", "orders-v1")
	s.unwell("", "", "web", "inventory")
	wrong := s.host("orders-v1")
	wrong.Address = 77
	mistaken := s.StartAgent(wrong, "")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, err := s.CLI("proxy-status", "--run-dir", s.RunDir("server"))
		if err == nil || !strings.Contains(out, "refused: host orders-v1 is refused a stream") || !strings.Contains(out, "no workload of the mesh fits") {
			return fmt.Errorf("the mistake is not named: %w\n%s", err, out)
		}
		return nil
	})
	mistaken.Stop()
	s.restartAgent("orders-v1")
	s.awaitLive()
	s.unwell("", "")

	// A host dies while the server is away.
	s.Server.Kill()
	pid := s.EnvoyPID("orders-v2")
	s.agents["orders-v2"].Kill()
	_ = syscall.Kill(pid, syscall.SIGKILL)
	s.StartServer("--absent-after", "3s")
	s.unwell("host-absent", "host orders-v2 has not connected since the server started")
	if out, _ := s.CLI("proxy-status", "--run-dir", s.RunDir("server")); !strings.Contains(out, "not back ") || !strings.Contains(out, "fairlead host remove orders-v2") {
		t.Errorf("there is no row of the host that died, or nothing to do:\n%s", out)
	}
	if _, err := s.CLI("host", "remove", "orders-v2", "--run-dir", s.RunDir("server")); err != nil {
		t.Error(err)
	}
	s.unwell("", "")
}
