package faults

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// restartEnvoy kills the Envoy of a host, and runs a function before its agent starts the next one.
func (s *shop) restartEnvoy(host string, before func()) {
	s.t.Helper()
	pid, agent := s.EnvoyPID(host), s.agents[host].PID()
	check(s.t, syscall.Kill(agent, syscall.SIGSTOP))
	check(s.t, syscall.Kill(pid, syscall.SIGKILL))
	before()
	check(s.t, syscall.Kill(agent, syscall.SIGCONT))
}

// hold has a port, once it is free.
func (s *shop) hold(address string) net.Listener {
	s.t.Helper()
	var l net.Listener
	envoytest.Eventually(s.t, envoytest.Patience, func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(s.t.Context(), "tcp", address)
		return err
	})
	s.t.Cleanup(func() { _ = l.Close() })
	return l
}

// named waits until everybody who can know says that a host's Envoy does not serve a listener: the
// server by proxy-status, its exit code, the metric and the health, the agent by /readyz and the
// check. It returns how long that took.
func (s *shop) named(host, reason, cure string) time.Duration {
	s.t.Helper()
	began := time.Now()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		by, err := s.proxies()
		if err != nil {
			return err
		}
		if p := by[host]; p.Health != "unhealthy" || !strings.Contains(p.HealthReason, reason) || p.Synced || p.Envoy != "rejecting" {
			return fmt.Errorf("the server says %+v", p)
		}
		return nil
	})
	took := time.Since(began)
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		out, err := s.CLI("proxy-status", "--run-dir", s.RunDir("server"))
		exit, exited := errors.AsType[*exec.ExitError](err)
		for _, want := range []string{"\nUNWELL (2)\n", "\n  unhealthy: " + host, "\n  rejected: the Envoy of " + host, reason, cure} {
			if !exited || exit.ExitCode() != 1 || !strings.Contains(out, want) {
				return fmt.Errorf("proxy-status lacks %q: %w\n%s", want, err, out)
			}
		}
		metrics, err := s.http("/metrics")
		for _, want := range []string{`fairlead_mesh_unwell{reason="rejected"} 1`, `fairlead_mesh_unwell{reason="unhealthy"} 1`, "\npilot_xds_lds_reject 1\n"} {
			if err != nil || !strings.Contains(metrics, want) {
				return fmt.Errorf("the metrics lack %s: %w", want, err)
			}
		}
		return nil
	})
	s.namedByAgent(host, reason, cure)
	return took
}

// namedByAgent waits until a host's agent says that an inbound listener is not served, and why.
func (s *shop) namedByAgent(host, reason, cure string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		ready, err := s.Admin(host, "/readyz")
		if err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(ready, reason) || !strings.Contains(ready, cure) {
			return fmt.Errorf("/readyz of the agent: %w %s", err, ready)
		}
		out, err := s.CLI("agent", "check", "--state-dir", s.StateDir(host), "--run-dir", s.RunDir(host), "--envoy", envoytest.Binary(s.t))
		if err == nil || !strings.Contains(out, reason) {
			return fmt.Errorf("agent check: %w\n%s", err, out)
		}
		return nil
	})
}

// awaitAgentReady waits until a host's agent has no complaint.
func (s *shop) awaitAgentReady(host string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		ready, err := s.Admin(host, "/readyz")
		if err != nil || strings.Contains(ready, "rejects") {
			return fmt.Errorf("%w: %s", err, ready)
		}
		return nil
	})
}

// report ends a load and says how many requests failed; more than a number fail the test.
func (s *shop) report(l *meshtest.Load, began time.Time, most int) {
	s.t.Helper()
	r := l.Stop()
	s.t.Logf("%d of %d requests failed %v", r.Failed, r.Good+r.Failed, r.Errors)
	if r.Failed > 0 {
		s.t.Logf("the last failure was %s after the fault", r.LastFailure.Sub(began))
	}
	if r.Failed > most {
		s.t.Errorf("%d of %d requests failed: %v", r.Failed, r.Good+r.Failed, r.Errors)
	}
}

// hostFault is a reason on a host for which Envoy rejects a listener: words about it, what to do, and how
// it begins and ends.
type hostFault struct {
	reason, cure string
	begin        func(s *shop) (end func())
}

// hostFaults are reasons on the host for which an Envoy that starts again rejects its listeners.
func hostFaults(logs string) map[string]hostFault {
	return map[string]hostFault{
		"port": {"Address already in use", "ss -ltnp", func(s *shop) func() {
			l := s.hold(net.JoinHostPort(s.Address(12), "9080"))
			return func() { _ = l.Close() }
		}},
		"log": {"unable to open file '" + logs, "make the directory", func(s *shop) func() {
			check(s.t, os.RemoveAll(logs))
			return func() { check(s.t, os.MkdirAll(logs, 0o755)) }
		}},
	}
}

// newLoggedShop is a shop whose proxies write access logs to files of a directory.
func newLoggedShop(t *testing.T) (s *shop, logs string, flags []string) {
	t.Helper()
	s = newShop(t)
	logs = filepath.Join(t.TempDir(), "logs")
	check(t, os.Mkdir(logs, 0o755))
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	check(t, os.WriteFile(config, []byte("accessLogFile: "+filepath.Join(logs, "access.log")+"\n"), 0o600))
	s.evenly()
	return s, logs, []string{"--mesh-config", config}
}

// TestListenerIsNotServedAfterARestart: an Envoy that starts again cannot serve the listener that it
// served before, because of its host. Everybody knows, clients use the other host, and it is served
// again without a restart of anything when the reason has ended.
func TestListenerIsNotServedAfterARestart(t *testing.T) {
	for name := range hostFaults("") {
		t.Run(name, func(t *testing.T) {
			s, logs, flags := newLoggedShop(t)
			fault := hostFaults(logs)[name]
			s.start(flags...)
			s.awaitBoth()
			load := s.client.StartLoad(t, s.url, 100)
			load.Wait(t, 200)
			var end func()
			began := time.Now()
			s.restartEnvoy("orders-v1", func() { end = fault.begin(s) })
			took := s.named("orders-v1", fault.reason, fault.cure)
			t.Logf("known after %s", took)
			load.Wait(t, 1000)
			s.report(load, began, 120)
			// No more requests fail while it is so, and when it ends.
			load = s.client.StartLoad(t, s.url, 100)
			load.Wait(t, 300)
			ended := time.Now()
			end()
			s.awaitLive()
			t.Logf("served again after %s", time.Since(ended))
			s.awaitAnswerOf("orders-v1")
			load.Wait(t, 200)
			unharmed(t, load)
			s.unwell("", "")
			s.awaitAgentReady("orders-v1")
		})
	}
}

// TestListenerIsNotServedWithoutControlPlane: the same while the control plane is away, over a restart
// of the agent, too. The host does not forget its listener, and serves it again by itself. The control
// plane that comes back knows what is so.
func TestListenerIsNotServedWithoutControlPlane(t *testing.T) {
	for name := range hostFaults("") {
		t.Run(name, func(t *testing.T) {
			s, logs, flags := newLoggedShop(t)
			fault := hostFaults(logs)[name]
			s.start(flags...)
			s.awaitBoth()
			s.Server.Kill()
			s.killHost("orders-v1")
			end := fault.begin(s)
			s.restartAgent("orders-v1")
			s.namedByAgent("orders-v1", fault.reason, fault.cure)
			s.agents["orders-v1"].Kill()
			s.restartAgent("orders-v1")
			s.namedByAgent("orders-v1", fault.reason, fault.cure)
			s.StartServer(flags...)
			s.named("orders-v1", fault.reason, fault.cure)
			s.Server.Kill()
			ended := time.Now()
			end()
			s.awaitAgentReady("orders-v1")
			t.Logf("served again after %s, without the control plane", time.Since(ended))
			if stats := s.stats("orders-v1", "listener_manager.total_listeners_active"); stats["listener_manager.total_listeners_active"] < 2 {
				t.Errorf("listeners: %v", stats)
			}
			s.StartServer(flags...)
			s.awaitLive()
			s.awaitAnswerOf("orders-v1")
			s.unwell("", "")
		})
	}
}

const edge = `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: edge, namespace: shop}
spec: {address: 127.0.0.15, labels: {app: edge}, serviceAccount: edge}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers: [{port: {number: 8080, name: http, protocol: HTTP}, bind: 127.0.0.15, hosts: ["*"]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{route: [{destination: {host: orders.shop.internal}}]}]
`

// TestPortOfAGatewayIsHeld: the same at a gateway, which has no inbound listener of a workload: it is
// named, and its port is served again by itself.
func TestPortOfAGatewayIsHeld(t *testing.T) {
	s := newShop(t)
	s.evenly()
	s.Write("edge.yaml", edge)
	s.start()
	host := meshtest.Host{Name: "edge", Workload: "shop/edge", Address: 15, Agent: []string{"--drain-time", "1s"}}
	s.agents["edge"] = s.StartAgent(host, s.Token("--host", "edge", "--workload", host.Workload, "--type", "router"))
	url := "http://" + net.JoinHostPort(s.Address(15), "8080") + "/"
	envoytest.Eventually(t, envoytest.Patience, func() error {
		_, err := s.client.Get(t.Context(), url)
		return err
	})
	load := s.client.StartLoad(t, url, 100)
	load.Wait(t, 200)
	began := time.Now()
	var held net.Listener
	s.restartEnvoy("edge", func() { held = s.hold(net.JoinHostPort(s.Address(15), "8080")) })
	s.unwell("rejected", "cannot bind '"+s.Address(15)+":8080': Address already in use")
	t.Logf("known after %s", time.Since(began))
	if ready, err := s.Admin("edge", "/readyz"); err != nil || !strings.Contains(ready, "Address already in use") || !strings.Contains(ready, "ss -ltnp") {
		t.Errorf("/readyz of the agent: %v %s", err, ready)
	}
	check(t, held.Close())
	ended := time.Now()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		_, err := s.client.Get(t.Context(), url)
		return err
	})
	t.Logf("served again after %s", time.Since(ended))
	load.Wait(t, 200)
	r := load.Stop()
	t.Logf("%d of %d requests failed, the last %s after the port was free", r.Failed, r.Good+r.Failed, r.LastFailure.Sub(ended))
	s.unwell("", "")
}
