package accept

import (
	"crypto/tls"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxLate is how many times the timeout of an unauthenticated connection the server may
// take for what is its own to do.
const maxLate = 6

var errGone = errors.New("the peer has gone")

// inTurn makes handshakes wait for their turn between the ClientHello, when all of
// it is there, and the first thing that costs something.
func inTurn(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	forClient := cfg.GetConfigForClient
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c, ok := hello.Conn.(*conn)
		if !ok {
			return nil, errors.New("the connection does not come from an acceptor")
		}
		if err := c.takeTurn(); err != nil {
			return nil, err
		}
		if forClient == nil {
			return nil, nil //nolint:nilnil // it means: as it is
		}
		return forClient(hello)
	}
	return cfg
}

// takeTurn waits until the handshake may begin. That is not the peer's time.
func (c *conn) takeTurn() error {
	a := c.in
	a.mu.Lock()
	known := a.knowsLocked(c.group)
	a.mu.Unlock()
	w := a.turns.enter(c.group, known, c.hungUp)
	select {
	case <-w.ready: // at once
	default:
		done := a.lateFor(c)
		select {
		case <-w.ready:
		case <-c.gone:
		}
		done()
	}
	if !a.turns.forget(w) {
		return errGone // it was closed while it waited, by whomever
	}
	c.begun, c.computes = true, true
	if c.hungUp() || !a.begin(c) {
		return errGone // nothing is computed for nobody
	}
	return nil
}

// rest gives the turn back.
func (c *conn) rest() {
	if c.computes {
		c.computes = false
		c.in.turns.leave()
	}
}

// hungUp reports whether the peer has closed the connection, or its side of it.
func (c *conn) hungUp() (yes bool) {
	s, ok := c.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := unix.Poll(p, 0)
		yes = err == nil && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return yes || err != nil
}

// begin moves a connection whose handshake begins to those of which fewer may be
// there, since each has more of the server; false if it has been closed.
func (a *Acceptor) begin(c *conn) bool {
	a.mu.Lock()
	if c.closed || c.pool == nil {
		a.mu.Unlock()
		return false
	}
	c.pool.remove(c)
	victim := a.pools[begunPool].add(c, a.knowsLocked(c.group))
	a.crowdLocked()
	a.mu.Unlock()
	c.left.Store(handshakeBytes)
	a.evict(victim)
	return true
}

// Answering is told that a call from an address has been received, and gives what is
// to be called when its answer is there. Until then its connection waits for
// the server, and handshakes that have not begun wait for both.
func (a *Acceptor) Answering(address string) (done func()) {
	answered := a.turns.answer()
	a.mu.Lock()
	c := a.by[address]
	a.mu.Unlock()
	if c == nil {
		return answered
	}
	onTime := a.lateFor(c)
	return func() { onTime(); answered() }
}

// lateFor stops the clock of a connection for what the server has to do, until done
// is called. It may take maxLate timeouts for all of that.
func (a *Acceptor) lateFor(c *conn) (done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.closed || c.stage == authenticated {
		return func() {}
	}
	if c.late++; c.late == 1 {
		c.owed = time.Until(c.until)
		a.expireLocked(c, c.spare)
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if c.late--; c.late == 0 && !c.closed && c.stage != authenticated {
			c.spare = time.Until(c.until)
			a.expireLocked(c, c.owed)
		}
	}
}

// expireLocked ends a connection after a time.
func (a *Acceptor) expireLocked(c *conn, after time.Duration) {
	c.until = time.Now().Add(after)
	c.expiry.Reset(after)
}
