package traffic

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestEnvoyIsRolledBackWithoutControlPlane: listeners that count requests have another form for
// each release. An Envoy that comes back to a host has those that its release accepted, and one
// that was never there says what it lacks.
func TestEnvoyIsRolledBackWithoutControlPlane(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"was_there_before": true, "was_never_there": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			config := filepath.Join(t.TempDir(), "mesh.yaml")
			if err := os.WriteFile(config, []byte("defaultProviders: {metrics: [prometheus]}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			agent := p.echoH.Agent
			with := func(version string) {
				p.echoH.Agent = slices.Concat(agent, []string{"--envoy", envoytest.BinaryVersion(t, version)})
			}
			with(envoytest.Default)
			if before {
				with(envoytest.Oldest)
			}
			server := p.StartServer("--mesh-config", config)
			_, echo := p.startHosts()
			if before { // the upgrade
				echo.Stop()
				with(envoytest.Default)
				echo = p.StartAgent(p.echoH, "")
				p.AwaitLive("client", "echo")
				settle(t, func() error { return asked(t, p) })
			}
			server.Stop()
			echo.Stop()
			with(envoytest.Oldest)
			echo = p.StartAgent(p.echoH, "")
			if before {
				echo.Eventually(envoytest.Patience, func() error { return asked(t, p) })
				ready, err := p.Admin("echo", "/readyz")
				if err != nil || !strings.Contains(ready, "has those that its own release accepted last") {
					t.Errorf("readyz: %v, %s", err, ready)
				}
				return
			}
			echo.Eventually(envoytest.Patience, func() error {
				status, err := p.Admin("echo", "/v1/status")
				if err == nil && !strings.Contains(status, "no listener is stored that Envoy 1.36 accepted: connect this host to the control plane, or run Envoy 1.40 again") {
					err = errors.New(status)
				}
				return err
			})
			// The log comes by a pipe, behind the status.
			echo.Eventually(envoytest.Patience, func() error {
				if !strings.Contains(echo.Log(), "Envoy rejects a stored listener") {
					return errors.New("the log does not say so")
				}
				return nil
			})
		})
	}
}

// asked asks echo by HTTP at its own host.
func asked(t *testing.T, p *pair) error {
	t.Helper()
	_, err := askHTTP(t.Context(), p.at(12, 9080), nil)
	return err
}
