package main

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/proxyconfig"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/registry"
)

// TestShellsComplete asks as a shell does: for names that the server has, and, at every command
// that has -o, for its values.
func TestShellsComplete(t *testing.T) {
	t.Parallel()
	answers := func(out any) http.Handler {
		return admin.JSON(func(context.Context, *http.Request, struct{}) (any, error) { return out, nil })
	}
	run := adminOf(t, map[string]http.Handler{
		"GET /v1/hosts":   answers([]server.Host{{Name: "vm1"}, {Name: "evil\nname"}}),
		"GET /v1/proxies": answers(server.Proxies{Proxies: []server.Proxy{{Name: "web.shop", Host: "vm1"}}}),
		"GET /v1/tokens":  answers([]server.TokenStatus{{ID: "0123456789abcdef"}}),
		"GET /v1/sources": answers(server.Sources{Registry: registry.Status{Sources: []registry.SourceStatus{{Name: "files"}}}}),
	})
	complete := func(args ...string) string {
		_, out, _ := cli(t, append([]string{cobra.ShellCompNoDescRequestCmd}, args...)...)
		return out
	}
	for args, want := range map[string]string{
		"host remove":          "vm1\n:4\n",
		"release":              "files\n:4\n",
		"token revoke":         "0123456789abcdef\n:4\n",
		"proxy-config cluster": "vm1\nweb.shop\n:4\n",
		"pc route":             "vm1\nweb.shop\n:4\n",
		"pc route vm1":         ":4\n",
	} {
		if got := complete(append(strings.Fields(args), "--run-dir", run, "")...); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	for _, name := range proxyconfig.Names() {
		if got := complete("proxy-config", name[:2]); !strings.Contains("\n"+got, "\n"+name+"\n") {
			t.Errorf("proxy-config %s: %q", name[:2], got)
		}
	}
	found := 0
	for _, c := range commands(newRoot()) {
		if c.Flag("output") == nil {
			continue
		}
		found++
		want := "text\njson\n:4\n"
		if c.Name() == "proxy-config" {
			want = strings.Join(append(proxyconfig.Formats(), dumpFormat), "\n") + "\n:4\n"
		}
		if got := complete(append(strings.Fields(c.CommandPath())[1:], "-o", "")...); got != want {
			t.Errorf("%s -o: %q", c.CommandPath(), got)
		}
	}
	if found < 5 {
		t.Errorf("found %d commands with -o", found)
	}
}
