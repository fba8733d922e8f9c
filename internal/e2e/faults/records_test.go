package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// TestHostRecordsLost takes from the server who may have which identity, and keeps
// the authority. No request fails; an export brings all hosts back, and without one
// their certificates do, but a host's that is listed as removed.
func TestHostRecordsLost(t *testing.T) {
	s := newShop(t)
	s.start()
	run := s.RunDir("server")
	export := filepath.Join(s.Dir, "hosts.json")
	if out, err := s.CLI("host", "export", "--out", export, "--run-dir", run); err != nil || !strings.Contains(out, "4 hosts") {
		t.Fatalf("export: %q, %v", out, err)
	}
	lose := func(args ...string) {
		t.Helper()
		s.Server.Stop()
		for _, dir := range []string{"hosts", "tokens"} {
			if err := os.RemoveAll(filepath.Join(s.StateDir("server"), "pki", dir)); err != nil {
				t.Fatal(err)
			}
		}
		s.StartServer(args...)
	}
	load := func() (check func()) {
		kept, fresh := s.client.StartLoad(t, s.url, 100), s.client.Fresh().StartLoad(t, s.url, 100)
		return func() {
			t.Helper()
			for _, l := range []*meshtest.Load{kept, fresh} {
				l.Wait(t, 100)
				unharmed(t, l)
			}
		}
	}

	check := load()
	lose()
	s.awaitRefused("web")
	if out, err := s.CLI("host", "import", export, "--run-dir", run); err != nil || !strings.Contains(out, "4 hosts imported") {
		t.Fatalf("import: %q, %v", out, err)
	}
	s.awaitLive()
	if out, err := s.CLI("host", "import", export, "--run-dir", run); err != nil || !strings.Contains(out, "0 hosts imported, 0 replaced, 4 were") {
		t.Errorf("import again: %q, %v", out, err)
	}
	check()

	check = load()
	removed := filepath.Join(s.Dir, "removed")
	if err := os.WriteFile(removed, []byte("# last week\norders-v2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lose("--readopt-until", time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "--readopt-removed", removed)
	s.AwaitLive("web", "orders-v1", "inventory")
	s.awaitRefused("orders-v2")
	out, err := s.CLI("host", "list", "--run-dir", run)
	if err != nil || strings.Count(out, "by certificate") != 3 || strings.Contains(out, "orders-v2") {
		t.Errorf("host list: %v\n%s", err, out)
	}
	check()
}

// awaitRefused waits until the server has refused a host.
func (s *shop) awaitRefused(host string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		out, err := s.CLI("proxy-status", "--run-dir", s.RunDir("server"))
		_, list, ok := strings.Cut(out, "REFUSED")
		if !ok || !strings.Contains(list, host) {
			return fmt.Errorf("%s was not refused: %w\n%s", host, errors.Join(err, errors.New("not listed")), out)
		}
		return nil
	})
}
