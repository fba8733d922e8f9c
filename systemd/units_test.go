// Package systemd holds the units; its test has systemd judge them.
package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

func analyze(t *testing.T) string {
	t.Helper()
	bin, err := exec.LookPath("systemd-analyze")
	if err != nil {
		envoytest.Missing(t, "systemd-analyze is not installed: apt-get install systemd")
	}
	return bin
}

// TestVerify has systemd read the units, with a binary at hand for ExecStart.
func TestVerify(t *testing.T) {
	t.Parallel()
	bin := analyze(t)
	for _, unit := range []string{"fairlead-server.service", "fairlead-agent.service", "fairlead-capture.service"} {
		content, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), unit)
		s := strings.Replace(string(content), "/usr/bin/fairlead", "/bin/true", 1)
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), bin, "verify", "--man=no", path).CombinedOutput()
		if err != nil || strings.Contains(string(out), unit) {
			t.Errorf("systemd-analyze verify %s: %v\n%s", unit, err, out)
		}
	}
}

// TestSandbox has systemd rate the exposure of the units, 0 (safe) to 10.
func TestSandbox(t *testing.T) {
	t.Parallel()
	bin := analyze(t)
	for unit, worst := range map[string]string{"fairlead-server.service": "15", "fairlead-agent.service": "30", "fairlead-capture.service": "25"} {
		out, err := exec.CommandContext(t.Context(), bin, "security", "--offline=yes", "--threshold="+worst, unit).CombinedOutput()
		if err != nil {
			t.Errorf("systemd-analyze security %s: %v\n%s", unit, err, out)
		}
	}
}

// TestOnlyCaptureMayChangeTheNetwork: one unit has CAP_NET_ADMIN, and nothing beside it; the
// agent and Envoy never get it.
func TestOnlyCaptureMayChangeTheNetwork(t *testing.T) {
	t.Parallel()
	units, err := filepath.Glob("*.service")
	if err != nil || len(units) < 3 {
		t.Fatal(units, err)
	}
	for _, unit := range units {
		content, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			line = strings.TrimSpace(line)
			of, caps, _ := strings.Cut(line, "=")
			switch {
			case of != "CapabilityBoundingSet" && of != "AmbientCapabilities":
			case unit == "fairlead-capture.service":
				if line != "CapabilityBoundingSet=CAP_NET_ADMIN" && line != "AmbientCapabilities=" {
					t.Errorf("%s: %s", unit, line)
				}
			case strings.Contains(caps, "NET_ADMIN"):
				t.Errorf("%s: %s", unit, line)
			}
		}
	}
}
