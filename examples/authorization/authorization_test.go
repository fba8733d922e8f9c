package authorization

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// shop is the quickstart's mesh, without its second orders.
type shop struct {
	*meshtest.Mesh
	// web is where people come in; orders and inventory are called directly, in plaintext.
	web, orders string
}

func newShop(t *testing.T) *shop {
	t.Helper()
	envoytest.Binary(t)
	m := meshtest.New(t, "examples/quickstart/mesh", map[string]int{
		"web": 18080, "orders-v1": 18081, "orders-v2": 18082, "inventory": 18083,
	})
	m.StartServer("--jwks-dir", "keys", "--mesh-config", "mesh-config.yaml")
	stock := func(address int) []string {
		return []string{"--next", fmt.Sprintf("grpc://127.0.0.%d:9090", address), "--next-host", "inventory.shop.internal"}
	}
	var names []string
	for _, h := range []meshtest.Host{
		{Name: "inventory", Workload: "shop/inventory", Address: 14, App: []string{"--protocol", "grpc"}},
		{Name: "orders-v1", Workload: "shop/orders", Address: 12, App: stock(12)},
		{Name: "orders-v2", Workload: "shop/orders", Address: 13, App: stock(13)},
		{Name: "web", Workload: "shop/web", Address: 11, App: []string{"--next", "http://127.0.0.11:9080", "--next-host", "orders.shop.internal"}},
	} {
		h.Agent = []string{"--drain-time", "1s"}
		m.StartHost(h)
		names = append(names, h.Name)
	}
	m.AwaitLive(names...)
	return &shop{
		Mesh:   m,
		web:    "http://" + net.JoinHostPort(m.Address(11), "8080"),
		orders: "http://" + net.JoinHostPort(m.Address(12), "9080"),
	}
}

// apply does what `cp policies/NAME examples/quickstart/mesh/` does.
func (s *shop) apply(t *testing.T, name string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("policies", name))
	if err != nil {
		t.Fatal(err)
	}
	s.Write(name, string(content))
}

// ask sends a request on a connection of its own, and returns the status and the text.
func ask(t *testing.T, method, url string) (int, string, error) {
	t.Helper()
	return askWith(t, method, url, "")
}

// askWith is ask with a token.
func askWith(t *testing.T, method, url, token string) (int, string, error) {
	t.Helper()
	if token == "" {
		return askAs(t, method, url, "", "")
	}
	return askAs(t, method, url, "Authorization", "Bearer "+token)
}

// askAs is ask with a header.
func askAs(t *testing.T, method, url, header, value string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if header != "" {
		req.Header.Set(header, value)
	}
	client := &http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// answers waits until a request is answered so.
func (s *shop) answers(t *testing.T, method, url string, status int, text string) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		got, body, err := ask(t, method, url)
		if err != nil || got != status || !strings.Contains(body, text) {
			return fmt.Errorf("%s %s: %d %q, %w; want %d with %q", method, url, got, body, err, status, text)
		}
		return nil
	})
}

// TestAuthorization goes through the README, step by step.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	const denied = "RBAC: access denied"
	s.answers(t, "GET", s.web+"/", 200, "inventory")
	s.answers(t, "GET", s.orders+"/", 200, "inventory")

	s.apply(t, "deny-all.yaml")
	s.answers(t, "GET", s.web+"/", 403, denied)
	s.answers(t, "GET", s.orders+"/", 403, denied)

	s.apply(t, "allow-web.yaml")
	s.answers(t, "GET", s.web+"/", 502, "orders.shop.internal answered 403: "+denied)
	s.answers(t, "POST", s.web+"/", 403, denied)

	s.apply(t, "allow-orders.yaml")
	s.answers(t, "GET", s.web+"/", 502, "inventory.shop.internal: rpc error: code = PermissionDenied")
	s.apply(t, "allow-inventory.yaml")
	s.answers(t, "GET", s.web+"/", 200, `"caller":"spiffe://cluster.local/ns/shop/sa/orders"`)
	s.answers(t, "GET", s.orders+"/", 403, denied)

	s.answers(t, "GET", s.web+"/admin", 200, "inventory")
	s.apply(t, "no-admin.yaml")
	s.answers(t, "GET", s.web+"/admin", 403, denied)
	s.answers(t, "GET", s.web+"/admin/users", 403, denied)
	s.answers(t, "GET", s.web+"/administrator", 200, "inventory")

	alice, err := os.ReadFile("keys/alice.jwt")
	if err != nil {
		t.Fatal(err)
	}
	s.answers(t, "GET", s.web+"/accounts", 200, "inventory")
	s.apply(t, "users.yaml")
	s.answers(t, "GET", s.web+"/accounts", 403, denied)
	for path, c := range map[string]struct {
		token  string
		status int
		text   string
	}{
		"/accounts":     {strings.TrimSpace(string(alice)), 200, "inventory"},
		"/accounts/a":   {strings.TrimSpace(string(alice)), 200, "inventory"},
		"/":             {"x", 401, "Jwt is not in the form"},
		"/accounts/bad": {"x", 401, "Jwt is not in the form"},
	} {
		if got, body, err := askWith(t, "GET", s.web+path, c.token); err != nil || got != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%s: %d %q, %v; want %d with %q", path, got, body, err, c.status, c.text)
		}
	}

	s.authorizationServer(t)

	s.apply(t, "try.yaml")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if got, body, err := ask(t, "GET", s.web+"/old/page"); err != nil || got != 200 {
			t.Errorf("a policy that is only tried out changes the answer to %d %q, %v", got, body, err)
		}
		stats, err := s.EnvoyAdmin("web", "/stats?usedonly&filter=shadow_denied")
		if err == nil && !strings.Contains(stats, ";.rbac.istio_dry_run_deny_.shadow_denied: ") {
			err = fmt.Errorf("nothing is counted: %q", stats)
		}
		return err
	})
}

// authorizationServer is the part of the README about CUSTOM: who is asked, and what counts while
// nobody answers.
func (s *shop) authorizationServer(t *testing.T) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "authz")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./authz").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	start := func() *meshtest.Process {
		return s.Start("authz", program, "--listen", net.JoinHostPort(s.Address(15), "9000"))
	}
	answers := func(user, path string, status int, text string) {
		t.Helper()
		envoytest.Eventually(t, envoytest.Patience, func() error {
			if got, body, err := askAs(t, "GET", s.web+path, "x-user", user); err != nil || got != status || !strings.Contains(body, text) {
				return fmt.Errorf("%s as %s: %d %q, %w; want %d with %q", path, user, got, body, err, status, text)
			}
			return nil
		})
	}
	// The server is down: what is asked about is denied, and everything else is not asked about.
	answers("bob", "/reports/june", 200, "inventory")
	s.apply(t, "ask.yaml")
	answers("alice", "/reports/june", 403, "")
	answers("bob", "/", 200, "inventory")

	server := start()
	answers("alice", "/reports/june", 200, "inventory")
	answers("alice", "/reports", 200, "inventory")
	answers("bob", "/reports/june", 403, `"bob" may not see this`)
	answers("bob", "/reportshop", 200, "inventory")
	s.answers(t, "POST", s.web+"/reports", 403, `"" may not see this`)
	// It is asked first. What it allows still has to pass the other policies.
	if got, body, err := askAs(t, "POST", s.web+"/reports", "x-user", "alice"); err != nil || got != 403 || !strings.Contains(body, "RBAC: access denied") {
		t.Errorf("POST /reports as alice: %d %q, %v: no ALLOW policy allows it", got, body, err)
	}
	server.Stop() // from then on its log is whole
	for _, want := range []string{`"alice" may GET /reports/june`, `"bob" may not GET /reports/june`, `"alice" may POST /reports`} {
		if !strings.Contains(server.Log(), want) {
			t.Errorf("the server was not asked: %q is not in\n%s", want, server.Log())
		}
	}
	if strings.Contains(server.Log(), "GET /\n") || strings.Contains(server.Log(), "reportshop") {
		t.Errorf("the server was asked about requests that no rule matches:\n%s", server.Log())
	}
	answers("alice", "/reports/june", 403, "")
	answers("bob", "/", 200, "inventory")
	start()
	answers("alice", "/reports/june", 200, "inventory")
}
