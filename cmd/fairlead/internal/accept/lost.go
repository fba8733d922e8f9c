package accept

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Times after which the connection of a peer without power, or behind a cut, is closed. The
// kernel of a peer answers, so one that is busy or does not read is not lost.
const (
	lostIdle     = 3 * time.Second
	lostInterval = time.Second
	lostProbes   = 3
	lostAfter    = lostIdle + lostProbes*lostInterval
	// lostEvery is how often connections with data under way are looked at, for as long after
	// they were written to as that.
	lostEvery  = time.Second
	lostWithin = 2*lostAfter + 3*lostEvery
)

// keepAlive has the kernel find out on an idle connection that the peer is lost: it asks after
// three seconds without a packet, every second, and closes the connection when three questions are
// unanswered. It costs no time of this process. Where data is under way the kernel does not ask;
// there closeLost looks.
func keepAlive(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: lostIdle, Interval: lostInterval, Count: lostProbes}) // else gRPC's pings find out
	}
}

// closeLost closes connections of authenticated peers to which data is under way and of which
// nothing came for lostAfter, until ctx ends. The kernel's own limit (TCP_USER_TIMEOUT) would
// also close those of peers that are there and do not read.
func (a *Acceptor) closeLost(ctx context.Context) {
	for sleep(ctx, lostEvery) {
		for _, c := range a.writtenSince(time.Now().Add(-lostWithin)) {
			if lost(c.Conn) {
				a.cfg.Logger.InfoContext(ctx, "connection closed: the peer does not answer", "peer", c.at)
				_ = c.Close() // whatever it says, it is closed
			}
		}
	}
}

// writtenSince are the authenticated connections that were written to since a time.
func (a *Acceptor) writtenSince(t time.Time) []*conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*conn
	for _, c := range a.by {
		if c.stage == authenticated && c.wrote.Load() >= t.UnixNano() {
			out = append(out, c)
		}
	}
	return out
}

// lost reports whether the kernel sends data again and again, and has heard nothing of the peer
// for lostAfter.
func lost(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	_ = raw.Control(func(fd uintptr) { // an error: it is closed already
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err == nil && info.Unacked > 0 && info.Retransmits > 0 && time.Duration(info.Last_ack_recv)*time.Millisecond >= lostAfter
	})
	return gone
}
