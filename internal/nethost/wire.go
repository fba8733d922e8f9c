package nethost

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Wire counts the TCP packets from and to a port that an interface of the host sends and receives,
// until the test ends.
func (h *Host) Wire(device string, port uint16) func() int64 {
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
				case err == nil && isTCP(b[:n], port):
					count.Add(1)
				}
			}
		})
	})
	return count.Load
}

// isTCP reports whether an IP packet carries TCP from or to a port.
func isTCP(b []byte, port uint16) bool {
	const header4, header6, ports = 20, 40, 4
	switch {
	case len(b) >= header4 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_TCP:
		b = b[min(int(b[0]&0xf)*4, len(b)):]
	case len(b) >= header6 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		b = b[header6:]
	default:
		return false
	}
	return len(b) >= ports && (binary.BigEndian.Uint16(b) == port || binary.BigEndian.Uint16(b[2:]) == port)
}
