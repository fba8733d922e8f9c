package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/files"
)

// controlPlane is a server in this process, and where its admin.sock is.
func controlPlane(t *testing.T) (runDir string) {
	t.Helper()
	run := envoytest.ShortDir(t)
	startServer(t, run, t.TempDir())
	return run
}

// startServer gives what stops it.
func startServer(t *testing.T, runDir, stateDir string) (stop func()) {
	t.Helper()
	s, err := server.New(t.Context(), server.Config{
		Logger: slog.New(slog.DiscardHandler), Roots: []files.Root{{Path: t.TempDir()}},
		StateDir: stateDir, RunDir: runDir, XDSAddress: "127.0.0.1:0",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

func TestTokenCreateOut(t *testing.T) {
	t.Parallel()
	run, dir := controlPlane(t), t.TempDir()
	path := filepath.Join(dir, "token")
	create := func(args ...string) (int, string, string) {
		return cli(t, append([]string{"token", "create", "--run-dir", run, "--workload", "shop/web"}, args...)...)
	}
	// What had the name could be read by all, and is not written into.
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Close() }()
	code, out, errs := create("--host", "web-1", "--out", path)
	if code != 0 || !strings.Contains(out, path) {
		t.Fatalf("create: %d %s\n%s", code, errs, out)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: want 0600", info.Mode(), err)
	}
	if len(content) < 100 || strings.Contains(out, strings.TrimSpace(string(content))) {
		t.Errorf("%d bytes in the file; or the token is shown besides", len(content))
	}
	was := make([]byte, 10)
	if n, err := old.Read(was); err != nil || string(was[:n]) != "old" {
		t.Errorf("the file that had the name has %q, %v", was[:n], err)
	}

	code, out, errs = create("--host", "web-2", "--out", path, "-o", "json")
	var made map[string]any
	if err := json.Unmarshal([]byte(out), &made); err != nil || code != 0 || made["file"] != path || made["host"] != "web-2" || made["token"] != nil {
		t.Errorf("create -o json: %d %s\n%s", code, errs, out)
	}

	// Nothing is made where it could not be kept, and nothing is left behind.
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{link, dir, filepath.Join(dir, "nowhere", "token")} {
		if code, _, errs := create("--host", "web-3", "--out", bad); code == 0 || !strings.Contains(errs, bad) {
			t.Errorf("--out %s: %d %s", bad, code, errs)
		}
	}
	if code, _, errs := create("--host", "NOT A NAME", "--out", path); code == 0 {
		t.Errorf("a token for no name: %d %s", code, errs)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestTokenListAndRevoke makes tokens, finds them in the list without their secrets, and
// revokes one by the id that the list shows.
// TestTokensOfHosts: one command makes the tokens of several hosts, each in a file of its own.
func TestTokensOfHosts(t *testing.T) { //nolint:paralleltest // changes the directory
	run := controlPlane(t)
	t.Chdir(t.TempDir())
	code, out, errs := cli(t, "token", "create", "--run-dir", run, "web-1=shop/web", "orders-1=shop/orders")
	if code != 0 {
		t.Fatalf("%d: %s%s", code, out, errs)
	}
	for _, host := range []string{"web-1", "orders-1"} {
		info, err := os.Stat(host + ".token")
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 || !strings.Contains(out, host+".token") {
			t.Errorf("%s: mode %v, said %q", host, info.Mode(), out)
		}
	}
	for _, args := range [][]string{{"web-2"}, {"web-2="}, {"=shop/web"}, {"../web-2=shop/web"}, {"web-2=shop/web", "--host", "x"}, {"web-2=shop/web", "--out", "x"}, {"web-3=shop/web", "nonsense"}} {
		if code, out, _ := cli(t, append([]string{"token", "create", "--run-dir", run}, args...)...); code == 0 {
			t.Errorf("%q made a token: %s", args, out)
		}
	}
	if left, err := filepath.Glob("*"); err != nil || len(left) != 2 {
		t.Errorf("files %q, %v", left, err)
	}
}

func TestTokenListAndRevoke(t *testing.T) {
	t.Parallel()
	run := controlPlane(t)
	token := func(args ...string) (int, string, string) {
		return cli(t, append(append([]string{"token"}, args...), "--run-dir", run)...)
	}
	secrets := map[string]string{}
	for _, host := range []string{"web-1", "web-2"} {
		code, out, errs := token("create", "--host", host, "--workload", "shop/web", "--address", "10.0.0.7", "--ttl", "90m")
		if code != 0 {
			t.Fatalf("create: %d %s", code, errs)
		}
		secrets[host] = strings.TrimSpace(out)
	}
	code, out, errs := token("list")
	line := regexp.MustCompile(`(?m)^([0-9a-f]{16}) +web-2 +sidecar +shop/web +unused +ends in 1h\S+ +10\.0\.0\.7 +-$`).FindStringSubmatch(out)
	if code != 0 || line == nil {
		t.Fatalf("list: %d %s\n%s", code, errs, out)
	}
	_, asJSON, _ := token("list", "-o", "json")
	for host, secret := range secrets {
		if strings.Contains(out, secret) || strings.Contains(asJSON, secret) {
			t.Errorf("the list shows the token of %s", host)
		}
	}
	code, out, errs = token("revoke", line[1])
	if code != 0 || out != "join token "+line[1]+" for host web-2 revoked\n" {
		t.Errorf("revoke: %d %s\n%s", code, errs, out)
	}
	if code, _, errs = token("revoke", line[1]); code != exitFailed || !strings.Contains(errs, "token list") {
		t.Errorf("revoking it again: %d %s", code, errs)
	}
	var left []server.TokenStatus
	_, asJSON, _ = token("list", "-o", "json")
	if err := json.Unmarshal([]byte(asJSON), &left); err != nil || len(left) != 1 || left[0].Host != "web-1" {
		t.Errorf("left: %v %s", err, asJSON)
	}
}
