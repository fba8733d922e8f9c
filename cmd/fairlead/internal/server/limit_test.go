package server

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// One connection too many is closed, and one that ends makes room.
func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	inner, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(inner, 1, slog.New(slog.DiscardHandler))
	accepted := make(chan net.Conn, 3)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		var d net.Dialer
		c, err := d.DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial()
	first := <-accepted
	second := dial()
	if err := second.SetReadDeadline(time.Now().Add(envoytest.Patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := second.Read(make([]byte, 1)); err == nil {
		t.Fatalf("%d bytes on a connection too many", n)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	_ = first.Close() // twice counts once
	dial()
	third := <-accepted
	if got := l.open.Load(); got != 1 {
		t.Errorf("%d connections counted", got)
	}
	_ = third.Close()
	_ = l.Close()
	if _, more := <-accepted; more {
		t.Error("the second one was let in")
	}
}

// gRPC has the kernel end a bare connection of which nothing is read for ten
// seconds, whatever --slow-proxy-timeout says.
func TestNoConnectionIsBare(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	inner, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(inner, 1, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = l.Close() })
	var d net.Dialer
	ours, err := d.DialContext(t.Context(), "tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ours.Close() }()
	theirs, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = theirs.Close() }()
	if _, bare := theirs.(*net.TCPConn); bare {
		t.Errorf("a %T is handed out", theirs)
	}
}
