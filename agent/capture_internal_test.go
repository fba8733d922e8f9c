package agent

import (
	"testing"

	"github.com/fairlead/fairlead/xds/bootstrap"
)

// TestOnlyCaptureHasEnvoyRedirected: a gateway has no captured connections.
func TestOnlyCaptureHasEnvoyRedirected(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		capture bool
		kind    string
		want    string
	}{{false, bootstrap.TypeSidecar, "NONE"}, {true, bootstrap.TypeSidecar, "REDIRECT"}, {true, bootstrap.TypeRouter, "NONE"}} {
		a := &Agent{c: Config{Capture: c.capture}}
		if got := a.node(&enrolled{enrollment: enrollment{Type: c.kind}}).Interception; got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
