package health

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// listenerPeriod is how often the kernel is asked whether a process still listens at the
// address of the probe. That takes microseconds, and the application does not notice it.
const listenerPeriod = 250 * time.Millisecond

// listener asks the kernel for the socket that listens at the address of a probe. A process
// that ends closes its socket, so a killed application is noticed long before its next probe.
// It is only a hint: a probe follows at once.
type listener struct {
	fd  int
	req []byte
}

// Sizes of the kernel's struct nlmsghdr, inet_diag_req_v2 and inet_diag_msg.
const (
	sizeofHeader  = unix.SizeofNlMsghdr
	sizeofRequest = 56
	diagByFamily  = 20 // SOCK_DIAG_BY_FAMILY
)

// newListener returns nil where the kernel cannot be asked, or the probe goes to
// a name and not an address.
func newListener(host string, port int) *listener {
	if host == "" {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil
	}
	l := &listener{fd: fd, req: make([]byte, sizeofHeader+sizeofRequest)}
	native := binary.NativeEndian
	native.PutUint32(l.req[0:], uint32(len(l.req)))
	native.PutUint16(l.req[4:], diagByFamily)
	native.PutUint16(l.req[6:], unix.NLM_F_REQUEST)
	r := l.req[sizeofHeader:]
	r[0], r[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if addr.Is4() || addr.Is4In6() {
		r[0], addr = unix.AF_INET, addr.Unmap()
	}
	native.PutUint32(r[4:], ^uint32(0)) // in any state
	binary.BigEndian.PutUint16(r[8:], uint16(port))
	copy(r[12:], addr.AsSlice())         // its address; the peer's stays zero
	native.PutUint32(r[48:], ^uint32(0)) // no cookie
	native.PutUint32(r[52:], ^uint32(0))
	return l
}

// listening reports whether a process listens. It is false if the kernel gives no clear
// answer; if it never does, nothing changes.
func (l *listener) listening() bool {
	if l == nil || unix.Sendto(l.fd, l.req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return false
	}
	// The kernel has answered before Sendto returns.
	answer := make([]byte, 512)
	n, _, err := unix.Recvfrom(l.fd, answer, unix.MSG_DONTWAIT)
	return err == nil && n >= sizeofHeader && binary.NativeEndian.Uint16(answer[4:]) == diagByFamily
}

func (l *listener) close() {
	if l != nil {
		_ = unix.Close(l.fd)
	}
}
