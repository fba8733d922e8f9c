package capture

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestPortOfCaptureIsHeld: another process has the port of captured connections when Envoy starts
// again. Everybody knows, a workload whose inbound connections nobody takes is unhealthy, and all is
// well when the port is free again, without a restart.
func TestPortOfCaptureIsHeld(t *testing.T) {
	for _, c := range []struct {
		port      int
		listener  string
		unhealthy bool
	}{
		{15006, "virtualInbound", true},
		{15001, "virtualOutbound", false},
	} {
		t.Run(c.listener, func(t *testing.T) {
			h := newHost(t)
			h.service()
			h.declare(capture.Closed)
			h.startAgent()
			h.want(orders, orders, web)

			if err := syscall.Kill(h.agent.PID(), syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			h.killEnvoy()
			at := fmt.Sprintf("127.0.0.1:%d", c.port)
			envoytest.Eventually(t, envoytest.Patience, func() error { // a process that was killed has its ports for a moment
				if conn, err := h.Dial(t.Context(), "tcp", at); err == nil {
					_ = conn.Close()
					return errors.New("the port is not free yet")
				}
				return nil
			})
			_, app := h.Binaries()
			address := fmt.Sprintf("0.0.0.0:%d", c.port)
			holder := h.in(h.Host, "holder", app, "--name", "holder", "--protocol", "tcp", "--listen", address)
			holder.Eventually(envoytest.Patience, func() error {
				conn, err := h.Dial(t.Context(), "tcp", at)
				if err != nil {
					return err
				}
				return conn.Close()
			})
			if err := syscall.Kill(h.agent.PID(), syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}

			reason := "cannot bind '" + address + "': Address already in use"
			h.agent.Eventually(envoytest.Patience, func() error {
				by, err := h.Proxies()
				if err != nil {
					return err
				}
				p := by["web"]
				if p["envoy"] != "rejecting" || p["synced"] == true || (p["health"] == "unhealthy") != c.unhealthy {
					return fmt.Errorf("the server says %v", p)
				}
				out, _ := h.CLI("proxy-status", "--run-dir", h.RunDir("server"))
				if !strings.Contains(out, c.listener) || !strings.Contains(out, reason) || !strings.Contains(out, "ss -ltnp") {
					return fmt.Errorf("proxy-status: %s", out)
				}
				ready, err := h.Admin("web", "/readyz")
				if (err != nil) != c.unhealthy || !strings.Contains(ready, c.listener) || !strings.Contains(ready, reason) || !strings.Contains(ready, "ss -ltnp") {
					return fmt.Errorf("/readyz of the agent: %w %s", err, ready)
				}
				return nil
			})
			began := time.Now()
			holder.Kill()
			h.want(orders, orders, web)
			t.Logf("served again after %s", time.Since(began))
			h.AwaitLive("web")
			if ready, err := h.Admin("web", "/readyz"); err != nil || strings.Contains(ready, "rejects") {
				t.Errorf("/readyz of the agent: %v %s", err, ready)
			}
		})
	}
}
