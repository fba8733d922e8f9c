package accept

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/connectivity"
)

// pingTime is how long a peer waits for the answer to a ping, see package server.
const pingTime = 10 * time.Second

// frames are what a peer sends first: the preface, a frame of settings, and DATA frames of
// some sizes.
func frames(sizes ...int) []byte {
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&out, nil)
	_ = f.WriteSettings()
	for i, n := range sizes {
		_ = f.WriteData(1, false, bytes.Repeat([]byte{byte(i)}, n))
	}
	return out.Bytes()
}

// readThrough reads from a gate in pieces of up to most bytes, and returns what came
// before it had to wait for the first time, and a function that waits for the rest.
func readThrough(t *testing.T, text []byte, most int) (g *Gate, before func() int, rest func() []byte) {
	t.Helper()
	peer, conn := net.Pipe()
	g = NewGate(conn)
	got, end := make(chan []byte, len(text)+1), make(chan struct{})
	go func() {
		_, _ = peer.Write(text)
		_ = peer.Close()
	}()
	go func() {
		defer close(end)
		for {
			b := make([]byte, 1+rand.N(most))
			n, err := g.Read(b)
			got <- b[:n]
			if err != nil {
				return
			}
		}
	}()
	var all []byte
	drain := func() {
		for len(got) > 0 {
			all = append(all, <-got...)
		}
	}
	before = func() int {
		synctest.Wait()
		drain()
		return len(all)
	}
	rest = func() []byte {
		<-end
		drain()
		return all
	}
	return g, before, rest
}

// Little is read of a connection that waits, however it is split, and nothing is lost.
func TestGateHoldsLargeRequests(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 7, 9, 100, 16 << 10, 64 << 10} {
		synctest.Test(t, func(t *testing.T) {
			text := frames(100, 16<<10, 16<<10, 100)
			g, before, rest := readThrough(t, text, most)
			head := len(frames(100)) + frameHeader
			if n := before(); n > head+most {
				t.Errorf("reading %d bytes at a time: %d were read while the gate was closed, want %d", most, n, head)
			}
			began := time.Now()
			g.Open()
			if got := rest(); !bytes.Equal(got, text) {
				t.Errorf("%d of %d bytes came through, or others", len(got), len(text))
			}
			if waited := time.Since(began); waited > 0 {
				t.Errorf("waited %s with an open gate", waited)
			}
			_ = g.Close()
		})
	}
}

// Small requests do not wait.
func TestGatePassesSmallRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		text := frames(1000, 1000, 1000, 1000)
		began := time.Now()
		g, _, rest := readThrough(t, text, 100)
		if got := rest(); !bytes.Equal(got, text) || time.Since(began) > 0 {
			t.Errorf("%d of %d bytes came after %s", len(got), len(text), time.Since(began))
		}
		_ = g.Close()
	})
}

// A ping is answered in time, even if nobody opens the gate: a peer sends no more than a
// window before it.
func TestGateLetsPingsThrough(t *testing.T) {
	t.Parallel()
	for _, size := range []int{16 << 10, 5000, 1} {
		synctest.Test(t, func(t *testing.T) {
			var sizes []int
			for n := 0; n < 65535; n += size {
				sizes = append(sizes, min(size, 65535-n))
			}
			text := frames(sizes...)
			began := time.Now()
			g, _, rest := readThrough(t, text, 64<<10)
			if got := rest(); !bytes.Equal(got, text) || time.Since(began) >= pingTime {
				t.Errorf("%d of %d bytes in frames of %d came after %s", len(got), len(text), size, time.Since(began))
			}
			_ = g.Close()
		})
	}
}

// Who reads does not wait at a gate that is closed with its connection.
func TestGateCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, before, rest := readThrough(t, frames(64<<10-1), 16<<10)
		before()
		began := time.Now()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		rest()
		if waited := time.Since(began); waited > 0 {
			t.Errorf("waited %s", waited)
		}
		if _, err := g.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
	})
}

// Connections of authenticated peers have a gate, which is opened by their address.
func TestResume(t *testing.T) {
	t.Parallel()
	f := start(t, func(*Config) {})
	f.becomes(f.grpc(true), connectivity.Ready)
	f.counted(authenticated, 1)
	f.mu.Lock()
	var c *conn
	for _, c = range f.by {
	}
	f.mu.Unlock()
	select {
	case <-c.gate.Opened():
		t.Fatal("the gate is open from the beginning")
	default:
	}
	f.Resume("192.0.2.1:1") // of nobody
	f.Resume(c.at)
	<-c.gate.Opened()
}
