package peercred

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/unixsocket"
)

func config(tb testing.TB) Config {
	tb.Helper()
	dir := envoytest.ShortDir(tb)
	return Config{Logger: slog.New(slog.DiscardHandler), Path: filepath.Join(dir, "s"), UID: uint32(os.Geteuid())}
}

func listen(tb testing.TB, c Config) {
	tb.Helper()
	l, err := Listen(tb.Context(), c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "hello")
			_ = conn.Close()
		}
	}()
}

func read(tb testing.TB, path string) string {
	tb.Helper()
	conn, err := (&net.Dialer{Timeout: envoytest.Attempt}).DialContext(tb.Context(), "unix", path)
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	b, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, unix.ECONNRESET) {
		tb.Fatal(err)
	}
	return string(b)
}

func TestOwnUserIsServed(t *testing.T) {
	t.Parallel()
	c := config(t)
	listen(t, c)
	if got := read(t, c.Path); got != "hello" {
		t.Errorf("read %q", got)
	}
	if fi, err := os.Stat(c.Path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("socket is %v, %v", fi, err)
	}
}

// TestOtherUserIsRejected makes a socket for another user, and connects as this one.
func TestOtherUserIsRejected(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "only root can give a socket away and still call")
	}
	c := config(t)
	c.UID = 12345
	listen(t, c)
	if got := read(t, c.Path); got != "" {
		t.Errorf("read %q", got)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	c := config(t)
	listen(t, c)
	if _, err := Listen(t.Context(), c); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("Listen on a socket in use = %v", err)
	}
	// As a killed process leaves it.
	c.Path += "2"
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	// A process that another test starts has a copy of the socket until its program begins.
	envoytest.Eventually(t, envoytest.Patience, func() error {
		conn, err := net.Dial("unix", c.Path)
		if err == nil {
			return errors.Join(errors.New("somebody still listens"), conn.Close())
		}
		return nil
	})
	listen(t, c)
	if got := read(t, c.Path); got != "hello" {
		t.Errorf("read %q", got)
	}
}

func TestLongPath(t *testing.T) {
	t.Parallel()
	c := config(t)
	c.Path = "/" + strings.Repeat("a", unixsocket.MaxPath)
	if _, err := Listen(t.Context(), c); err == nil || !strings.Contains(err.Error(), "shorter run directory") {
		t.Errorf("Listen = %v", err)
	}
}
