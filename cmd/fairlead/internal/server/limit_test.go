package server

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// One connection too many is closed, and one that ends makes room.
func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	inner, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{cfg: Config{MaxConnections: 1, Logger: slog.New(slog.DiscardHandler)}, metrics: prometheus.NewRegistry()}
	l, err := s.limit(inner)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := second.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
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
