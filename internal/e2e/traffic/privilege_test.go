package traffic

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

const lowPorts = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: NAME, namespace: edge}
spec: {address: ADDRESS, labels: {app: NAME}, serviceAccount: NAME}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: NAME, namespace: edge}
spec:
  selector: {app: NAME}
  servers:
  - port: {number: 80, name: http, protocol: HTTP}
    bind: ADDRESS
    hosts: [good.test]
  - port: {number: 443, name: https, protocol: HTTPS}
    bind: ADDRESS
    hosts: [good.test]
    tls: {mode: SIMPLE, credentialName: good}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: NAME, namespace: edge}
spec:
  hosts: [good.test]
  gateways: [NAME]
  http: [{directResponse: {status: 200, body: {string: '{"name": "NAME"}'}}}]
`

// nobodyID is the user and the group of the agents below.
const nobodyID = 65534

// unitCapabilities are the capabilities that the agent's unit names in a line.
func unitCapabilities(t *testing.T, line string) []string {
	t.Helper()
	unit, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "systemd", "fairlead-agent.service"))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(unit)) {
		if names, found := strings.CutPrefix(strings.TrimSpace(l), line+"="); found {
			return strings.Fields(strings.ToLower(names))
		}
	}
	t.Fatalf("the unit has no %s: it would have every capability", line)
	return nil
}

// asUser has setpriv run an agent as systemd does: as another user, with capabilities that are bounded and
// ambient.
func asUser(bounding, ambient []string) []string {
	list := func(names []string) string {
		out := []string{"-all"}
		for _, n := range names {
			out = append(out, "+"+strings.TrimPrefix(n, "cap_"))
		}
		return strings.Join(out, ",")
	}
	id := strconv.Itoa(nobodyID)
	return []string{
		"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--no-new-privs",
		"--bounding-set", list(bounding), "--inh-caps", list(ambient), "--ambient-caps", list(ambient),
	}
}

// own has files belong to the user of the agents, and makes their directories.
func own(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if filepath.Ext(path) == "" {
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		err := filepath.WalkDir(path, func(p string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Chown(p, nobodyID, nobodyID))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestLowPortsWithoutRoot: an agent and its Envoy of a user that is not root, with the capabilities of the
// unit and no others, answer at ports 80 and 443 of a gateway. Without these capabilities the gateway has no
// such listeners, says so, and is live.
func TestLowPortsWithoutRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "another user's process needs root")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		envoytest.Missing(t, "no setpriv (util-linux): %v", err)
	}
	bounding, ambient := unitCapabilities(t, "CapabilityBoundingSet"), unitCapabilities(t, "AmbientCapabilities")
	e := &edgeHost{pair: newPair(t)}
	e.keys = meshtest.NewKeyRing(t, filepath.Join(e.Dir, "credentials"))
	e.keys.Put("good", "good.test")
	// The other user goes through these.
	for _, dir := range []string{filepath.Dir(e.Dir), e.Dir, filepath.Dir(e.RunDir("x"))} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	own(t, e.keys.Dir)
	hosts := []meshtest.Host{
		{Name: "unit", Address: 13, Wrap: asUser(bounding, ambient)},
		{Name: "without", Address: 14, Wrap: asUser(nil, nil)},
	}
	for _, h := range hosts {
		e.Write(h.Name+".yaml", strings.NewReplacer("NAME", h.Name, "ADDRESS", e.Address(h.Address)).Replace(lowPorts))
	}
	e.StartServer()
	if err := os.Chmod(filepath.Dir(e.StateDir("x")), 0o711); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		h.Agent = []string{"--drain-time", "1s", "--credentials-dir", e.keys.Dir, "--token-file", filepath.Join(e.Dir, h.Name+".join")}
		token := e.Token("--host", h.Name, "--workload", "edge/"+h.Name, "--type", "router")
		if err := os.WriteFile(filepath.Join(e.Dir, h.Name+".join"), []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		own(t, e.StateDir(h.Name), e.RunDir(h.Name), filepath.Join(e.Dir, h.Name+".join"))
		e.StartAgent(h, "")
	}
	e.AwaitLive("unit", "without")
	ask := func(address int) error {
		_, err := meshtest.NewClient(t, "good.test").Fresh().Get(t.Context(), "http://"+e.at(address, 80)+"/")
		conn, errTLS := (&tls.Dialer{Config: e.keys.TLS("good.test")}).DialContext(t.Context(), "tcp", e.at(address, 443))
		if errTLS == nil {
			errTLS = conn.Close()
		}
		return errors.Join(err, errTLS)
	}
	settle(t, func() error { return ask(13) })
	if ask(14) == nil {
		t.Error("the host without capabilities answers at ports 80 and 443")
	}
	var wants uint64 // CAP_NET_BIND_SERVICE, if the unit says so
	if slices.Contains(ambient, "cap_net_bind_service") {
		wants = 1 << unix.CAP_NET_BIND_SERVICE
	}
	for name, want := range map[string]uint64{"unit": wants, "without": 0} {
		if got := effective(t, e.EnvoyPID(name)); got != want {
			t.Errorf("the Envoy of %s has the capabilities %x, want %x", name, got, want)
		}
	}
	settle(t, func() error { // it is told when it has lasted
		table, err := e.CLI("proxy-status", "--run-dir", e.RunDir("server"))
		for _, port := range []string{"80", "443"} {
			if want := "on port " + port + " is left out"; err == nil || !strings.Contains(table, want) {
				return fmt.Errorf("no %q in %s, %w", want, table, err)
			}
		}
		for _, want := range []string{"Envoy on these hosts may listen at ports from 1024 on", "run Envoy with CAP_NET_BIND_SERVICE"} {
			if !strings.Contains(table, want) {
				return fmt.Errorf("no %q in %s", want, table)
			}
		}
		return nil
	})
}

// effective are the effective capabilities of a process, which has no root's user.
func effective(t *testing.T, pid int) (caps uint64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch fields := strings.Fields(value); key {
		case "CapEff":
			if caps, err = strconv.ParseUint(fields[0], 16, 64); err != nil {
				t.Fatal(err)
			}
			found++
		case "Uid":
			if slices.Contains(fields, "0") {
				t.Errorf("process %d has the user ids %q", pid, fields)
			}
			found++
		}
	}
	if found != 2 {
		t.Fatalf("%q", text)
	}
	return caps
}
