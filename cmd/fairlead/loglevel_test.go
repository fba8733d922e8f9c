package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/loglevel"
)

// logBuffer is written by a process and read by a test.
type logBuffer struct {
	mu  sync.Mutex // guards all
	all strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *logBuffer) lines(word string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.all.String()) {
		if strings.Contains(line, word) {
			n++
		}
	}
	return n
}

// TestLogLevelsOfAServer changes the levels of a running server, whose log then has other lines.
func TestLogLevelsOfAServer(t *testing.T) {
	t.Parallel()
	dir := envoytest.ShortDir(t)
	if err := os.Mkdir(dir+"/mesh", 0o750); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	log, ended := &logBuffer{}, make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{
			"server", "--config-dir", dir + "/mesh", "--state-dir", dir + "/state", "--run-dir", dir + "/run", "--debounce-after", "1ms",
			"--xds-address", "127.0.0.1:0", "--http-address", "", "--log-level", "error",
		}, log, log)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	levels := func(args ...string) (list []loglevel.Component, err error) {
		code, out, errs := cli(t, append([]string{"log-level", "--run-dir", dir + "/run", "-o", "json"}, args...)...)
		if code != 0 {
			return nil, errors.New(errs)
		}
		return list, json.Unmarshal([]byte(out), &list)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		_, err := levels()
		return err
	})
	write := func(name string) {
		t.Helper()
		content := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " + name + ", namespace: shop}\nspec: {hosts: [" + name + ".shop], ports: [{number: 80, name: http, protocol: HTTP}], resolution: NONE}\n"
		if err := os.WriteFile(filepath.Join(dir, "mesh", name+".yaml"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := levels("--level", "registry/files:debug")
	if err != nil || !slices.Contains(list, loglevel.Component{Name: "registry/files", Level: "debug"}) || !slices.Contains(list, loglevel.Component{Name: "xds", Level: "error"}) {
		t.Fatalf("levels %v, %v", list, err)
	}
	write("one")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if log.lines(`msg="file was read"`) == 0 {
			return errors.New("the component logs nothing")
		}
		return nil
	})
	if n := log.lines("level=DEBUG"); n != log.lines("component=registry/files ") {
		t.Errorf("%d lines of level debug, also of other components", n)
	}
	if list, err = levels("--reset"); err != nil || slices.ContainsFunc(list, func(c loglevel.Component) bool { return c.Level != "error" }) || len(list) < 5 {
		t.Errorf("after a reset: %v, %v", list, err)
	}
	for args, want := range map[string]string{
		"--level=nobody:debug": `no component "nobody"`, "--level=xds:loud": `no log level "loud"`, "--level=xds:": "write LEVEL or NAME:LEVEL", "--level=:debug": "write LEVEL or NAME:LEVEL",
		"--agent-run-dir=/nowhere": "/nowhere/admin.sock",
	} {
		if _, err := levels(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestProxyConfigChangesLevels says which question goes to an agent.
func TestProxyConfigChangesLevels(t *testing.T) {
	t.Parallel()
	var got string
	run := adminOf(t, map[string]http.Handler{
		"POST /v1/logging": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var b json.RawMessage
			_ = json.NewDecoder(r.Body).Decode(&b)
			got = string(b)
			_, _ = w.Write([]byte("{}"))
		}),
		"GET /v1/logging": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("active loggers:\n  rbac: debug\n"))
		}),
	})
	code, out, errs := cli(t, "proxy-config", "log", "--agent-run-dir", run, "--level", "info,rbac:debug", "--reset")
	if want := `{"levels":[{"logger":"","level":"info"},{"logger":"rbac","level":"debug"}],"reset":true}`; code != 0 || got != want || !strings.Contains(out, "rbac") {
		t.Errorf("exit code %d, the agent got %s\n%s%s", code, got, out, errs)
	}
	got = ""
	for _, args := range []string{"log web --level debug", "clusters --agent-run-dir " + run + " --level debug", "log -f x --reset"} {
		if code, _, errs := cli(t, append([]string{"proxy-config"}, strings.Fields(args)...)...); code != exitFailed || !strings.Contains(errs, "--level and --reset") {
			t.Errorf("%s: exit code %d: %s", args, code, errs)
		}
	}
	if code, _, _ := cli(t, "proxy-config", "log", "--agent-run-dir", run); code != 0 || got != "" {
		t.Errorf("exit code %d; showing changed %s", code, got)
	}
}

// TestLevelsAreForAdministrators: the port for metrics neither shows nor changes levels.
func TestLevelsAreForAdministrators(t *testing.T) {
	t.Parallel()
	levels := loglevel.New(slog.LevelInfo)
	srv, err := admin.New(t.Context(), admin.Config{Logger: slog.New(slog.DiscardHandler), Address: "127.0.0.1:0", Levels: levels})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		req, err := http.NewRequestWithContext(ctx, method, "http://"+srv.Address()+admin.LogLevelsPath, strings.NewReader(`{"levels":[{"component":"","level":"debug"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("%s answered with %s", method, res.Status)
		}
	}
	if got := loglevel.Text(levels.List()); got != "default:info" {
		t.Errorf("the levels are %s", got)
	}
}
