package consultest

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is the network between a client and servers: it passes bytes on until it
// is told to lose them. It ends with its test.
type Proxy struct {
	targets []string
	l       net.Listener
	wg      sync.WaitGroup

	mu      sync.Mutex        // guards all following fields
	conns   map[net.Conn]bool // true for those of clients
	refuse  bool
	stalled chan struct{} // open while nothing passes; nil where all does
	next    int           // the target that comes first for the next connection
	made    int
	closed  bool
}

// NewProxy listens on an address and passes each connection to the first target
// that takes it, in turns.
func NewProxy(tb testing.TB, address string, targets ...string) *Proxy {
	tb.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{targets: targets, l: l, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// HostPort is where the proxy listens.
func (p *Proxy) HostPort() string { return p.l.Addr().String() }

// Open is how many connections of clients are open.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, client := range p.conns {
		if client {
			n++
		}
	}
	return n
}

// Made is how many connections clients have made so far.
func (p *Proxy) Made() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made
}

// Cut resets all connections and every new one, until [Proxy.Heal].
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = true
	p.reset()
}

// Stall lets nothing pass: connections stay open and new ones are taken, but
// nobody hears anything, as when a network loses every packet, until [Proxy.Heal].
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled == nil {
		p.stalled = make(chan struct{})
	}
}

// Heal lets everything pass again; what was held up by [Proxy.Stall] goes on.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = false
	if p.stalled != nil {
		close(p.stalled)
		p.stalled = nil
	}
}

// Reset resets all connections; new ones pass.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reset()
}

// reset needs mu.
func (p *Proxy) reset() {
	for c := range p.conns {
		end(c)
	}
	clear(p.conns)
}

// end closes with a reset, as a peer that knows of no connection answers.
func end(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

func (p *Proxy) close() {
	_ = p.l.Close()
	p.Heal()
	p.mu.Lock()
	p.closed = true
	p.reset()
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		if !p.keep(c, true) {
			continue
		}
		p.wg.Go(func() { p.serve(c) })
	}
}

// keep remembers a connection, or resets it where none may be.
func (p *Proxy) keep(c net.Conn, client bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.closed {
		end(c)
		return false
	}
	p.conns[c] = client
	if client {
		p.made++
	}
	return true
}

func (p *Proxy) forget(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) serve(down net.Conn) {
	defer p.forget(down)
	defer end(down)
	p.wait()
	up, err := p.dial()
	if err != nil || !p.keep(up, false) {
		return
	}
	defer p.forget(up)
	defer up.Close()
	var both sync.WaitGroup
	both.Go(func() { p.pass(up, down) })
	both.Go(func() { p.pass(down, up) })
	both.Wait()
}

func (p *Proxy) dial() (net.Conn, error) {
	p.mu.Lock()
	first := p.next
	p.next++
	p.mu.Unlock()
	const gone = time.Second // servers of a cluster that was cut off do not answer at all
	var errs error
	for i := range p.targets {
		d := net.Dialer{Timeout: gone}
		c, err := d.Dial("tcp", p.targets[(first+i)%len(p.targets)])
		if err == nil {
			return c, nil
		}
		errs = errors.Join(errs, err)
	}
	return nil, errs
}

// pass copies until the source ends, and then ends the destination.
func (p *Proxy) pass(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.wait()
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				end(from)
				return
			}
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

// wait holds up while nothing passes.
func (p *Proxy) wait() {
	p.mu.Lock()
	stalled := p.stalled
	p.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
}
