package faults

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestSocketsRemoved removes all sockets of the server and of a host, as a cleaner of temporary
// files does. Requests go on; the Envoy that is killed after that comes back; the commands of
// people work; and the status says what only Envoy can make again.
func TestSocketsRemoved(t *testing.T) {
	s := newShop(t)
	s.start()
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 50)
	host := s.RunDir("orders-v1")
	for _, dir := range []string{s.RunDir("server"), host} {
		s.removeSockets(dir)
	}
	for _, made := range []string{
		filepath.Join(s.RunDir("server"), "admin.sock"), filepath.Join(host, "admin.sock"),
		filepath.Join(host, "xds.sock"), filepath.Join(host, "sds.sock"),
	} {
		envoytest.Eventually(t, envoytest.Patience, func() error {
			_, err := os.Lstat(made)
			return err
		})
	}
	if _, err := s.CLI("host", "list", "--run-dir", s.RunDir("server")); err != nil {
		t.Error(err)
	}
	// Envoy's admin socket is away: it serves, and the status says both.
	ready, err := s.Admin("orders-v1", "/readyz")
	if err != nil || !strings.HasPrefix(ready, "ready\n") || !strings.Contains(ready, "Envoy's admin socket was removed") {
		t.Errorf("/readyz of the agent: %v %s", err, ready)
	}
	load.Wait(t, 100) // two periods of its probe
	s.awaitHealth("orders-v1", "healthy")
	unharmed(t, load)

	// The bootstrap goes, too.
	pid := s.EnvoyPID("orders-v1")
	if err := errors.Join(os.Remove(filepath.Join(host, "envoy.json")), syscall.Kill(pid, syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		p := s.EnvoyPID("orders-v1")
		if p == 0 || p == pid {
			return fmt.Errorf("process %d, was %d", p, pid)
		}
		_, err := s.EnvoyAdmin("orders-v1", "/ready")
		return err
	})
	s.awaitLive()
	s.awaitAnswerOf("orders-v1")
	if ready, err := s.Admin("orders-v1", "/readyz"); err != nil || ready != "ready\n" {
		t.Errorf("/readyz of the agent: %v %s", err, ready)
	}
	for _, p := range []string{s.Server.Log(), s.agents["orders-v1"].Log()} {
		if !strings.Contains(p, "socket was removed; made again") {
			t.Errorf("the log does not say what happened:\n%s", p)
		}
	}
	s.noRejections()
	for _, h := range s.names() {
		if b, err := os.ReadFile(filepath.Join(s.RunDir(h), "envoy.log")); err != nil || strings.Contains(string(b), "deprecated") {
			t.Errorf("Envoy's log: %v\n%s", err, b)
		}
	}
}

func (s *shop) removeSockets(dir string) {
	s.t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() != fs.ModeSocket {
			return err
		}
		n++
		return os.Remove(path)
	})
	if err != nil || n == 0 {
		s.t.Fatalf("removing %d sockets in %s: %v", n, dir, err)
	}
}
