package accept

import (
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// gateBytes is what is read of a new connection before [Gate.Open], in DATA frames.
const gateBytes = 4 << 10

// gatePauses are the times after which a gate that is not opened lets one more frame pass,
// and everything behind the last one. HTTP/2 lets a peer send 64 KiB before anybody asks for
// more, which are four full frames. Behind those there may be a ping, and the answer to a
// ping is due after 10 s.
func gatePauses() []time.Duration {
	return []time.Duration{4 * time.Second, 2 * time.Second, time.Second, time.Second}
}

// Gate is an HTTP/2 connection to a server, of which little is read until somebody has time
// for the rest. When a fleet reconnects at once, what most peers send waits in the kernel or
// at the peers, and not in buffers of the transport. Small requests do not wait.
type Gate struct {
	net.Conn
	opened chan struct{} // closed when it is open
	once   sync.Once

	// Owned by whoever reads, one at a time.
	headers headers
	data    int             // bytes in DATA frames
	pauses  []time.Duration // to come
	passed  bool            // it was found open
}

// NewGate makes a gate that is not open, for a connection of which nothing was read.
func NewGate(c net.Conn) *Gate {
	return &Gate{Conn: c, opened: make(chan struct{}), pauses: gatePauses(), headers: headers{size: frameHeader, body: len(http2.ClientPreface)}}
}

// Open lets everything be read from now on.
func (g *Gate) Open() { g.once.Do(func() { close(g.opened) }) }

// Opened returns a channel that is closed when the gate is open.
func (g *Gate) Opened() <-chan struct{} { return g.opened }

// Close implements [net.Conn].
func (g *Gate) Close() error {
	g.Open()
	return g.Conn.Close() //nolint:wrapcheck // it is the connection's
}

// Read implements [net.Conn]. It holds the header of a frame back, and not only what
// follows it: the transport takes memory for a frame when it has the header.
func (g *Gate) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if !g.passed && g.large(b[:n]) {
		g.pause()
	}
	return n, err //nolint:wrapcheck // it is the connection's
}

// large reports whether b has the header of a DATA frame with which there are more than
// gateBytes.
func (g *Gate) large(b []byte) bool {
	found := false
	for {
		var header []byte
		if header, b = g.headers.next(b); header == nil {
			return found
		}
		g.headers.body = int(header[0])<<16 | int(header[1])<<8 | int(header[2])
		if http2.FrameType(header[3]) == http2.FrameData {
			g.data += g.headers.body
			found = found || g.data > gateBytes
		}
	}
}

// pause waits until the gate is open, but not for long.
func (g *Gate) pause() {
	timer := time.NewTimer(g.pauses[0])
	defer timer.Stop()
	select {
	case <-g.opened:
		g.passed = true
	case <-timer.C:
		g.pauses = g.pauses[1:]
		g.passed = len(g.pauses) == 0
	}
}
