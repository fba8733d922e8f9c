package traffic

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/pki/svid"
)

// peers are those who may try to speak to echo.
type peers struct {
	own, foreign *svid.Identity
}

// expect is what should become of each peer.
type expect struct {
	// caller is who echo is told of when the mesh calls.
	caller string
	// plain, tls say whether a peer without and with a certificate of the mesh
	// is answered when it comes straight to echo's Envoy.
	plain, tls bool
}

// TestModes shows what PERMISSIVE, STRICT and DISABLE do to HTTP/1.1, gRPC and
// TCP: to the mesh, to plaintext, and to certificates of this and another
// authority.
func TestModes(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	other := meshtest.New(t, "", nil)
	other.StartServer()
	who := peers{direct(t, p.Mesh, "probe", "shop/probe"), direct(t, other, "probe", "shop/client")}
	if who.foreign.ID.String() != clientID {
		t.Fatalf("the other authority should have the same names: %s", who.foreign.ID)
	}
	load := meshtest.NewClient(t, echoHost).StartLoad(t, "http://"+p.at(11, 9080)+"/", 50)
	for _, mode := range []string{"", "STRICT", "PERMISSIVE", "STRICT"} {
		p.mode(t, mode, who, expect{caller: clientID, plain: mode != "STRICT", tls: true})
	}
	if r := load.Stop(); r.Failed != 0 || r.Good == 0 {
		t.Errorf("requests failed while modes changed: %+v", r)
	}
	p.mode(t, "DISABLE", who, expect{caller: "", plain: true, tls: false})
	p.mode(t, "STRICT", who, expect{caller: clientID, plain: false, tls: true})
}

// mode brings a mode into force and asks everybody.
func (p *pair) mode(t *testing.T, mode string, who peers, want expect) {
	t.Helper()
	if mode != "" {
		p.Write("policy.yaml", policy("shop", "default", "{mtls: {mode: "+mode+"}}"))
	}
	ask := func() error {
		var errs []error
		for _, pr := range protocols() {
			if err := p.askAll(t.Context(), pr, who, want); err != nil {
				errs = append(errs, fmt.Errorf("%q, %s: %w", mode, pr.name, err))
			}
		}
		return errors.Join(errs...)
	}
	settle(t, ask)
}

func (p *pair) askAll(ctx context.Context, pr protocol, who peers, want expect) error {
	mesh, straight := p.at(11, pr.port), p.at(12, pr.port)
	var errs []error
	caller, err := pr.ask(ctx, mesh, nil)
	if pr.name == "tcp" {
		caller = want.caller // TCP tells nobody's name: the certificates below do
	}
	if err != nil || caller != want.caller {
		errs = append(errs, fmt.Errorf("through the mesh: caller %q, want %q", caller, want.caller), err)
	}
	is := func(what string, conf *tls.Config, welcome bool) {
		caller, err := pr.ask(ctx, straight, conf)
		if (err == nil) != welcome {
			errs = append(errs, fmt.Errorf("%s: welcome should be %v: caller %q", what, welcome, caller), err)
		}
		if err == nil && conf != nil && pr.name != "tcp" && caller != who.own.ID.String() {
			errs = append(errs, fmt.Errorf("%s: the caller is %q, want %q", what, caller, who.own.ID))
		}
		if err == nil && conf == nil && caller != "" {
			errs = append(errs, fmt.Errorf("%s: plaintext has the caller %q", what, caller))
		}
	}
	is("plaintext", nil, want.plain)
	is("a certificate of the mesh", tlsAs(who.own), want.tls)
	is("a certificate of another authority", tlsAs(who.foreign), false)
	is("no certificate", tlsAs(nil), false)
	return errors.Join(errs...)
}

// TestForgedCaller shows that nobody names himself: what a client writes into the
// header that tells the caller is not believed, nor passed on in plaintext.
func TestForgedCaller(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	for address, want := range map[string]string{p.at(11, 9080): clientID, p.at(12, 9080): ""} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = echoHost
		req.Header.Set("X-Forwarded-Client-Cert", "By="+echoID+";Hash=00;URI=spiffe://cluster.local/ns/shop/sa/admin")
		res, err := (&http.Client{Timeout: patience}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var answer meshtest.Answer
		if err := errors.Join(json.NewDecoder(res.Body).Decode(&answer), res.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if answer.Caller != want {
			t.Errorf("the caller is %q, want %q", answer.Caller, want)
		}
	}
}

// TestLevels shows which PeerAuthentication counts: mesh, namespace, workload,
// port, from weak to strong.
func TestLevels(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	const workload = "{selector: {matchLabels: {app: echo}}, "
	for _, step := range []struct {
		name, file, namespace, spec string
		// plain are the ports that take plaintext, mesh the callers they see.
		plain string
		// unencrypted are the ports that see no caller even from the mesh.
		unencrypted string
	}{
		{"mesh", "mesh.yaml", "istio-system", "{mtls: {mode: STRICT}}", "", ""},
		{"namespace", "ns.yaml", "shop", "{mtls: {mode: PERMISSIVE}}", "http grpc tcp", ""},
		{"workload", "wl.yaml", "shop", workload + "mtls: {mode: STRICT}}", "", ""},
		{"port_permissive", "wl.yaml", "shop", workload + "mtls: {mode: STRICT}, portLevelMtls: {9080: {mode: PERMISSIVE}}}", "http", ""},
		{"port_disable", "wl.yaml", "shop", workload + "mtls: {mode: STRICT}, portLevelMtls: {9090: {mode: DISABLE}}}", "grpc", "grpc"},
		{"port_strict", "wl.yaml", "shop", workload + "mtls: {mode: PERMISSIVE}, portLevelMtls: {9000: {mode: STRICT}}}", "http grpc", ""},
		{"unset_inherits", "wl.yaml", "shop", workload + "mtls: {mode: UNSET}}", "http grpc tcp", ""},
		{"not_selected", "wl.yaml", "shop", "{selector: {matchLabels: {app: other}}, mtls: {mode: STRICT}}", "http grpc tcp", ""},
		{"namespace_unset", "ns.yaml", "shop", "{mtls: {mode: UNSET}}", "", ""},
	} {
		ok := t.Run(step.name, func(t *testing.T) {
			name := step.file[:len(step.file)-len(".yaml")]
			p.Write(step.file, policy(step.namespace, name, step.spec))
			settle(t, func() error { return p.askPorts(t.Context(), step.plain, step.unencrypted) })
		})
		if !ok {
			return // each builds on those before
		}
	}
}

// askPorts checks each port: the mesh is always answered.
func (p *pair) askPorts(ctx context.Context, plain, unencrypted string) error {
	var errs []error
	for _, pr := range protocols() {
		want := clientID
		if pr.name == "tcp" || strings.Contains(unencrypted, pr.name) {
			want = ""
		}
		if caller, err := pr.ask(ctx, p.at(11, pr.port), nil); err != nil || caller != want {
			errs = append(errs, fmt.Errorf("%s through the mesh: caller %q, want %q", pr.name, caller, want), err)
		}
		welcome := strings.Contains(plain, pr.name)
		if _, err := pr.ask(ctx, p.at(12, pr.port), nil); (err == nil) != welcome {
			errs = append(errs, fmt.Errorf("%s in plaintext: welcome should be %v", pr.name, welcome), err)
		}
	}
	return errors.Join(errs...)
}
