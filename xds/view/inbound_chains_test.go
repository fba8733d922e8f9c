package view

import (
	stdcmp "cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/mesh"
)

// inboundChains are the chains of a proxy that serves a port of each protocol, by the port of
// the listener and that of the chain; and its extensions, by their slots.
func inboundChains(t *testing.T, mode string, interception Interception, deny bool) (chains map[[2]uint32][]*FilterChain, extensions map[Slot]*Extension) {
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
		w.authorize("shop", "p", `{"action":"DENY","rules":[{}]}`)
		w.f.Unenforced = append(w.f.Unenforced, &mesh.Unenforced{Meta: w.meta(mesh.KindAuthorizationPolicy, "shop", "p")})
	}
	p := proxyIn("shop", nil)
	p.Interception = interception
	out, extensions := map[[2]uint32][]*FilterChain{}, map[Slot]*Extension{}
	for part := range Build(w.snapshot(), p).Parts() {
		if e, ok := part.(*Extension); ok {
			extensions[e.Slot] = e
		}
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
	return out, extensions
}

// refuses reports whether a chain refuses everything.
func refuses(c *FilterChain, extensions map[Slot]*Extension) bool {
	if c.HTTP == nil {
		return c.Deny
	}
	return slices.ContainsFunc(c.HTTP.Slots, func(s Slot) bool { return extensions[s] != nil && extensions[s].Deny })
}

// hasPolicies reports whether a chain has the policies of its workload.
func hasPolicies(c *FilterChain, extensions map[Slot]*Extension) bool {
	if c.HTTP == nil {
		return c.Authorization != nil
	}
	return slices.ContainsFunc(c.HTTP.Slots, func(s Slot) bool { return extensions[s] != nil && extensions[s].Authorization != nil })
}

// TestEveryInboundChainKeepsTheRules: whatever the protocol of a port, each of its chains has
// mTLS under STRICT, denies if the proxy has to, and has the policies of the workload. Under
// PERMISSIVE, too, every ALPN protocol that clients in the mesh offer leads to a chain with mTLS.
func TestEveryInboundChainKeepsTheRules(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"STRICT", "PERMISSIVE", "DISABLE"} {
		for _, interception := range []Interception{InterceptNone, InterceptRedirect, InterceptTPROXY} {
			for _, deny := range []bool{false, true} {
				all, extensions := inboundChains(t, mode, interception, deny)
				for at, chains := range all {
					for _, c := range chains {
						if refuses(c, extensions) != deny || hasPolicies(c, extensions) != deny || mode == "STRICT" && c.TLS == nil || mode == "DISABLE" && c.TLS != nil {
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

// TestFirstPolicyChangesOnlyTheHash: chains with HTTP are the same with and without rules but for
// the hash of the rules, and each of their slots has an extension.
func TestFirstPolicyChangesOnlyTheHash(t *testing.T) {
	t.Parallel()
	for _, interception := range []Interception{InterceptNone, InterceptRedirect} {
		before, open := inboundChains(t, "PERMISSIVE", interception, false)
		after, closed := inboundChains(t, "PERMISSIVE", interception, true)
		http := 0
		for at, chains := range before {
			for i, c := range chains {
				if c.HTTP == nil {
					continue
				}
				http++
				now := *after[at][i]
				if c.Rules != "" || now.Rules == "" {
					t.Errorf("%s: the hash of the rules of %v is %q without, and %q with them", interception, at, c.Rules, now.Rules)
				}
				now.Rules = ""
				if diff := cmp.Diff(c, &now); diff != "" {
					t.Errorf("%s: a chain of %v changes (-before +after):\n%s", interception, at, diff)
				}
				for _, s := range c.HTTP.Slots {
					if open[s] == nil || closed[s] == nil {
						t.Errorf("%s: slot %s of %v has no extension", interception, s, at)
					}
				}
				if !slices.Equal(c.HTTP.Slots, []Slot{CustomSlot, ExtAuthzSlot, JWTSlot, DenySlot, AllowSlot}) {
					t.Errorf("%s: slots %v of %v", interception, c.HTTP.Slots, at)
				}
			}
		}
		if http < 8 {
			t.Errorf("%s: %d chains with HTTP", interception, http)
		}
		if open[DenySlot].Deny || len(open[DenySlot].Origins()) > 0 || !closed[DenySlot].Deny || closed[AllowSlot].Deny {
			t.Errorf("%s: %+v, %+v", interception, open, closed)
		}
		if o := closed[DenySlot].Origins(); len(o) != 2 || o[0].Path == "" {
			t.Errorf("%s: the rules come from %v", interception, o)
		}
	}
}

// TestEqualExtensionsKeepTheirOrigins: extensions of two workloads with equal rules have one
// hash, and each says which object it comes from.
func TestEqualExtensionsKeepTheirOrigins(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	for i, ns := range []string{"one", "two"} {
		svc := w.service(ns, ns+".mesh")
		svc.Inline[0].Address = fmt.Sprintf("10.0.0.%d", i+1)
		n := uint32(8100 + i)
		svc.Ports = append(svc.Ports, mesh.Port{Name: "more", Number: n, TargetPort: n, Protocol: mesh.HTTP})
		w.f.Unenforced = append(w.f.Unenforced, &mesh.Unenforced{Meta: w.meta(mesh.KindAuthorizationPolicy, ns, "p-"+ns)})
	}
	s := w.snapshot()
	x := NewIndex(s)
	var found []*Extension
	for i, ns := range []string{"one", "two"} {
		p := proxyIn(ns, nil)
		p.Addresses, p.Interception = []string{fmt.Sprintf("10.0.0.%d", i+1)}, InterceptRedirect
		for part := range x.Build(p).Parts() {
			if e, ok := part.(*Extension); ok && e.Slot == DenySlot {
				found = append(found, e)
			}
		}
	}
	if len(found) != 2 || found[0].Hash() != found[1].Hash() {
		t.Fatalf("extensions %v", found)
	}
	if a, b := found[0].Origins(), found[1].Origins(); len(a) != 1 || len(b) != 1 || *a[0] == *b[0] {
		t.Errorf("origins %v and %v", a, b)
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

// TestIngressTLS: a port of a Sidecar ends TLS with its own certificate only if it is without mTLS of the
// mesh. It is HTTP or TCP then, takes no plaintext, denies if the proxy has to, and has the policies of the
// workload. With mTLS of the mesh its chains are those of the protocol inside TLS.
func TestIngressTLS(t *testing.T) {
	t.Parallel()
	for _, interception := range []Interception{InterceptNone, InterceptRedirect, InterceptTPROXY} {
		for _, mode := range []string{"STRICT", "PERMISSIVE", "DISABLE"} {
			for protocol, inside := range map[mesh.Protocol]mesh.Protocol{mesh.HTTPS: mesh.HTTP, mesh.TLS: mesh.TCP} {
				for _, deny := range []bool{false, true} {
					w := newMeshFixture(t)
					const port = `{"port":{"number":%d,"name":"p","protocol":%q},"defaultEndpoint":"127.0.0.1:%[1]d"%[3]s}`
					w.sidecar("shop", "a", `{"ingress":[`+fmt.Sprintf(port, 8443, protocol, `,"tls":{"mode":"SIMPLE","serverCertificate":"/c","privateKey":"/k"}`)+`,`+fmt.Sprintf(port, 8444, inside, "")+`]}`)
					w.peer("shop", "default", `{"mtls":{"mode":"`+mode+`"}}`)
					if deny {
						w.authorize("shop", "p", `{"action":"DENY","rules":[{}]}`)
						w.f.Unenforced = append(w.f.Unenforced, &mesh.Unenforced{Meta: w.meta(mesh.KindAuthorizationPolicy, "shop", "p")})
					}
					p := proxyIn("shop", nil)
					p.Interception, p.FileSecrets = interception, true
					chains, extensions := map[uint32][]*FilterChain{}, map[Slot]*Extension{}
					for part := range Build(w.snapshot(), p).Parts() {
						if e, ok := part.(*Extension); ok {
							extensions[e.Slot] = e
						}
						if l, ok := part.(*Listener); ok && l.Inbound {
							for _, c := range l.Chains {
								at := stdcmp.Or(c.Match.DestinationPort, l.Port)
								chains[at] = append(chains[at], c)
							}
						}
					}
					what := fmt.Sprintf("%s, %s, %s, denies %v", interception, mode, protocol, deny)
					got, like := chains[8443], chains[8444]
					if mode != "DISABLE" {
						if len(got) == 0 || len(got) != len(like) || got[0].TLS == nil || got[0].Gateway != nil || (got[0].HTTP == nil) != (like[0].HTTP == nil) {
							t.Errorf("%s: %+v, want the chains of %s", what, got, inside)
						}
						continue
					}
					if len(got) != 1 || got[0].Gateway == nil || !got[0].Gateway.FileSecrets || got[0].Gateway.Settings.GetPrivateKey() != "/k" || got[0].TLS != nil || got[0].Match.Transport != transportTLS || got[0].plaintextTCP() {
						t.Errorf("%s: %+v", what, got)
						continue
					}
					if c := got[0]; (c.HTTP != nil) != inside.IsHTTP() || (c.TCP == nil) != inside.IsHTTP() || refuses(c, extensions) != deny || hasPolicies(c, extensions) != deny {
						t.Errorf("%s: a chain breaks the rules: %+v", what, c)
					}
				}
			}
		}
	}
}
