package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestRestartsWithoutControlPlane shows that a host comes back with nobody to
// ask: first one host in good order, then one by kill -9, then all of them at
// once, as by a loss of power.
func TestRestartsWithoutControlPlane(t *testing.T) {
	s := newShop(t)
	s.start()
	for _, h := range s.names() {
		// Long used; nobody shall need it again.
		if err := os.Remove(filepath.Join(s.Dir, h+".token")); err != nil {
			t.Fatal(err)
		}
	}
	s.Server.Kill()

	s.agents["orders-v1"].Stop()
	s.awaitNoEnvoy("orders-v1")
	s.restartAgent("orders-v1")
	s.awaitTraffic()
	s.awaitAnswerOf("orders-v1")

	s.killHost("web")
	s.restartAgent("web")
	s.awaitTraffic()

	// An agent alone takes its Envoy over, which needs nobody for that either.
	load := s.client.StartLoad(t, s.url, 50)
	pid := s.EnvoyPID("inventory")
	s.agents["inventory"].Kill()
	load.Wait(t, 20)
	s.restartAgent("inventory")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, err := unix(t.Context(), filepath.Join(s.RunDir("inventory"), "admin.sock"), "/v1/status")
		if err == nil && !strings.Contains(out, `"adopted":true`) {
			err = fmt.Errorf("status %s", out)
		}
		return err
	})
	load.Wait(t, 20)
	unharmed(t, load)
	if now := s.EnvoyPID("inventory"); now != pid {
		t.Errorf("the Envoy of inventory was replaced: %d, then %d", pid, now)
	}

	for _, h := range s.names() {
		s.killHost(h)
		// What is under /run does not outlive a reboot.
		if err := os.RemoveAll(s.RunDir(h)); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range s.names() {
		s.restartAgent(h)
	}
	began := time.Now()
	s.awaitBoth()
	t.Logf("traffic %s after the agents were started", time.Since(began))
	load = s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 50)

	// The control plane comes back to hosts that are up to date.
	s.StartServer()
	s.awaitLive()
	load.Wait(t, 50)
	unharmed(t, load)
	if n := sum(s.metrics(), "fairlead_xds_resources_sent_total"); n != 0 {
		t.Errorf("the control plane sent %d resources to hosts that had all", n)
	}
	s.noRejections()
}

// killHost kills a host's agent and Envoy.
func (s *shop) killHost(name string) {
	s.t.Helper()
	s.agents[name].Kill()
	if err := syscall.Kill(s.EnvoyPID(name), syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	s.awaitNoEnvoy(name)
}

func (s *shop) awaitNoEnvoy(name string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		if pid := s.EnvoyPID(name); pid != 0 {
			return fmt.Errorf("envoy %d of %s is still there", pid, name)
		}
		return nil
	})
}

// awaitAnswerOf waits until one of the orders has answered.
func (s *shop) awaitAnswerOf(name string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		a, err := s.client.Get(s.t.Context(), s.url)
		if err == nil && (a.Next == nil || a.Next.Name != name) {
			err = fmt.Errorf("%+v answered", a.Next)
		}
		return err
	})
}

// TestFilesChangeWhileControlPlaneIsAway shows that a control plane which starts
// with a broken file keeps what it last gave, and lets go of what was deleted.
func TestFilesChangeWhileControlPlaneIsAway(t *testing.T) {
	s := newShop(t)
	s.Write("extra.yaml", extra)
	s.Edit("orders.yaml", `["./inventory.shop.internal"]`, `["./inventory.shop.internal", "./extra.shop.internal"]`)
	s.start()
	s.awaitCluster("orders-v1", "outbound|9090||extra.shop.internal", true)
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 50)
	s.Server.Kill()
	s.Edit("orders.yaml", "  http:", "  htttp: [")
	if err := os.Remove(filepath.Join(s.ConfigDir, "extra.yaml")); err != nil {
		t.Fatal(err)
	}
	s.StartServer()
	s.awaitLive()
	s.awaitCluster("orders-v1", "outbound|9090||extra.shop.internal", false)
	load.Wait(t, 100)
	for _, w := range []string{"v1", "v2"} {
		s.awaitAnswerOf("orders-" + w)
	}
	if out, err := s.CLI("proxy-status", "--run-dir", s.RunDir("server")); err == nil || !strings.Contains(out, "orders.yaml:") {
		t.Errorf("proxy-status does not name the broken file: %v\n%s", err, out)
	}
	unharmed(t, load)
	s.noRejections()
}

// extra is a service that the orders see.
const extra = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: extra, namespace: shop}
spec:
  hosts: [extra.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 9090, name: grpc, protocol: GRPC}
  endpoints:
  - address: 127.0.0.14
`

// awaitCluster waits until a host's Envoy has a cluster, or has it no more.
func (s *shop) awaitCluster(host, name string, there bool) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		if got := strings.Contains(s.envoy(host, "/clusters"), name+"::"); got != there {
			return fmt.Errorf("envoy of %s has cluster %s: %t", host, name, got)
		}
		return nil
	})
}

// TestRootVanishes shows that a directory which cannot be read takes nothing
// away.
func TestRootVanishes(t *testing.T) {
	s := newShop(t)
	s.start("--scan-interval", "200ms")
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 50)
	elsewhere := filepath.Join(s.Dir, "elsewhere")
	before := s.metrics()
	if err := os.Rename(s.ConfigDir, elsewhere); err != nil {
		t.Fatal(err)
	}
	s.awaitSource("unavailable")
	load.Wait(t, 100)
	if n, was := sum(s.metrics(), "pilot_xds_pushes"), sum(before, "pilot_xds_pushes"); n != was {
		t.Errorf("%d responses were sent when the directory vanished", n-was)
	}
	if err := os.Rename(elsewhere, s.ConfigDir); err != nil {
		t.Fatal(err)
	}
	s.awaitSource("ok")
	// Changes are seen again.
	s.Edit("orders.yaml", "weight: 90", "weight: 0")
	s.Edit("orders.yaml", "weight: 10", "weight: 100")
	s.awaitAnswerOf("orders-v2")
	unharmed(t, load)
	s.noRejections()
}

// awaitSource waits for the state of the source of files.
func (s *shop) awaitSource(state string) {
	s.t.Helper()
	s.Server.Eventually(envoytest.Patience, func() error {
		out, err := unix(s.t.Context(), filepath.Join(s.RunDir("server"), "admin.sock"), "/v1/sources")
		if err == nil && !strings.Contains(out, `"state":"`+state+`"`) {
			err = fmt.Errorf("the source is not %s: %s", state, out)
		}
		return err
	})
}

// awaitObjects waits until so many objects of the files are in force, and the
// removal of so many is held back.
func (s *shop) awaitObjects(objects, held int) {
	s.t.Helper()
	s.Server.Eventually(envoytest.Patience, func() error {
		out, err := unix(s.t.Context(), filepath.Join(s.RunDir("server"), "admin.sock"), "/v1/sources")
		if err != nil {
			return err
		}
		var status struct {
			Registry struct {
				Sources []struct {
					Name               string
					Objects, HeldCount int
				}
			} `json:"registry"`
		}
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			return err
		}
		for _, src := range status.Registry.Sources {
			if src.Name == "files" && src.Objects == objects && src.HeldCount == held {
				return nil
			}
		}
		return fmt.Errorf("not %d objects and %d held: %+v", objects, held, status.Registry.Sources)
	})
}
