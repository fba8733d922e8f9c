package bootstrap

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const deadline = envoytest.Patience

func marshalJSON(b *bootstrapv3.Bootstrap) ([]byte, error) { return protojson.Marshal(b) }

// static is a bootstrap as JSON, without anything that it gets from an agent.
func static(tb testing.TB, c Config) []byte {
	tb.Helper()
	b, err := Build(c)
	if err != nil {
		tb.Fatal(err)
	}
	b.DynamicResources = nil
	j, err := marshalJSON(b)
	if err != nil {
		tb.Fatal(err)
	}
	return j
}

func want(tb testing.TB, at netip.AddrPort, path string, status int) error {
	tb.Helper()
	got, body, err := get(tb, http.MethodGet, at, path)
	if err != nil {
		return err
	}
	if got != status {
		return fmt.Errorf("GET %s%s = %d, want %d: %.200s", at, path, got, status, body)
	}
	return nil
}

// getRaw returns the status line of a GET of a path that no client library would send.
func getRaw(tb testing.TB, at netip.AddrPort, path string) string {
	tb.Helper()
	conn, err := (&net.Dialer{}).DialContext(tb.Context(), "tcp", at.String())
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		tb.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", path); err != nil {
		tb.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	return line
}

func post(tb testing.TB, at netip.AddrPort, path string) {
	tb.Helper()
	if got, body, err := get(tb, http.MethodPost, at, path); err != nil || got != http.StatusOK {
		tb.Fatalf("POST %s%s = %d, %v: %s", at, path, got, err, body)
	}
}

// startRaw runs an Envoy whose admin interface is no TCP port.
func startRaw(tb testing.TB, bootstrap []byte) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "bootstrap.json")
	if err := os.WriteFile(path, bootstrap, 0o600); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(envoytest.Binary(tb), "-c", path, "--disable-hot-restart", "--concurrency", "1")
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}
