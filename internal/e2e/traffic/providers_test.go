package traffic

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// denier is an authorization server that denies everything with a status of its own.
func denier(t *testing.T, status int) (address string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// authorizer is the ServiceEntry of an authorization server.
func authorizer(t *testing.T, name, address string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: auth}\n"+
		"spec: {hosts: [%s.auth.internal], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: %s, ports: {http: %s}}]}\n---\n", name, name, host, port)
}

// ask is a policy by which an extension provider is asked about everything.
func asking(provider string) string {
	return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: ask-%s, namespace: shop}\n"+
		"spec: {selector: {matchLabels: {app: echo}}, action: CUSTOM, provider: {name: %s}, rules: [{}]}\n---\n", provider, provider)
}

const (
	customSlot   = "envoy.filters.http.rbac.custom"
	extAuthzSlot = "envoy.filters.http.ext_authz"
)

// accepts waits until echo's Envoy has accepted slots with these texts; "-" before one means that
// it is not there. An empty text means that there is no such slot any more.
func (p *pair) accepts(t *testing.T, want map[string]string) {
	t.Helper()
	settle(t, func() error {
		all, err := p.sentResources("extension")
		if err != nil {
			return err
		}
		for slot, text := range want {
			r, ok := all[slot]
			absent := strings.HasPrefix(text, "-")
			if !ok || !r.Accepted || strings.Contains(string(r.Resource), strings.TrimPrefix(text, "-")) == absent {
				return fmt.Errorf("%s: there %v, accepted %v, %s", slot, ok, r.Accepted, r.Resource)
			}
		}
		return nil
	})
}

// TestProvidersOfKeptConnections has load on connections that stay open. The first policy with an
// extension provider is in force as soon as Envoy has acknowledged it; HTTP listeners
// change by the hash of the rules alone. While the provider becomes another one, goes away or gets a second one beside it,
// no request passes that all of them deny.
func TestProvidersOfKeptConnections(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	const settings = `extensionProviders:
- {name: one, envoyExtAuthzHttp: {service: one.auth.internal, port: 80}}
- {name: two, envoyExtAuthzHttp: {service: two.auth.internal, port: 80}}
`
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	const one, two = http.StatusUnauthorized, http.StatusPaymentRequired
	services := authorizer(t, "one", denier(t, one)) + authorizer(t, "two", denier(t, two))
	p.StartServer("--mesh-config", config)
	_, agent := p.startHosts()
	p.Write("auth.yaml", services)
	target := p.at(12, 9080)
	before, err := p.sentResources("listener")
	if err != nil {
		t.Fatal(err)
	}
	kept := newKeptClient()
	if code := kept.ask(t, target); code != http.StatusOK {
		t.Errorf("without a policy: %d", code)
	}
	single := func(provider string) map[string]string {
		return map[string]string{customSlot: "istio-ext-authz-" + provider + "-ns[shop]", extAuthzSlot: "outbound|80|ext_authz." + provider + "|" + provider + ".auth.internal"}
	}
	p.Write("authz.yaml", asking("one"))
	p.accepts(t, single("one"))
	if code := kept.ask(t, target); code != one {
		t.Errorf("the first policy is acknowledged, and a request answered with %d", code)
	}
	p.onlyTheirHashChanges(t, before, true)

	clients, stop := keepAsking(t, target)
	for range 3 {
		p.Write("authz.yaml", asking("two"))
		p.accepts(t, single("two"))
		if code := kept.ask(t, target); code != two {
			t.Errorf("the second provider is acknowledged, and a request answered with %d", code)
		}
		p.Write("authz.yaml", asking("missing"))
		p.accepts(t, map[string]string{customSlot: "istio-ext-authz-missing-ns[shop]", extAuthzSlot: "deny-due-to-bad-CUSTOM-action"})
		if code := kept.ask(t, target); code != http.StatusForbidden {
			t.Errorf("the provider is missing, and a request answered with %d", code)
		}
		p.Write("authz.yaml", asking("one"))
		p.accepts(t, single("one"))
		p.Write("auth.yaml", authorizer(t, "two", "127.0.0.1:1")) // the service of the first is gone
		p.accepts(t, map[string]string{extAuthzSlot: "deny-due-to-bad-CUSTOM-action"})
		p.Write("auth.yaml", services)
		p.accepts(t, single("one"))
	}
	p.onlyTheirHashChanges(t, before, true)
	for range 2 {
		p.Write("authz.yaml", asking("one")+asking("two"))
		p.accepts(t, map[string]string{
			customSlot + ".one": "istio-ext-authz-one-ns[shop]", extAuthzSlot + ".one": "outbound|80|ext_authz.one|one.auth.internal",
			customSlot + ".two": "istio-ext-authz-two-ns[shop]", extAuthzSlot + ".two": "outbound|80|ext_authz.two|two.auth.internal",
		})
		p.Write("authz.yaml", asking("two"))
		p.accepts(t, single("two"))
	}
	stop()
	for i, c := range clients {
		c.http.CloseIdleConnections()
		if c.answers[http.StatusOK] > 0 || c.answers[one] == 0 || c.answers[two] == 0 || c.answers[http.StatusForbidden] == 0 {
			t.Errorf("client %d: answers %v", i, c.answers)
		}
	}

	// After a restart of agent and Envoy without a server, too.
	p.Server.Kill()
	agent.Kill()
	agent = p.StartAgent(p.echoH, "")
	agent.Eventually(patience, func() error {
		switch code := newKeptClient().ask(t, target); code {
		case two:
			return nil
		case http.StatusOK:
			t.Error("a request was answered without asking the provider")
		}
		return errors.New("not denied yet")
	})
}
