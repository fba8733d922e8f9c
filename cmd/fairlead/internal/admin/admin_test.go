package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type question struct{ Name string }

func start(t *testing.T, cfg Config) (*Server, *Client) {
	t.Helper()
	dir, err := os.MkdirTemp("", "adm") //nolint:usetesting // the path of a unix socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Address = "127.0.0.1:0"
	cfg.Socket = filepath.Join(dir, "run", "admin.sock")
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s, NewClient(cfg.Socket)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestPublicShowsOnlyCounters(t *testing.T) {
	t.Parallel()
	why := []string{"source consul has not delivered"}
	s, _ := start(t, Config{
		NotReady: func() []string { return why },
		Metrics:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "pilot_xds 1") }),
		Routes:   map[string]http.Handler{"GET /v1/hosts": http.NotFoundHandler()},
	})
	for path, want := range map[string]int{
		"/healthz": 200, "/readyz": 503, "/metrics": 200, "/v1/hosts": 404, "/debug/pprof/": 404, "/debug/pprof/heap": 404,
	} {
		if got, body := get(t, "http://"+s.Address()+path); got != want {
			t.Errorf("%s: %d, want %d: %s", path, got, want, body)
		}
	}
	if _, body := get(t, "http://"+s.Address()+"/readyz"); !strings.Contains(body, why[0]) {
		t.Errorf("/readyz does not say why: %s", body)
	}
}

func TestSocket(t *testing.T) {
	t.Parallel()
	s, c := start(t, Config{Routes: map[string]http.Handler{
		"POST /v1/hello": JSON(func(_ context.Context, _ *http.Request, q question) (string, error) {
			if q.Name == "" {
				return "", errors.New("name is empty: say --host NAME")
			}
			return "hello " + q.Name, nil
		}),
		"GET /v1/gone": JSON(func(context.Context, *http.Request, struct{}) (string, error) { return "", fs.ErrNotExist }),
	}})
	var got string
	if err := c.Do(t.Context(), http.MethodPost, "/v1/hello", question{"a"}, &got); err != nil || got != "hello a" {
		t.Errorf("hello: %q, %v", got, err)
	}
	if err := c.Do(t.Context(), http.MethodPost, "/v1/hello", question{}, &got); err == nil || err.Error() != "name is empty: say --host NAME" {
		t.Errorf("error: %v", err)
	}
	if err := c.Do(t.Context(), http.MethodPost, "/v1/hello", map[string]int{"Nome": 1}, &got); err == nil || !strings.Contains(err.Error(), "Nome") {
		t.Errorf("unknown key: %v", err)
	}
	if err := c.Do(t.Context(), http.MethodGet, "/debug/pprof/heap?debug=1", nil, nil); err != nil {
		t.Errorf("pprof on the socket: %v", err)
	}
	if fi, err := os.Stat(s.cfg.Socket); err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("socket: %v %v", fi.Mode(), err)
	}
	if fi, err := os.Stat(filepath.Dir(s.cfg.Socket)); err != nil || fi.Mode().Perm()&0o007 != 0 {
		t.Errorf("runtime directory: %v %v", fi.Mode(), err)
	}
	if _, err := New(t.Context(), Config{Logger: s.cfg.Logger, Socket: s.cfg.Socket}); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("second server on one socket: %v", err)
	}
}

func TestErrorsNameTheFlag(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	if _, err := New(t.Context(), Config{Logger: log, Socket: "/" + strings.Repeat("x", 200) + "/admin.sock"}); err == nil || !strings.Contains(err.Error(), "--run-dir") {
		t.Errorf("long path: %v", err)
	}
	err := NewClient("/nonexistent/admin.sock").Do(t.Context(), http.MethodGet, "/", nil, nil)
	if err == nil || !strings.Contains(err.Error(), "is the process running") || strings.Contains(err.Error(), "http://") {
		t.Errorf("nobody there: %v", err)
	}
}

// TestOtherProcess: people mix up the runtime directories of server and agent.
func TestOtherProcess(t *testing.T) {
	t.Parallel()
	_, client := start(t, Config{})
	err := client.Do(t.Context(), http.MethodGet, "/v1/proxies", nil, nil)
	if err == nil || !strings.Contains(err.Error(), "another kind of process") || !strings.Contains(err.Error(), "--run-dir") {
		t.Errorf("asking a process that does not know the request: %v", err)
	}
}
