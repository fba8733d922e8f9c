package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// Several files are one change to the server, and their names are anybody's
// choice.
func TestApplyReportsEveryFile(t *testing.T) {
	t.Parallel()
	dir, from := t.TempDir(), t.TempDir()
	var args []string
	for name, content := range map[string]string{
		"a.yaml":         "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, namespace: shop}\nspec: {egress: [{hosts: ['./*']}]}\n",
		"50% of b?.yaml": "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: b, namespace: hall}\nspec: {egress: [{hosts: ['./*']}]}\n",
	} {
		path := filepath.Join(from, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	published := make(chan time.Time, 1)
	rollout := func(_ context.Context, r *http.Request, _ struct{}) (server.Rollout, error) {
		if _, err := os.Stat("/" + strings.TrimPrefix(r.PathValue("path"), "/")); err != nil {
			return server.Rollout{}, err
		}
		at := time.Now()
		select {
		case at = <-published:
		default:
		}
		published <- at
		age := time.Since(at) // proxies take their time to answer
		return server.Rollout{Done: age > 100*time.Millisecond, Touched: 1, Accepted: 1, Age: age.Seconds()}, nil
	}
	run := adminOf(t, map[string]http.Handler{"GET /v1/sources": reads(dir), "GET /v1/rollout/{path...}": admin.JSON(rollout)})
	code, out, errs := cli(t, append([]string{"apply", "--config-dir", dir, "--run-dir", run, "--wait", "5s"}, args...)...)
	if code != 0 || strings.Count(out, "applied to 1/1 proxies") != 2 {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
}

// reads is what a server says that reads manifests there.
func reads(root string) http.Handler {
	return admin.JSON(func(context.Context, *http.Request, struct{}) (any, error) {
		return map[string]any{"files": []any{map[string]any{"roots": []any{map[string]any{"path": root}}}}}, nil
	})
}

// outcome is a server that does not know the result, with what people and scripts get.
type outcome struct {
	run, want string
	code      int
}

// outcomes are servers that do not know the result of a change, with the message that people
// get. root is the changed directory.
func outcomes(t *testing.T, root string) map[string]outcome {
	t.Helper()
	refuses := admin.JSON(func(context.Context, *http.Request, struct{}) (any, error) { return nil, errors.New("not today") })
	gone := t.TempDir()
	if err := os.WriteFile(filepath.Join(gone, "admin.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]outcome{
		"none":         {run: t.TempDir()},
		"refuses":      {adminOf(t, map[string]http.Handler{"GET /v1/sources": refuses}), "the result at the proxies is unknown: not today\n", exitUnknown},
		"other-kind":   {adminOf(t, nil), "the result at the proxies is unknown: the process behind ", exitUnknown},
		"gone":         {gone, "connection refused: is the process running, and is --run-dir right?", exitUnknown},
		"reads-others": {adminOf(t, map[string]http.Handler{"GET /v1/sources": reads("/nowhere")}), "the server on this machine does not read it: \"" + root + "\"", 0},
		"keeps-silent": {
			adminOf(t, map[string]http.Handler{"GET /v1/sources": reads(root), "GET /v1/rollout/{path...}": refuses}),
			"a.yaml: no result from the server within 200ms: not today\n", exitUnknown,
		},
	}
}

// TestApplyReportsUnknownResult: without a message people would assume success.
func TestApplyReportsUnknownResult(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, c := range outcomes(t, dir) {
		from := filepath.Join(t.TempDir(), "a.yaml")
		if err := os.WriteFile(from, []byte(serviceEntry("a", name)), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := cli(t, "apply", from, "--config-dir", dir, "--run-dir", c.run, "--wait", "200ms")
		if code != c.code || c.want == "" && !strings.HasSuffix(strings.ReplaceAll(out, "created", "changed"), "written to "+filepath.Join(dir, "a.yaml")+"\nServiceEntry default/a changed\n") || !strings.Contains(out, c.want) {
			t.Errorf("%s: it does not say %q with exit code %d: %d\n%s%s", name, c.want, c.code, code, out, errs)
		}
	}
}

// TestApplyFindsADirectoryOfTwoNames: a server may know it by another one.
func TestApplyFindsADirectoryOfTwoNames(t *testing.T) {
	t.Parallel()
	dir, from := t.TempDir(), filepath.Join(t.TempDir(), "a.yaml")
	link := filepath.Join(t.TempDir(), "mesh")
	if err := errors.Join(os.Symlink(dir, link), os.WriteFile(from, []byte(serviceEntry("a", "a")), 0o600)); err != nil {
		t.Fatal(err)
	}
	rollout := admin.JSON(func(_ context.Context, r *http.Request, _ struct{}) (server.Rollout, error) {
		if path := "/" + r.PathValue("path"); path != dir+"/a.yaml" {
			t.Errorf("asked for %q", path)
		}
		return server.Rollout{Done: true, Touched: 1, Accepted: 1}, nil
	})
	run := adminOf(t, map[string]http.Handler{"GET /v1/sources": reads(dir), "GET /v1/rollout/{path...}": rollout})
	if code, out, errs := cli(t, "apply", from, "--config-dir", link, "--run-dir", run); code != 0 || !strings.Contains(out, "a.yaml applied to 1/1 proxies") {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
}

// adminOf is the runtime directory of a server that answers with the handlers.
func adminOf(t *testing.T, routes map[string]http.Handler) string {
	t.Helper()
	run := envoytest.ShortDir(t)
	s, err := admin.New(t.Context(), admin.Config{
		Logger: slog.New(slog.DiscardHandler), Socket: filepath.Join(run, "admin.sock"), Routes: routes,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(run)
	})
	return run
}

// Scripts read JSON and exit codes.
func TestProxyStatusSaysTheSameInJSON(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		proxies server.Proxies
		sources server.Sources
		code    int
	}{
		"well":        {},
		"not_synced":  {proxies: server.Proxies{Proxies: []server.Proxy{{Name: "web.shop", Connected: true}}}, code: exitInvalid},
		"refused":     {proxies: server.Proxies{Refused: []server.Refused{{Host: "vm1"}}}, code: exitInvalid},
		"not_ready":   {sources: server.Sources{NotReady: []string{"source files has not delivered"}}, code: exitInvalid},
		"synced_well": {proxies: server.Proxies{Proxies: []server.Proxy{{Name: "web.shop", Connected: true, Synced: true}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := adminOf(t, map[string]http.Handler{
				"GET /v1/proxies": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Proxies, error) { return c.proxies, nil }),
				"GET /v1/sources": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Sources, error) { return c.sources, nil }),
			})
			for _, output := range []string{"text", "json"} {
				if code, out, errs := cli(t, "proxy-status", "--run-dir", run, "-o", output); code != c.code {
					t.Errorf("%s: exit code %d, want %d\n%s%s", output, code, c.code, out, errs)
				}
			}
			_, out, _ := cli(t, "proxy-status", "--run-dir", run, "-o", "json")
			var got server.Proxies
			if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Proxies) != len(c.proxies.Proxies) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestApplyNamesWhoDoesNotAnswer: the result of each file is printed, with the proxies that have not
// answered, also if the first one takes all of the time.
func TestApplyNamesWhoDoesNotAnswer(t *testing.T) {
	t.Parallel()
	dir, from := t.TempDir(), t.TempDir()
	args := []string{"apply", "--config-dir", dir}
	for _, name := range []string{"a", "b"} {
		path := filepath.Join(from, name+".yaml")
		if err := os.WriteFile(path, []byte(serviceEntry(name, name)), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	rollout := admin.JSON(func(_ context.Context, r *http.Request, _ struct{}) (server.Rollout, error) {
		if strings.HasSuffix(r.PathValue("path"), "a.yaml") {
			return server.Rollout{Touched: 12, Accepted: 11, Waiting: 1, Unanswered: []server.Unanswered{{Proxy: "web.shop", Host: "vm1", Seconds: 1}}}, nil
		}
		return server.Rollout{Done: true, Touched: 12, Accepted: 11, Waiting: 1, Unanswered: []server.Unanswered{{Proxy: "db.shop", Host: "vm2", Seconds: 90, Silent: true}}}, nil
	})
	run := adminOf(t, map[string]http.Handler{"GET /v1/sources": reads(dir), "GET /v1/rollout/{path...}": rollout})
	code, out, errs := cli(t, append(args, "--run-dir", run, "--wait", "300ms")...)
	for _, want := range []string{
		"a.yaml: no result from the server within 300ms: 1 of 12 proxies have not answered\nweb.shop on host vm1 has not answered for 1s\n",
		"b.yaml applied to 11/12 proxies in 0.00 s\ndb.shop on host vm2 has not answered for 1m30s, since before the change: nobody waits for it\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say\n%s%d\n%s%s", want, code, out, errs)
		}
	}
	if code != exitUnknown {
		t.Errorf("exit code %d", code)
	}
	// Nobody says how it went where the only proxy is silent: another try is no success.
	alone := admin.JSON(func(context.Context, *http.Request, struct{}) (server.Rollout, error) {
		return server.Rollout{Done: true, Touched: 1, Waiting: 1, Unanswered: []server.Unanswered{{Proxy: "db.shop", Host: "vm2", Seconds: 90, Silent: true}}}, nil
	})
	if err := os.WriteFile(args[3], []byte(serviceEntry("a", "a2")), 0o600); err != nil {
		t.Fatal(err)
	}
	run = adminOf(t, map[string]http.Handler{"GET /v1/sources": reads(dir), "GET /v1/rollout/{path...}": alone})
	if code, out, errs := cli(t, append(args[:4:4], "--run-dir", run, "--wait", "300ms")...); code != exitUnknown || !strings.Contains(out, "applied to 0/1 proxies") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}
