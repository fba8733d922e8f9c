package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/envoytest"
)

func cli(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestVersionNamesTheTestedEnvoys(t *testing.T) {
	t.Parallel()
	if !slices.Equal(testedEnvoys(), envoytest.Versions()) {
		t.Errorf("version says %v, the tests run %v", testedEnvoys(), envoytest.Versions())
	}
	code, out, _ := cli(t, "version", "-o", "json")
	var v versionInfo
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 || v.Go == "" {
		t.Errorf("version: %d %q %v", code, out, err)
	}
}

// TestEveryCommandIsExplained wants help, and an example where a command does
// something.
func TestEveryCommandIsExplained(t *testing.T) {
	t.Parallel()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%q has no description", c.CommandPath())
		}
		if c.Runnable() && c.Example == "" {
			t.Errorf("%q has no example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
}

const misspelt = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.internal]
  http:
  - route:
    - destination: {host: orders.shop.internal}
      wieght: 90
`

func TestValidate(t *testing.T) {
	t.Parallel()
	path := write(t, misspelt)
	code, out, _ := cli(t, "validate", path)
	if code != exitInvalid || !strings.Contains(out, path+":9:7: error") || !strings.Contains(out, `"weight"`) {
		t.Errorf("validate: %d\n%s", code, out)
	}
	code, out, _ = cli(t, "validate", "-o", "json", path)
	var list []finding
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != exitInvalid || len(list) != 1 || list[0].Line != 9 {
		t.Errorf("validate -o json: %d %v\n%s", code, err, out)
	}
	if code, out, _ = cli(t, "validate", filepath.Join(envoytest.ModuleRoot(t), "examples")); code != 0 {
		t.Errorf("the examples are not valid: %d\n%s", code, out)
	}
	if code, _, errs := cli(t, "validate", "/nonexistent"); code != exitFailed || !strings.Contains(errs, "/nonexistent") {
		t.Errorf("a path that is not there: %d %s", code, errs)
	}
	if code, _, errs := cli(t, "validate", "-o", "yaml", path); code != exitFailed || !strings.Contains(errs, "text or json") {
		t.Errorf("unknown output: %d %s", code, errs)
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(envoytest.ModuleRoot(t), "examples/quickstart/mesh")
	code, out, errs := cli(t, "render", "--config-dir", dir, "--workload", "shop/web", "--interception", "NONE")
	if code != 0 || !strings.Contains(out, `"outbound|9080|v1|orders.shop.internal"`) || strings.Contains(out, "virtualOutbound") {
		t.Errorf("render: %d %s\n%s", code, errs, out)
	}
	code, out, _ = cli(t, "render", "--config-dir", dir, "--namespace", "shop", "--labels", "app=other", "--ip", "10.0.0.9")
	if code != 0 || !strings.Contains(out, "virtualOutbound") {
		t.Errorf("render of a described proxy: %d", code)
	}
	for _, c := range []struct{ args, want string }{
		{"--workload shop/wep", `did you mean "web"?`},
		{"--workload web", "write NAMESPACE/NAME"},
		{"--ip 10.0.0", "is no address"},
		{"--ip 10.0.0.1 --type gateway", "choose sidecar or router"},
		{"--ip 10.0.0.1 --labels app", "write k=v"},
	} {
		args := append([]string{"render", "--config-dir", dir}, strings.Fields(c.args)...)
		if code, _, errs := cli(t, args...); code != exitFailed || !strings.Contains(errs, c.want) {
			t.Errorf("render %s: %d %s, want %q", c.args, code, errs, c.want)
		}
	}
	if code, _, errs := cli(t, "render", "--config-dir", write(t, misspelt), "--ip", "10.0.0.1"); code != exitInvalid || !strings.Contains(errs, ":9:7:") {
		t.Errorf("a broken object: %d %s", code, errs)
	}
}
