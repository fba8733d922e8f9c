package consultest

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// echo answers with what it gets.
func echo(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.HostPort())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// say writes a word and reads it back.
func say(c net.Conn, patience time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("word")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 4))
	return err
}

func TestProxyCut(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, "127.0.0.1:0", "127.0.0.1:1", echo(t))
	for range 3 { // whichever target comes first
		if err := say(dial(t, p), patience); err != nil {
			t.Fatal(err)
		}
	}
	c := dial(t, p)
	if err := say(c, patience); err != nil {
		t.Fatal(err)
	}
	if p.Open() == 0 || p.Made() != 4 {
		t.Errorf("%d connections are open, %d were made", p.Open(), p.Made())
	}
	p.Cut()
	if err := say(c, patience); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("an old connection is not reset: %v", err)
	}
	if d, err := net.Dial("tcp", p.HostPort()); err == nil {
		if err := say(d, patience); err == nil {
			t.Error("a new connection passes")
		}
		_ = d.Close()
	}
	if p.Open() != 0 {
		t.Errorf("%d connections are open", p.Open())
	}
	p.Heal()
	if err := say(dial(t, p), patience); err != nil {
		t.Error(err)
	}
}

func TestProxyStall(t *testing.T) {
	t.Parallel()
	p := NewProxy(t, "127.0.0.1:0", echo(t))
	c := dial(t, p)
	if err := say(c, patience); err != nil {
		t.Fatal(err)
	}
	p.Stall()
	if err := say(c, 200*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an old connection is not stalled: %v", err)
	}
	d := dial(t, p)
	if err := say(d, 200*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a new connection is not stalled: %v", err)
	}
	p.Heal()
	for _, c := range []net.Conn{c, d} { // what was said meanwhile arrives now
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			t.Error(err)
		}
	}
	p.Reset()
	if err := say(c, patience); err == nil {
		t.Error("a connection that was reset passes")
	}
}
