package traffic

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// allowNobody is a policy that this release cannot enforce: Envoy takes no line breaks.
const allowNobody = `apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: echo, namespace: shop}
spec:
  selector: {matchLabels: {app: echo}}
  jwtRules:
  - issuer: "https://issuer.example\n"
`

// TestUnenforced shows that a policy which this release cannot enforce fails
// closed for the workloads it selects, is told at its position, and lets
// requests through only where a person has said so.
func TestUnenforced(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		args []string
	}{{"default", nil}, {"accepted", []string{"--accept-unenforced"}}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := startPair(t, c.args...)
			open := func() error {
				for _, pr := range protocols() {
					if _, err := pr.ask(t.Context(), p.at(11, pr.port), nil); err != nil {
						return fmt.Errorf("%s is not answered: %w", pr.name, err)
					}
				}
				return nil
			}
			closed := func() error {
				for _, pr := range protocols() {
					_, err := pr.ask(t.Context(), p.at(11, pr.port), nil)
					if err == nil {
						return errors.New(pr.name + " is answered")
					}
					if said := map[string]string{"http": "403", "grpc": "PermissionDenied", "tcp": "EOF"}[pr.name]; !strings.Contains(err.Error(), said) {
						return fmt.Errorf("%s should be refused with %s: %w", pr.name, said, err)
					}
				}
				return nil
			}
			settle(t, open)
			p.Write("authz.yaml", allowNobody)
			p.awaitNotInForce(t, "authz.yaml:")
			if c.args == nil {
				settle(t, closed)
			} else {
				// An edit behind it shows that it has been taken in, too.
				p.Write("policy.yaml", policy("shop", "default", "{mtls: {mode: STRICT}}"))
				settle(t, func() error {
					if _, err := askTCP(t.Context(), p.at(12, 9000), nil); err == nil {
						return errors.New("STRICT is not in force yet")
					}
					return open()
				})
			}
			// Another workload is none of its business.
			p.Edit("authz.yaml", "app: echo", "app: other")
			settle(t, open)
		})
	}
}

// awaitNotInForce waits until the status tells of the policy, and sees that the
// offline commands do, each with its exit code.
func (p *pair) awaitNotInForce(t *testing.T, at string) {
	t.Helper()
	tells := func(out string) bool { return strings.Contains(out, at) && strings.Contains(out, "not in force") }
	p.Server.Eventually(patience, func() error {
		out, err := p.CLI("proxy-status", "--run-dir", p.RunDir("server"))
		if err == nil || !tells(out) {
			return fmt.Errorf("proxy-status does not tell of it:\n%s", out)
		}
		return nil
	})
	if out, err := p.CLI("analyze", p.ConfigDir); err == nil || !tells(out) {
		t.Errorf("analyze does not tell of it: %v\n%s", err, out)
	}
	if out, err := p.CLI("validate", p.ConfigDir); err != nil {
		t.Errorf("validate judges as Istio does, to whom it is valid: %v\n%s", err, out)
	}
	if !strings.Contains(p.Server.Log(), "not in force") {
		t.Error("the server's log does not tell of it")
	}
}
