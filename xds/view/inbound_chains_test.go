package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// inboundChains are the chains of a proxy that serves a port of each protocol, by the port of
// the listener and that of the chain.
func inboundChains(t *testing.T, mode string, interception Interception, deny bool) map[[2]uint32][]*FilterChain {
	t.Helper()
	w := newMeshFixture(t)
	svc := w.service("shop", "a.mesh")
	svc.Inline[0].Address = "10.0.0.1"
	var ingress []string
	for i, p := range []mesh.Protocol{
		mesh.HTTP, mesh.HTTP2, mesh.GRPC, mesh.GRPCWeb, mesh.HTTPS, mesh.TLS, mesh.TCP, mesh.MySQL, mesh.Mongo, mesh.Undeclared,
	} {
		n := uint32(8000 + i)
		svc.Ports = append(svc.Ports, mesh.Port{Name: string(p), Number: n, TargetPort: n, Protocol: p})
		ingress = append(ingress, fmt.Sprintf(`{"port":{"number":%d,"name":"p","protocol":%q},"defaultEndpoint":"127.0.0.1:%d"}`, n, p, n))
	}
	if interception == InterceptNone { // which has no listeners otherwise
		w.sidecar("shop", "a", `{"ingress":[`+strings.Join(ingress, ",")+`]}`)
	}
	w.peer("shop", "default", `{"mtls":{"mode":"`+mode+`"}}`)
	if deny {
		w.f.Unenforced = append(w.f.Unenforced, &mesh.Unenforced{Meta: w.meta(mesh.KindAuthorizationPolicy, "shop", "p")})
	}
	p := proxyIn("shop", nil)
	p.Interception = interception
	out := map[[2]uint32][]*FilterChain{}
	for part := range Build(w.snapshot(), p).Parts() {
		if l, ok := part.(*Listener); ok && l.Inbound {
			for _, c := range l.Chains {
				if c.Name != "virtualInbound-blackhole" {
					at := [2]uint32{l.Port, c.Match.DestinationPort}
					out[at] = append(out[at], c)
				}
			}
		}
	}
	if len(out) < len(svc.Ports) {
		t.Errorf("%s, %s: there are %d ports, want %d", mode, interception, len(out), len(svc.Ports))
	}
	return out
}

// TestEveryInboundChainKeepsTheRules: whatever the protocol of a port, each of its chains has
// mTLS under STRICT and denies if the proxy has to. Under PERMISSIVE, too, every ALPN protocol
// that clients in the mesh offer leads to a chain with mTLS.
func TestEveryInboundChainKeepsTheRules(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"STRICT", "PERMISSIVE", "DISABLE"} {
		for _, interception := range []Interception{InterceptNone, InterceptRedirect, InterceptTPROXY} {
			for _, deny := range []bool{false, true} {
				for at, chains := range inboundChains(t, mode, interception, deny) {
					for _, c := range chains {
						if c.Deny != deny || mode == "STRICT" && c.TLS == nil || mode == "DISABLE" && c.TLS != nil {
							t.Errorf("%s, %s, denies %v: a chain of %v breaks the rules: %+v", mode, interception, deny, at, c)
						}
					}
					for _, alpn := range istioALPN() {
						if c := chainFor(chains, alpn); mode != "DISABLE" && (c == nil || c.TLS == nil) {
							t.Errorf("%s, %s: %s at %v leads to %+v", mode, interception, alpn, at, c)
						}
					}
				}
			}
		}
	}
}

// chainFor is the chain that Envoy chooses for TLS that offers an ALPN protocol; or nil.
func chainFor(chains []*FilterChain, alpn string) *FilterChain {
	var out *FilterChain
	for _, c := range chains {
		switch {
		case c.Match.Transport != transportTLS && c.Match.Transport != "":
		case slices.Contains(c.Match.ALPN, alpn):
			return c
		case len(c.Match.ALPN) == 0 && (out == nil || c.Match.Transport == transportTLS):
			out = c
		}
	}
	return out
}
