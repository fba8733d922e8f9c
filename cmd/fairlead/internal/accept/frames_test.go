package accept

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// A peer that is not authenticated may send so many frames, however they come. Who
// is may send more.
func TestFramesAreBounded(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Timeout = time.Hour })
	for name, known := range map[string]bool{"unauthenticated": false, "authenticated": true} {
		cfg := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}} // it is the server that is tested
		if known {
			cfg.Certificates = []tls.Certificate{f.cert}
		}
		c := tls.Client(f.dial(), cfg)
		talk(t, c, maxFrames-1) // its ping is the last that it may send
		_ = updates(c, 10*maxFrames)
		if !known {
			ended(t, c)
			continue
		}
		if err := c.SetReadDeadline(time.Now().Add(envoytest.Patience)); err != nil {
			t.Fatal(err)
		}
		ping(t, name, http2.NewFramer(c, c))
	}
}

// talk begins HTTP/2, says so many frames, and then one that is answered.
func talk(t *testing.T, c net.Conn, n int) {
	t.Helper()
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(c, c)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := updates(c, n-1); err != nil {
		t.Fatal(err)
	}
	ping(t, "within the limit", f)
}

func updates(c net.Conn, n int) error {
	f := http2.NewFramer(c, c)
	for range n {
		if err := f.WriteWindowUpdate(0, 1); err != nil {
			return err
		}
	}
	return nil
}

func ping(t *testing.T, when string, f *http2.Framer) {
	t.Helper()
	if err := f.WritePing(false, [8]byte{1}); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatalf("%s: no answer: %v", when, err)
		}
		if p, ok := frame.(*http2.PingFrame); ok && p.IsAck() {
			return
		}
	}
}

// Frames are counted however their bytes are read.
func TestFramesAreCountedInAnyPieces(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	w := http2.NewFramer(&b, nil)
	const frames = 100
	for range frames {
		if err := w.WriteData(1, false, make([]byte, rand.IntN(3)*rand.IntN(5000))); err != nil {
			t.Fatal(err)
		}
	}
	for most := 1; most < b.Len(); most *= 3 {
		f := newFramed(nil, nil)
		for rest := b.Bytes(); len(rest) > 0; {
			n := 1 + rand.IntN(min(most, len(rest)))
			f.read(rest[:n])
			rest = rest[n:]
		}
		if f.count != frames {
			t.Errorf("%d frames of %d were counted in pieces of up to %d bytes", f.count, frames, most)
		}
	}
}

// Many peers that have proved nothing are a crowd until few are left.
func TestFlood(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxConnections, c.Timeout = 1000, time.Hour })
	hello := helloOf(t)
	var all []net.Conn
	for range floodFrom {
		all = append(all, f.dial())
	}
	f.counted(handshaking, floodFrom) // each of which costs a goroutine only
	for _, c := range all[:floodFrom-1] {
		if _, err := c.Write(hello); err != nil {
			t.Fatal(err)
		}
	}
	f.begun(floodFrom - 1)
	if f.Flooded() {
		t.Fatalf("%d are a crowd", floodFrom-1)
	}
	if _, err := all[floodFrom-1].Write(hello); err != nil {
		t.Fatal(err)
	}
	rung(t, f.Acceptor, true)
	for _, c := range all[floodTo:] {
		_ = c.Close()
	}
	f.begun(floodTo)
	if !f.Flooded() {
		t.Fatalf("it ends at %d", floodTo)
	}
	_ = all[0].Close()
	rung(t, f.Acceptor, false)
}

// begun waits until so many handshakes have begun.
func (f *front) begun(want int) {
	f.t.Helper()
	envoytest.Eventually(f.t, envoytest.Patience, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := f.pools[begunPool].size; n != want {
			return fmt.Errorf("%d handshakes have begun, want %d", n, want)
		}
		return nil
	})
}

func rung(t *testing.T, a *Acceptor, crowded bool) {
	t.Helper()
	select {
	case <-a.FloodChanged():
	case <-time.After(envoytest.Patience):
		t.Fatal("nobody is told")
	}
	if a.Flooded() != crowded {
		t.Fatalf("a crowd: %v", a.Flooded())
	}
}
