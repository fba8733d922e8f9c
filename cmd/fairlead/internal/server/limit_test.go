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

// Of one identity there are only so many connections, and one that ends makes room;
// one that is hung up on is closed.
func TestConnectionsOfOneHost(t *testing.T) {
	t.Parallel()
	l := &limited{by: map[string]*counted{}, of: map[string]int{}}
	open := func() *counted {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
		l.open.Add(1)
		return l.add(numbered{ours, l.open.Load()})
	}
	a, b, c := open(), open(), open()
	if !l.prove(a, "host", 2) || !l.prove(b, "host", 2) || l.prove(c, "host", 2) {
		t.Fatal("not two of a host's connections are let in")
	}
	if !l.prove(c, "other", 2) {
		t.Error("another host's is not let in")
	}
	_ = a.Close()
	_ = a.Close() // twice counts once
	d := open()
	if !l.prove(d, "host", 2) {
		t.Error("one that ended makes no room")
	}
	l.hangup(d.at)
	if _, err := d.Write([]byte("x")); err == nil {
		t.Error("it is written to after it was hung up on")
	}
	l.hangup("nobody's")
	_, _ = b.Close(), c.Close()
	if len(l.of)+len(l.by) != 0 || l.open.Load() != 0 {
		t.Errorf("%v, %v and %d connections are left", l.of, l.by, l.open.Load())
	}
}

// numbered is a connection with an address of its own.
type numbered struct {
	net.Conn
	n int64
}

func (n numbered) RemoteAddr() net.Addr { return &net.TCPAddr{Port: int(n.n)} }

// gRPC has the kernel end a bare connection of which nothing is read for ten
// seconds, whatever --slow-proxy-timeout says.
func TestNoConnectionIsBare(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	inner, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := (&limited{most: 1}).beside(inner)
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
