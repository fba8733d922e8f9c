package accept

import (
	"crypto/tls"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxLate limits the time that the server may take for its own work on a connection, in
// timeouts of an unauthenticated connection.
const maxLate = 6

var errGone = errors.New("the peer closed the connection")

// withAdmission makes handshakes wait for a slot after the complete ClientHello, before the
// first expensive step.
func withAdmission(cfg *tls.Config) *tls.Config {
	cfg = cfg.Clone()
	forClient := cfg.GetConfigForClient
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c, ok := hello.Conn.(*conn)
		if !ok {
			return nil, errors.New("the connection does not come from an acceptor")
		}
		if err := c.awaitSlot(); err != nil {
			return nil, err
		}
		if forClient == nil {
			return nil, nil //nolint:nilnil // it means: as it is
		}
		return forClient(hello)
	}
	return cfg
}

// awaitSlot waits until the handshake may begin. The timeout of the peer does not run
// meanwhile.
func (c *conn) awaitSlot() error {
	a := c.in
	a.mu.Lock()
	known := a.knowsLocked(c.group)
	a.mu.Unlock()
	w := a.admission.enter(c.group, known, c.hungUp)
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
	if !a.admission.forget(w) {
		return errGone // it was closed while it waited, by whomever
	}
	c.begun, c.computes = true, true
	if c.hungUp() || !a.begin(c) {
		return errGone // nothing is computed for nobody
	}
	return nil
}

// releaseSlot releases the slot.
func (c *conn) releaseSlot() {
	if c.computes {
		c.computes = false
		c.in.admission.leave()
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

// begin moves a connection whose handshake begins to another pool, which has a lower limit
// because its connections use more memory; false if it was closed.
func (a *Acceptor) begin(c *conn) bool {
	a.mu.Lock()
	if c.closed || c.pool == nil {
		a.mu.Unlock()
		return false
	}
	c.pool.remove(c)
	victim := a.pools[begunPool].add(c, a.knowsLocked(c.group))
	a.checkFloodLocked()
	a.mu.Unlock()
	c.left.Store(handshakeBytes)
	a.evict(victim)
	return true
}

// Answering counts a call from an address, and returns a function to call after the answer.
// Until then the timeout of its connection does not run, and handshakes that have not begun
// wait for both.
func (a *Acceptor) Answering(address string) (done func()) {
	answered := a.admission.answer()
	a.mu.Lock()
	c := a.by[address]
	a.mu.Unlock()
	if c == nil {
		return answered
	}
	onTime := a.lateFor(c)
	return func() { onTime(); answered() }
}

// lateFor stops the timeout of a connection while the server works, until done is called, for
// maxLate timeouts in total.
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

// expireLocked closes a connection after a time.
func (a *Acceptor) expireLocked(c *conn, after time.Duration) {
	c.until = time.Now().Add(after)
	c.expiry.Reset(after)
}
