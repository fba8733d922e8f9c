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
	examples := filepath.Join(envoytest.ModuleRoot(t), "examples")
	code, out, _ = cli(t, "validate", "--mesh-config", filepath.Join(examples, "authorization", "mesh-config.yaml"),
		filepath.Join(examples, "authorization", "policies"), filepath.Join(examples, "quickstart"), filepath.Join(examples, "consul-fleet"))
	if code != 0 {
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
	code, out, errs := cli(t, "render", "--config-dir", dir, "--workload", "shop/web")
	if code != 0 || !strings.Contains(out, `"outbound|9080|v1|orders.shop.internal"`) || strings.Contains(out, "virtualOutbound") {
		t.Errorf("render: %d %s\n%s", code, errs, out)
	}
	code, out, _ = cli(t, "render", "--config-dir", dir, "--namespace", "shop", "--labels", "app=other", "--ip", "10.0.0.9", "--interception", "redirect")
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

const unknownHost = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: extra, namespace: shop}
spec:
  hosts: [orders.shop.internal]
  http:
  - route:
    - destination: {host: order.shop.internal}
`

// shop is a copy of the quickstart's mesh.
func shop(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(envoytest.ModuleRoot(t), "examples/quickstart/mesh"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAnalyze(t *testing.T) {
	t.Parallel()
	dir := shop(t)
	if code, out, errs := cli(t, "analyze", dir); code != 0 || !strings.Contains(out, "0 errors, 0 warnings") {
		t.Errorf("the quickstart: %d %s\n%s", code, errs, out)
	}
	code, out, _ := cli(t, "analyze", dir, write(t, unknownHost))
	if code != exitInvalid || !strings.Contains(out, ":8:27: error [FL0201]") || !strings.Contains(out, "orders.shop.internal") {
		t.Errorf("an unknown host: %d\n%s", code, out)
	}
	code, out, _ = cli(t, "analyze", write(t, "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: b}\nspec: {jwtRules: [{issuer: \"https://a.example\\n\"}]}\n"))
	if code != exitInvalid || !strings.Contains(out, "not in force") {
		t.Errorf("a policy that is not in force: %d\n%s", code, out)
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	dir := shop(t)
	before, err := os.ReadFile(filepath.Join(dir, "orders.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	apply := func(args ...string) (int, string, string) {
		return cli(t, append([]string{"apply", "--config-dir", dir, "--run-dir", t.TempDir()}, args...)...)
	}
	for name, content := range map[string]string{"orders.yaml": misspelt, "new.yaml": unknownHost} {
		code, out, _ := apply(put(name, content))
		if code != exitInvalid || !strings.Contains(out, "refused: nothing was written") {
			t.Errorf("%s: %d\n%s", name, code, out)
		}
	}
	if now, err := os.ReadFile(filepath.Join(dir, "orders.yaml")); err != nil || string(now) != string(before) {
		t.Errorf("a refused file was written: %v", err)
	}
	edited := strings.NewReplacer("weight: 90", "weight: 50", "weight: 10", "weight: 50").Replace(string(before))
	if code, out, errs := apply("--dry-run", put("orders.yaml", edited)); code != 0 || !strings.Contains(out, "would be applied") {
		t.Errorf("dry run: %d %s %s", code, out, errs)
	}
	if code, out, errs := apply(put("orders.yaml", edited)); code != 0 || !strings.Contains(out, "written to") {
		t.Errorf("a good file: %d %s %s", code, out, errs)
	}
	if now, err := os.ReadFile(filepath.Join(dir, "orders.yaml")); err != nil || string(now) != edited+"...\n" {
		t.Errorf("the file was not written: %v", err)
	}
	if code, out, _ := apply(put("orders.yaml", edited)); code != 0 || !strings.Contains(out, ": unchanged") {
		t.Errorf("the same file again: %d %s", code, out)
	}
	// What was wrong before does not refuse what is right.
	if err := os.WriteFile(filepath.Join(dir, "broken.yaml"), []byte(strings.Replace(misspelt, "name: orders", "name: broken", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := apply(put("orders.yaml", string(before))); code != 0 || strings.Contains(out, "wieght") {
		t.Errorf("beside a broken file: %d %s", code, out)
	}
	if code, _, errs := apply(put("orders.json", "{}")); code != exitFailed || !strings.Contains(errs, "rename the file") {
		t.Errorf("a file the server would not read: %d %s", code, errs)
	}
}

// TestOddArguments wants each refusal to name what is wrong and what to write.
func TestOddArguments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		args string
		want []string
	}{
		{"validate", []string{"missing", "fairlead validate PATH"}},
		{"host remove", []string{"missing", "fairlead host remove"}},
		{"release a b", []string{`unexpected argument "b"`, "fairlead release SOURCE"}},
		{"host list web", []string{`"web"`, "flags only"}},
		{"host forget", []string{"missing", "--all"}},
		{"host forget a b", []string{`unexpected argument "b"`}},
		{"host forget --all a", []string{`unexpected argument "a"`}},
		{"server extra", []string{`"extra"`, "flags only"}},
		{"server --config-dir " + dir + " --scan-interval -1s", []string{"--scan-interval -1s", "below zero"}},
		{"server --config-dir " + dir + " --debounce-after -1s", []string{"--debounce-after -1s"}},
		{"server --config-dir " + dir + " --removal-share 7", []string{"--removal-share 7", "more than 0 and at most 1"}},
		{"server --config-dir " + dir + " --removal-share NaN", []string{"--removal-share NaN", "at most 1"}},
		{"server --config-dir " + dir + " --removal-share 0", []string{"--removal-share 0", "such as 0.3"}},
		{"server --config-dir " + dir + " --max-streams 0 --max-new-streams -1", []string{"--max-streams 0", "leave it out for 20000", "--max-new-streams -1", "leave it out for 64"}},
		{"server --config-dir " + dir + " --max-connections 0 --max-streams-per-host 0", []string{"--max-connections 0", "write 1 or more", "--max-streams-per-host 0"}},
		{"server --config-dir " + dir + " --slow-proxy-timeout 1ns", []string{"--slow-proxy-timeout 1ns", "write 1s or more, or leave it out for 3m0s"}},
		{"server --config-dir " + dir + " --slow-proxy-timeout 0", []string{"--slow-proxy-timeout 0s", "write 1s or more"}},
		{"server --config-dir " + dir + " --slow-proxy-timeout -1s", []string{"--slow-proxy-timeout -1s", "write 1s or more"}},
		{"server --config-dir " + dir + " --virtual-hosts=", []string{`--virtual-hosts ""`, "write auto or off"}},
		{"server --config-dir " + dir + "=Shop", []string{`"Shop" is not a namespace`}},
		{"agent --server here", []string{`--server "here"`, "HOST:PORT"}},
		{"agent --stats-port 9000 --health-port 9000", []string{"both 9000"}},
		{"agent --drain-time -1s", []string{"--drain-time -1s"}},
	} {
		code, _, stderr := cli(t, strings.Fields(c.args)...)
		for _, want := range c.want {
			if code != exitFailed || !strings.Contains(stderr, want) {
				t.Errorf("%s: exit code %d, %q; want %d and %q", c.args, code, stderr, exitFailed, want)
			}
		}
	}
}
