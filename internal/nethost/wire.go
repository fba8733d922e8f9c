package nethost

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Wire counts the TCP packets from and to a port that an interface of the host sends and receives,
// until the test ends.
func (h *Host) Wire(device string, port uint16) func() int64 {
	h.tb.Helper()
	return h.wire(device, func(b []byte) bool { return isTCP(b, port) })
}

// WireTo is Wire for all packets from and to addresses.
func (h *Host) WireTo(device string, ranges ...netip.Prefix) func() int64 {
	h.tb.Helper()
	return h.wire(device, func(b []byte) bool { return isOf(b, ranges) })
}

// WireWith is Wire for the packets whose TCP payload is such as has says. It sees the beginning of each.
func (h *Host) WireWith(device string, has func(payload []byte) bool) func() int64 {
	h.tb.Helper()
	return h.wire(device, func(b []byte) bool {
		const offset, least = 12, 20
		segment := tcpOf(b)
		if len(segment) < least {
			return false
		}
		header := int(segment[offset]>>4) * 4
		return len(segment) > header && has(segment[header:])
	})
}

func (h *Host) wire(device string, counts func(packet []byte) bool) func() int64 {
	h.tb.Helper()
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	fd := -1
	var err error
	h.As(0, func() {
		var ifc *net.Interface
		if ifc, err = net.InterfaceByName(device); err != nil {
			return
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return
		}
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20), unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifc.Index}))
	})
	if err != nil {
		h.tb.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "packets of "+device)
	raw, err := f.SyscallConn()
	if err != nil {
		h.tb.Fatal(err)
	}
	var count atomic.Int64
	var group sync.WaitGroup
	h.tb.Cleanup(func() { _ = f.SetReadDeadline(time.Unix(1, 0)); group.Wait(); _ = f.Close() })
	group.Go(func() {
		b := make([]byte, 128)
		_ = raw.Read(func(fd uintptr) bool {
			for {
				n, _, err := unix.Recvfrom(int(fd), b, 0)
				switch {
				case errors.Is(err, unix.EAGAIN):
					return false
				case err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENETDOWN): // an interface may come up later
					return true
				case err == nil && counts(b[:n]):
					count.Add(1)
				}
			}
		})
	})
	return count.Load
}

// isOf reports whether an IP packet is from or to an address of ranges.
func isOf(b []byte, ranges []netip.Prefix) bool {
	const header4, header6 = 20, 40
	var ends []netip.Addr
	switch {
	case len(b) >= header4 && b[0]>>4 == 4:
		ends = []netip.Addr{netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))}
	case len(b) >= header6 && b[0]>>4 == 6:
		ends = []netip.Addr{netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))}
	}
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return slices.ContainsFunc(ends, p.Contains) })
}

// isTCP reports whether an IP packet carries TCP from or to a port.
func isTCP(b []byte, port uint16) bool {
	const ports = 4
	b = tcpOf(b)
	return len(b) >= ports && (binary.BigEndian.Uint16(b) == port || binary.BigEndian.Uint16(b[2:]) == port)
}

// tcpOf is the TCP segment in an IP packet; or nil.
func tcpOf(b []byte) []byte {
	const header4, header6 = 20, 40
	switch {
	case len(b) >= header4 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_TCP:
		return b[min(int(b[0]&0xf)*4, len(b)):]
	case len(b) >= header6 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		return b[header6:]
	default:
		return nil
	}
}
