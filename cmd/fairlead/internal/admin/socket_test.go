package admin

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// asks is the socket that this program asks instead of running tests.
const asks = "FAIRLEAD_TEST_ASKS"

func TestMain(m *testing.M) {
	if socket := os.Getenv(asks); socket != "" {
		var out question
		if err := NewClient(socket).Do(context.Background(), http.MethodGet, "/v1/name", nil, &out); err != nil {
			_, _ = os.Stdout.WriteString("refused: " + err.Error())
		} else {
			_, _ = os.Stdout.WriteString("answered: " + out.Name)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// TestAnEnvoyMayNotAdminister has a process ask that was started as agents start
// Envoys, also by another path, and one that was not.
func TestAnEnvoyMayNotAdminister(t *testing.T) {
	t.Parallel()
	s, _ := start(t, Config{Routes: map[string]http.Handler{
		"GET /v1/name": JSON(func(context.Context, *http.Request, struct{}) (question, error) { return question{"n"}, nil }),
	}})
	link := filepath.Join(filepath.Dir(s.cfg.Socket), "innocent")
	if err := os.Symlink(s.cfg.Socket, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		socket, want string
		args         []string
	}{
		{s.cfg.Socket, "answered: n", nil},
		{s.cfg.Socket, "answered: n", []string{"-c", "x"}},
		{s.cfg.Socket, "refused: ", []string{"-c", "/run/a/envoy.json", "--disable-hot-restart", "--drain-time-s", "45"}},
		{link, "refused: ", []string{"-c", "/run/a/envoy.json", "--disable-hot-restart"}},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], c.args...)
		cmd.Env = append(os.Environ(), asks+"="+c.socket)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), c.want) {
			t.Errorf("%q at %s: %q, %v; want %q", c.args, c.socket, out, err, c.want)
		}
	}
}
