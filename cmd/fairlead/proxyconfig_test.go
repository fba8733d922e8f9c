package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/proxyconfig"
)

// TestProxyConfigOfAFile needs neither a server nor an agent, for every type by every name.
func TestProxyConfigOfAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join("internal", "proxyconfig", "testdata", "config_dump.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range proxyconfig.Types() {
		for _, name := range append([]string{typ.Name}, typ.Aliases...) {
			code, out, errs := cli(t, "proxy-config", name, "-f", file)
			if typ.Name == proxyconfig.Log {
				if code != exitFailed || !strings.Contains(errs, "no log levels") {
					t.Errorf("%s: exit code %d: %s", name, code, errs)
				}
				continue
			}
			if code != 0 || !strings.Contains(out, "\n") {
				t.Errorf("%s: exit code %d: %s%s", name, code, out, errs)
			}
		}
	}
	var out, errs strings.Builder
	if code := runWith(t.Context(), strings.NewReader(string(raw)), []string{"pc", "c", "--subset", "v1", "--port", "9080", "-f", "-"}, &out, &errs); code != 0 || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("standard input: exit code %d: %s%s", code, out.String(), errs.String())
	}
	for args, want := range map[string]string{
		"routes":                                "PROXY is required",
		"routes web -f x":                       "exclude each other",
		"routes -f x --agent-run-dir y":         "exclude each other",
		"routes -f /no/such/file":               "no such file",
		"routes -f proxyconfig.go":              "no config_dump",
		"routes web -o xml":                     "choose short, json, yaml, dump",
		"all web -o dump":                       "-o dump needs --agent-run-dir",
		"routes --agent-run-dir y -o dump":      "choose the type all",
		"routes web --subset v1":                "--subset does not select routes: it is for cluster",
		"secrets web":                           "--agent-run-dir",
		"bananas web":                           "choose cluster, listener",
		"bananas -f internal/proxyconfig/x.txt": "choose cluster, listener",
	} {
		if code, _, errs := cli(t, append([]string{"proxy-config"}, strings.Fields(args)...)...); code != exitFailed || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, no %q: %s", args, code, want, errs)
		}
	}
}
