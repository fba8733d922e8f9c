package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"
	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestCatalogFlags: what belongs to Consul is refused without one, and what is
// wrong is told by flag, where anything is read of it.
func TestCatalogFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, command := range [][]string{{"server", "--config-dir", dir, "--state-dir", dir}, {"analyze", dir}, {"render", "--config-dir", dir, "--ip", "10.0.0.1"}} {
		for _, c := range []struct{ args, want string }{
			{"--consul-filter=x", "--consul-filter needs --consul-address"},
			{"--consul-address=h:1 --consul-service=web", `--consul-service: reading the rule "web"`},
			{"--consul-address=h:1 --consul-cert-file=x", "--consul-cert-file and --consul-key-file go together"},
			{"--consul-address=h:1 --consul-address-kind=moon", `address kind "moon" is unknown`},
			{"--consul-address=h:1 --consul-datacenter=a --consul-datacenter=a", `--consul-datacenter "a" is named twice`},
		} {
			code, _, errs := cli(t, append(slices.Clip(command), strings.Fields(c.args)...)...)
			if code != exitFailed || !strings.Contains(errs, c.want) {
				t.Errorf("%s %s: %d %s", command[0], c.args, code, errs)
			}
		}
	}
}

// TestConsulVariables: the variables of Consul's own tools count where nothing
// else does, and those that would mean something else here are refused.
func TestConsulVariables(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args, env []string
		file      string
		want      string // of token file, CA file and namespace
		err       string
	}{
		"no_consul":            {env: []string{"CONSUL_HTTP_ADDR=h:1", "CONSUL_HTTP_TOKEN=x", "CONSUL_NAMESPACE=n"}, want: "  "},
		"read":                 {args: []string{"--consul-address=https://h"}, env: []string{"CONSUL_HTTP_TOKEN_FILE=f", "CONSUL_CACERT=c", "CONSUL_NAMESPACE=n"}, want: "f c n"},
		"flag_over_all":        {args: []string{"--consul-address=h", "--consul-token-file=mine"}, env: []string{"CONSUL_HTTP_TOKEN_FILE=f"}, want: "mine  "},
		"file_over_them":       {file: "consul-address: h\nconsul-token-file: mine\n", env: []string{"CONSUL_HTTP_TOKEN_FILE=f"}, want: "mine  "},
		"ours_over_them":       {env: []string{"FAIRLEAD_FLAG_CONSUL_ADDRESS=h", "CONSUL_HTTP_TOKEN_FILE=f", "FAIRLEAD_FLAG_CONSUL_TOKEN_FILE=mine"}, want: "mine  "},
		"tls_of_another":       {args: []string{"--consul-address=http://h"}, env: []string{"CONSUL_CACERT=c"}, want: "  "},
		"token":                {args: []string{"--consul-address=h"}, env: []string{"CONSUL_HTTP_TOKEN=secret"}, err: "CONSUL_HTTP_TOKEN: a token is read from a file"},
		"token_beside_a_file":  {args: []string{"--consul-address=h", "--consul-token-file=f"}, env: []string{"CONSUL_HTTP_TOKEN=secret"}, want: "f  "},
		"no_verification":      {args: []string{"--consul-address=https://h"}, env: []string{"CONSUL_HTTP_SSL_VERIFY=false"}, err: "always verified"},
		"no_verification_http": {args: []string{"--consul-address=h"}, env: []string{"CONSUL_HTTP_SSL_VERIFY=false"}, want: "  "},
		"ssl":                  {args: []string{"--consul-address=h"}, env: []string{"CONSUL_HTTP_SSL=true"}, err: "write https://"},
		"ssl_anyway":           {args: []string{"--consul-address=https://h"}, env: []string{"CONSUL_HTTP_SSL=true"}, want: "  "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := &cobra.Command{Use: "fairlead"}
			root.PersistentFlags().String("settings", "", "")
			cmd := &cobra.Command{Use: "server", Run: func(*cobra.Command, []string) {}}
			var f catalogFlags
			f.add(cmd.Flags())
			root.AddCommand(cmd)
			cmd.InheritedFlags()
			args := c.args
			if c.file != "" {
				path := filepath.Join(t.TempDir(), "settings.yaml")
				if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--settings="+path)
			}
			if err := cmd.ParseFlags(args); err != nil {
				t.Fatal(err)
			}
			err := applySettings(cmd, c.env)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret") {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if got := f.TokenFile + " " + f.CAFile + " " + f.Namespace; err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

const overConsul = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.service.consul]
  http:
  - route:
    - destination: {host: web.service.consul, subset: v1}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec:
  host: web.service.consul
  subsets:
  - {name: v1, labels: {version: v1}}
`

const takesHost = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: shop}
spec:
  hosts: [api.service.consul]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.9.9.9}]
`

// TestAnalyzeTheMeshOfBoth asks a real Consul.
func TestAnalyzeTheMeshOfBoth(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.Options{})
	for _, s := range []*api.AgentServiceRegistration{
		{ID: "web-1", Name: "web", Address: "10.0.0.1", Port: 8080, Tags: []string{"version=v1"}, Meta: map[string]string{"protocol": "http"}},
		{ID: "web-2", Name: "web", Address: "10.0.0.2", Port: 8080, Meta: map[string]string{"protocol": "http", "fairlead-service-account": "admin"}},
		{ID: "api-1", Name: "api", Address: "10.0.0.3", Port: 8080, Meta: map[string]string{"protocol": "http"}},
	} {
		if err := agent.Client().Agent().ServiceRegister(s); err != nil {
			t.Fatal(err)
		}
	}
	rest := "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default}\nspec: {mtls: {mode: LOOSE}}\n"
	if _, err := agent.Client().KV().Put(&api.KVPair{Key: "mesh/peers.yaml", Value: []byte(rest)}, nil); err != nil {
		t.Fatal(err)
	}
	path := write(t, overConsul)
	if code, out, _ := cli(t, "analyze", path); code != exitInvalid || !strings.Contains(out, "FL0201") {
		t.Errorf("without Consul: %d\n%s", code, out)
	}
	code, out, errs := cli(t, "analyze", "--consul-address", agent.Address(), path)
	if code != 0 || !strings.Contains(out, "[FL0604]") || strings.Contains(out, "error [") || strings.Contains(out, "FL0221") {
		t.Errorf("with Consul: %d\n%s%s", code, out, errs)
	}
	code, out, _ = cli(t, "analyze", "--consul-address", agent.Address(), "--consul-kv-prefix", "mesh=shop", path)
	if code != exitInvalid || !strings.Contains(out, "consul-kv:mesh/peers.yaml:4:21: error") {
		t.Errorf("with the key-value store: %d\n%s", code, out)
	}
	path = write(t, overConsul+takesHost)
	code, out, _ = cli(t, "analyze", "--consul-address", agent.Address(), path)
	if code != 0 || !strings.Contains(out, path+":22:11: warning [FL0221]") {
		t.Errorf("a host of both: %d\n%s", code, out)
	}
	if code, out, errs = cli(t, "analyze", "--consul-address", agent.Address()); code != 0 {
		t.Errorf("the catalog alone: %d\n%s%s", code, out, errs)
	}

	code, out, errs = cli(t, "render", "--consul-address", agent.Address(), "--config-dir", path, "--namespace", "shop", "--ip", "10.0.0.9")
	for _, want := range []string{"outbound|8080|v1|web.service.consul", "10.0.0.1", "10.9.9.9"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("render: %d, lacks %s: %s", code, want, errs)
		}
	}

	for workload, want := range map[string]string{
		"default/api": "10.0.0.3", "default/api-1": "10.0.0.3", "default/web-1": "10.0.0.1",
		"default/web": "10.0.0.1", "default/dc1-server-1/web-1": "10.0.0.1", "default/nobody-at-all": "which has consul/dc1/", "none/web": "no such workload",
	} {
		code, out, errs = cli(t, "render", "--consul-address", agent.Address(), "--workload", workload)
		if (code == 0) != strings.HasPrefix(want, "10.") || !strings.Contains(out+errs, want) {
			t.Errorf("render --workload %s: %d, lacks %s: %s", workload, code, want, errs)
		}
	}

	dir := t.TempDir()
	into := []string{"apply", path, "--config-dir", dir, "--run-dir", dir}
	if code, out, _ = cli(t, into...); code != exitInvalid || !strings.Contains(out, "refused") {
		t.Errorf("apply without Consul: %d\n%s", code, out)
	}
	if code, out, errs = cli(t, append(into, "--consul-address", agent.Address(), "--even-if-breaking")...); code != 0 || !strings.Contains(out, "written to") {
		t.Errorf("apply with Consul: %d\n%s%s", code, out, errs)
	}

	agent.Kill()
	code, out, errs = cli(t, "analyze", "--consul-address", agent.Address(), path)
	if code != exitFailed || !strings.Contains(errs, "reading the catalog at "+agent.Address()) || out != "" {
		t.Errorf("with Consul away: %d\n%s%s", code, out, errs)
	}
}

// TestWorkloadsAreTold: where a name fits several workloads, none is guessed.
func TestWorkloadsAreTold(t *testing.T) {
	t.Parallel()
	var all []*mesh.Workload
	for _, name := range []string{"consul/dc1/a/web-1", "consul/dc1/b/web-1", "consul/dc1/b/web-2", "consul/dc1/c/web-3"} {
		all = append(all, &mesh.Workload{Meta: mesh.Meta{Key: mesh.Key{Name: name}}, ServiceAccount: "web"})
	}
	for name, want := range map[string]string{
		"web":   "name one of them: consul/dc1/a/web-1, consul/dc1/b/web-1, consul/dc1/b/web-2 and 1 more",
		"web-1": "name one of them: consul/dc1/a/web-1, consul/dc1/b/web-1",
		"x":     "which has consul/dc1/a/web-1",
	} {
		if w, err := findWorkload(all, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", name, w, err)
		}
	}
	if w, err := findWorkload(all, "web-2"); err != nil || w != all[2] {
		t.Errorf("%v, %v", w, err)
	}
}
