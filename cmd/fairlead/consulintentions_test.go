package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
)

// intentionsAt writes intentions to a real Consul, and services.
func intentionsAt(t *testing.T, agent *consultest.Agent, entries ...api.ConfigEntry) {
	t.Helper()
	for i, name := range []string{"web", "job", "api", "db"} {
		s := &api.AgentServiceRegistration{ID: name + "-1", Name: name, Address: "10.0.0." + string(rune('1'+i)), Port: 8080, Meta: map[string]string{"protocol": "http"}}
		if err := agent.Client().Agent().ServiceRegister(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range entries {
		if _, _, err := agent.Client().ConfigEntries().Set(e, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func intention(to string, sources ...*api.SourceIntention) *api.ServiceIntentionsConfigEntry {
	for _, s := range sources {
		s.Type = api.IntentionSourceConsul
	}
	return &api.ServiceIntentionsConfigEntry{Kind: api.ServiceIntentions, Name: to, Sources: sources}
}

func tokenIn(t *testing.T, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestConsulIntentions writes the policies of a real Consul, and asks them who may do what.
func TestConsulIntentions(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.Options{ACL: true, Connect: true})
	intentionsAt(t, agent,
		&api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: "api", Protocol: "http"}, // or Consul takes no permissions
		intention("api", &api.SourceIntention{Name: "web", Permissions: []*api.IntentionPermission{
			{Action: api.IntentionActionDeny, HTTP: &api.IntentionHTTPPermission{PathPrefix: "/admin"}},
			{Action: api.IntentionActionAllow, HTTP: &api.IntentionHTTPPermission{Methods: []string{"GET"}}},
			{Action: api.IntentionActionAllow, HTTP: &api.IntentionHTTPPermission{PathExact: "/orders", Header: []api.IntentionHTTPHeaderPermission{{Name: "x-team", Exact: "a"}}}},
		}}, &api.SourceIntention{Name: "job", Action: api.IntentionActionDeny}),
		intention("*", &api.SourceIntention{Name: "*", Action: api.IntentionActionAllow}),
	)
	token := tokenIn(t, agent.Cluster().CreateToken(`service_prefix "" { policy = "read" intentions = "read" } node_prefix "" { policy = "read" }`).Secret)
	dir := t.TempDir()
	flags := []string{"--consul-address", agent.Address(), "--consul-token-file", token}
	convert := append([]string{"consul", "intentions", "--output-dir", dir, "--default-policy", "deny"}, flags...)
	if code, out, errs := cli(t, convert...); code != 0 || out != "" || errs != "" {
		t.Fatalf("%d\n%s%s", code, out, errs)
	}
	if code, out, _ := cli(t, "validate", dir); code != 0 || !strings.Contains(out, "5 objects: 0 errors, 0 warnings") {
		t.Errorf("validate: %d\n%s", code, out)
	}
	if code, out, _ := cli(t, append([]string{"analyze", dir}, flags...)...); code != 0 || strings.Contains(out, "AuthorizationPolicy") {
		t.Errorf("analyze: %d\n%s", code, out)
	}
	for _, c := range []struct {
		to, from string
		request  string
		allowed  bool
	}{
		{"api", "web", "GET /orders", true},
		{"api", "web", "GET /admin/users", false},
		{"api", "web", "POST /orders", false},
		{"api", "web", "POST /orders -H x-team:a", true},
		{"api", "web", "POST /admin -H x-team:a", false},
		{"api", "job", "GET /orders", false},
		{"api", "db", "GET /orders", true},
		{"db", "job", "GET /", true},
		{"db", "", "GET /", false},
	} {
		args := append([]string{"authz", "check", "--config-dir", dir, "--interception", "REDIRECT", "--workload", "default/" + c.to + "-1"}, flags...)
		if c.from != "" {
			args = append(args, "--from", "cluster.local/ns/default/sa/"+c.from)
		}
		code, out, errs := cli(t, append(args, strings.Fields(c.request)...)...)
		if want := map[bool]int{true: 0, false: exitInvalid}[c.allowed]; code != want || errs != "" {
			t.Errorf("%+v: %d\n%s%s", c, code, out, errs)
		}
	}

	// An intention that is gone leaves no policy; what has no counterpart is reported, and denies.
	intentionsAt(t, agent, intention("api", &api.SourceIntention{Name: "web", Permissions: []*api.IntentionPermission{
		{Action: api.IntentionActionAllow, HTTP: &api.IntentionHTTPPermission{PathRegex: "/orders/.*"}},
	}}))
	if _, err := agent.Client().ConfigEntries().Delete(api.ServiceIntentions, "*", nil); err != nil {
		t.Fatal(err)
	}
	code, out, errs := cli(t, convert...)
	if code != exitInvalid || out != "" || !strings.Contains(errs, "web → api: permission 0: PathRegex has no counterpart: it allows nothing") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	if code, out, _ := cli(t, append([]string{"authz", "check", "--config-dir", dir, "--interception", "REDIRECT", "--workload", "default/db-1", "--from", "cluster.local/ns/default/sa/job", "GET", "/"}, flags...)...); code != exitInvalid {
		t.Errorf("the former policies count: %d %s", code, out)
	}
	code, out, errs = cli(t, append([]string{"consul", "intentions"}, flags...)...)
	if code != exitInvalid || strings.Count(out, "kind: AuthorizationPolicy") != 5 || strings.Contains(errs, "--default-policy") {
		t.Errorf("to standard output: %d\n%s%s", code, out, errs)
	}
}

// TestConsulIntentionsReadsAllOrNothing: an intention that is not seen may be one that denies.
func TestConsulIntentionsReadsAllOrNothing(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.Options{ACL: true, Connect: true})
	intentionsAt(t, agent,
		intention("api", &api.SourceIntention{Name: "web", Action: api.IntentionActionDeny}),
		intention("*", &api.SourceIntention{Name: "*", Action: api.IntentionActionAllow}),
	)
	dir := t.TempDir()
	for name, c := range map[string]struct {
		rules string
		want  string
	}{
		"no_token":      {want: "name a token with --consul-token-file"},
		"no_intentions": {`service_prefix "" { policy = "read" intentions = "deny" } node_prefix "" { policy = "read" }`, "the token may not see all of them"},
		"not_one":       {`service_prefix "" { policy = "read" } service "api" { policy = "read" intentions = "deny" } node_prefix "" { policy = "read" }`, "the token may not see all of them"},
		"no_services":   {`service_prefix "" { policy = "read" } service "db" { policy = "deny" } node_prefix "" { policy = "read" }`, "the names of services: the token may not see all of them"},
	} {
		args := []string{"consul", "intentions", "--consul-address", agent.Address(), "--output-dir", dir}
		if c.rules != "" {
			args = append(args, "--consul-token-file", tokenIn(t, agent.Cluster().CreateToken(c.rules).Secret))
		}
		code, out, errs := cli(t, args...)
		if code != exitFailed || out != "" || !strings.Contains(errs, c.want) || !strings.Contains(errs, agent.Address()) {
			t.Errorf("%s: %d\n%s%s", name, code, out, errs)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("something is written: %v, %v", list, err)
	}
}

// TestConsulIntentionsWithoutACLs: nothing but the address is needed, and what Consul allows by
// default is reported.
func TestConsulIntentionsWithoutACLs(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.Options{Connect: true})
	intentionsAt(t, agent,
		intention("api", &api.SourceIntention{Name: "web", Action: api.IntentionActionDeny}),
		&api.TerminatingGatewayConfigEntry{Kind: api.TerminatingGateway, Name: "out", Services: []api.LinkedService{{Name: "db"}}},
		&api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: "far", Protocol: "tcp", Destination: &api.DestinationConfig{Addresses: []string{"far.example.com"}, Port: 443}},
	)
	code, out, errs := cli(t, "consul", "intentions", "--consul-address", agent.Address())
	if code != exitInvalid || strings.Contains(out, "rules:") {
		t.Errorf("%d\n%s", code, out)
	}
	for _, want := range []string{"Choose one: --default-policy allow, or deny", "db: it is reached through a terminating gateway", "far: it is reached through a terminating gateway"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q is not in\n%s", want, errs)
		}
	}
	code, out, errs = cli(t, "consul", "intentions", "--consul-address", agent.Address(), "--default-policy", "allow", "--consul-mesh-namespace", "shop", "--trust-domain", "shop.example")
	if code != exitInvalid || strings.Contains(errs, "default") || strings.Count(out, "- shop.example/ns/shop/sa/web\n") != 1 || strings.Count(out, "- shop.example/ns/shop/sa/*\n") != 5 {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	for args, want := range map[string]string{
		"": "--consul-address is required",
		"--consul-address h:1 --default-policy maybe": `--default-policy "maybe": choose allow or deny`,
		"--consul-address h:1 x":                      "unexpected argument",
		"--consul-address " + agent.Address() + " --default-policy deny --output-dir /nowhere/at/all": "/nowhere/at/all",
	} {
		if code, out, errs := cli(t, append([]string{"consul", "intentions"}, strings.Fields(args)...)...); code != exitFailed || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: %d\n%s%s", args, code, out, errs)
		}
	}
}
