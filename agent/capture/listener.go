package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoDiagnosis means that the kernel does not say who listens: it has no tcp_diag.
var ErrNoDiagnosis = errors.New("the kernel does not say whose a listening socket is (module tcp_diag)")

// Sizes and numbers of linux/inet_diag.h.
const (
	sockDiagByFamily = 20
	stateListen      = 10
	sizeDiagRequest  = 56
	sizeDiagMessage  = 72
	offsetDiagID     = 4 // a port in network byte order, another one, then addresses of 16 bytes
	offsetDiagUser   = 64
	diagOnly6        = 11 // an attribute
)

// Listener is the user who listens at a TCP port for connections to 127.0.0.1, which is where
// captured connections of this host go; false if nobody does. The kernel lets no second user listen
// there.
func (k Kernel) Listener(port uint16) (uid uint32, ok bool, err error) {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, &netlink.Config{NetNS: k.NetNS})
	if err != nil {
		return 0, false, listenerError(err)
	}
	defer func() { _ = c.Close() }()
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, sizeDiagRequest)
		request[0], request[1] = family, unix.IPPROTO_TCP
		binary.NativeEndian.PutUint32(request[4:], 1<<stateListen)
		binary.BigEndian.PutUint16(request[8:], port)
		msgs, err := c.Execute(netlink.Message{
			Header: netlink.Header{Type: sockDiagByFamily, Flags: netlink.Request | netlink.Dump}, Data: request,
		})
		if err = listenerError(err); family == unix.AF_INET6 && errors.Is(err, ErrNoDiagnosis) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return 0, false, err
		}
		for _, m := range msgs {
			if uid, ok := listenerOf(m.Data, port); ok {
				return uid, true, nil
			}
		}
	}
	return 0, false, nil
}

// listenerOf reads an answer; false if the socket does not get connections to 127.0.0.1.
func listenerOf(b []byte, port uint16) (uid uint32, ok bool) {
	if len(b) < sizeDiagMessage || b[1] != stateListen || binary.BigEndian.Uint16(b[offsetDiagID:]) != port {
		return 0, false
	}
	at, size := b[offsetDiagID+4:], 4
	if b[0] == unix.AF_INET6 {
		size = 16
	}
	address, _ := netip.AddrFromSlice(at[:size])
	if address = address.Unmap(); address != netip.AddrFrom4([4]byte{127, 0, 0, 1}) && !address.IsUnspecified() {
		return 0, false
	}
	if address.Is6() {
		ad, err := netlink.NewAttributeDecoder(b[sizeDiagMessage:])
		if err != nil {
			return 0, false
		}
		for ad.Next() {
			if ad.Type() == diagOnly6 && ad.Uint8() == 1 {
				return 0, false
			}
		}
	}
	return binary.NativeEndian.Uint32(b[offsetDiagUser:]), true
}

func listenerError(err error) error {
	if err == nil {
		return nil
	}
	for _, errno := range []syscall.Errno{syscall.ENOENT, syscall.EPROTONOSUPPORT, syscall.EAFNOSUPPORT, syscall.EOPNOTSUPP} {
		if errors.Is(err, errno) {
			return fmt.Errorf("%w: %w", ErrNoDiagnosis, err)
		}
	}
	return fmt.Errorf("asking the kernel who listens: %w", err)
}
