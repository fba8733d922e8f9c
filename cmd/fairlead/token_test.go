package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/registry/files"
)

// controlPlane is a server in this process, and where its admin.sock is.
func controlPlane(t *testing.T) (runDir string) {
	t.Helper()
	run, err := os.MkdirTemp("", "fl") //nolint:usetesting // the path of a unix socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
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
