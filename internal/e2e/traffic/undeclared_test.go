package traffic

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/meshtest"
)

// TestPortsLoseTheirProtocol shows that HTTP/1.1, gRPC and TCP pass, and that the server knows
// the caller of requests, while ports lose their declared protocols and get them back: first
// for the clients, then for the server, and in reverse.
func TestPortsLoseTheirProtocol(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	load := meshtest.NewClient(t, echoHost).StartLoad(t, "http://"+p.at(11, 9080)+"/", 50)
	for _, mode := range []string{"STRICT", "PERMISSIVE"} {
		p.Write("policy.yaml", policy("shop", "default", "{mtls: {mode: "+mode+"}}"))
		p.passes(t, mode+", declared", mode)
		p.declare("client.yaml", "- port: ", false)
		p.declare("echo.yaml", "- ", false)
		p.passes(t, mode+", undeclared for clients", mode)
		p.declare("echo.yaml", "- port: ", false)
		p.passes(t, mode+", undeclared", mode)
		p.declare("echo.yaml", "- port: ", true)
		p.passes(t, mode+", declared for the server", mode)
		p.declare("echo.yaml", "- ", true)
		p.declare("client.yaml", "- port: ", true)
	}
	if r := load.Stop(); r.Failed != 0 || r.Good == 0 {
		t.Errorf("requests failed while protocols changed: %+v", r)
	}
}

// declare declares the protocols of the ports in a file that are written after a prefix, or
// leaves them out.
func (p *pair) declare(file, prefix string, declared bool) {
	p.t.Helper()
	for name, number := range map[string]int{"http": 9080, "grpc": 9090, "tcp": 9000} {
		port := fmt.Sprintf("%s{number: %d, name: %s, protocol: ", prefix, number, name)
		from, to := port+strings.ToUpper(name)+"}", port+`""}`
		if declared {
			from, to = to, from
		}
		p.Edit(file, from, to)
	}
}

// passes asks in every protocol, through the mesh and without it.
func (p *pair) passes(t *testing.T, step, mode string) {
	t.Helper()
	settle(t, func() error {
		var errs []error
		for _, pr := range protocols() {
			caller, err := pr.ask(t.Context(), p.at(11, pr.port), nil)
			if err != nil || pr.name != "tcp" && caller != clientID {
				errs = append(errs, fmt.Errorf("%s: %s through the mesh: caller %q: %w", step, pr.name, caller, errors.Join(err)))
			}
			caller, err = pr.ask(t.Context(), p.at(12, pr.port), nil)
			if (err == nil) != (mode == "PERMISSIVE") || caller != "" {
				errs = append(errs, fmt.Errorf("%s: %s in plaintext: caller %q: %w", step, pr.name, caller, errors.Join(err)))
			}
		}
		return errors.Join(errs...)
	})
}
