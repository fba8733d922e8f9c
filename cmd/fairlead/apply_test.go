package main

import (
	"context"
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
)

// Several files are one change to the server, and their names are anybody's
// choice.
func TestApplyTellsOfEveryFile(t *testing.T) {
	t.Parallel()
	dir, from := t.TempDir(), t.TempDir()
	run, err := os.MkdirTemp("", "fl") //nolint:usetesting // the path of a unix socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
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
	s, err := admin.New(t.Context(), admin.Config{
		Logger: slog.New(slog.DiscardHandler), Socket: filepath.Join(run, "admin.sock"),
		Routes: map[string]http.Handler{"GET /v1/rollout/{path...}": admin.JSON(rollout)},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	code, out, errs := cli(t, append([]string{"apply", "--config-dir", dir, "--run-dir", run, "--wait", "5s"}, args...)...)
	if code != 0 || strings.Count(out, "applied to 1/1 proxies") != 2 {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
