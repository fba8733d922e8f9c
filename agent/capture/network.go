package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// beyond is the first address after a range, or nil if there is none.
func beyond(p netip.Prefix) []byte {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	if next := last.Next(); next.IsValid() {
		return next.AsSlice()
	}
	return nil
}

// passthrough6 is where Envoy's connections to an application come from, over IPv6; its twin
// 127.0.0.6 is an address of every host.
func passthrough6() netip.Prefix { return netip.MustParsePrefix("::6/128") }

// routeMetric is the mark of our routes: nobody else's have it. It is more than that of a usual
// route, so that another route to the same range wins.
const routeMetric = 24240

// route is a route of the kernel.
type route struct {
	to     netip.Prefix
	iface  uint32
	metric uint32
	table  uint32
}

// Network is what a table needs beside it: a route of each range to the loopback interface, and
// Envoy's address. The kernel looks for a route before nftables sees a packet: a host without a
// default route, or with its network down, could not call a virtual address otherwise.
type Network struct {
	// Skipped says in words what the host could not get, because it has no IPv6.
	Skipped []string
}

// Prepare adds what is missing of routes and addresses. It fails if another route leads to a part
// of a range: the range is in use.
func (k Kernel) Prepare(r *Ruleset) (Network, error) {
	var n Network
	c, lo, err := k.rtnetlink()
	if err != nil {
		return n, err
	}
	defer func() { _ = c.Close() }()
	routes, err := listRoutes(c)
	if err != nil {
		return n, err
	}
	if err := conflictingRoute(routes, r.ranges, lo); err != nil {
		return n, err
	}
	skip := func(what string, err error) error {
		if withoutIPv6(err) {
			n.Skipped = append(n.Skipped, fmt.Sprintf("%s: %v: IPv6 is off on this host", what, err))
			return nil
		}
		return fmt.Errorf("adding %s: %w", what, explainErrno(err))
	}
	for _, p := range r.ranges {
		err := changeRoute(c, unix.RTM_NEWROUTE, netlink.Create|netlink.Replace, p, lo)
		if err != nil && p.Addr().Is6() {
			err = skip(fmt.Sprintf("route %s to lo", p), err)
		}
		if err != nil {
			return n, fmt.Errorf("adding the route %s to lo: %w", p, explainErrno(err))
		}
	}
	if err := changeAddress(c, unix.RTM_NEWADDR, netlink.Create|netlink.Replace, passthrough6(), lo); err != nil {
		return n, skip("address ::6 of lo", err)
	}
	return n, nil
}

// withoutIPv6 reports whether an IPv6 route or address was refused because IPv6 is off. Such hosts
// have no twin to capture.
func withoutIPv6(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EPERM, syscall.EOPNOTSUPP, syscall.EAFNOSUPPORT, syscall.ENODEV, syscall.EINVAL} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// Restore adds what is missing of what Prepare added, and says what that was. It does not list
// the routes of the host, which may be a million.
func (k Kernel) Restore(r *Ruleset) (added []string, err error) {
	c, lo, err := k.rtnetlink()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	var errs []error
	note := func(what string, v6 bool, err error) {
		switch {
		case err == nil:
			added = append(added, what)
		case errors.Is(err, syscall.EEXIST), v6 && withoutIPv6(err):
		default:
			errs = append(errs, fmt.Errorf("adding %s: %w", what, explainErrno(err)))
		}
	}
	const missing = netlink.Create | netlink.Excl
	for _, p := range r.ranges {
		note(fmt.Sprintf("route %s to lo", p), p.Addr().Is6(), changeRoute(c, unix.RTM_NEWROUTE, missing, p, lo))
	}
	note("address ::6 of lo", true, changeAddress(c, unix.RTM_NEWADDR, missing, passthrough6(), lo))
	return added, errors.Join(errs...)
}

// Withdraw removes what Prepare added, of any settings.
func (k Kernel) Withdraw() error {
	c, lo, err := k.rtnetlink()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	routes, err := listRoutes(c)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range routes {
		if r.metric != routeMetric || r.iface != lo {
			continue
		}
		if err := changeRoute(c, unix.RTM_DELROUTE, 0, r.to, lo); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("removing the route %s: %w", r.to, explainErrno(err)))
		}
	}
	err = changeAddress(c, unix.RTM_DELADDR, 0, passthrough6(), lo)
	if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.EAFNOSUPPORT) && !errors.Is(err, syscall.EOPNOTSUPP) {
		errs = append(errs, fmt.Errorf("removing address ::6 of lo: %w", explainErrno(err)))
	}
	return errors.Join(errs...)
}

// conflictingRoute finds a route of somebody else that leads to a part of a range. A default
// route, or one to a network around the range, is no conflict: ours is the longer.
func conflictingRoute(routes []route, ranges []netip.Prefix, lo uint32) error {
	for _, have := range routes {
		if have.iface == lo || have.table != unix.RT_TABLE_MAIN && have.table != unix.RT_TABLE_LOCAL {
			continue
		}
		for _, want := range ranges {
			if want.Overlaps(have.to) && have.to.Bits() >= want.Bits() {
				return fmt.Errorf("virtual-ranges: %s: the host has a route to %s: the range is in use: choose another one, the same for the whole mesh", want, have.to)
			}
		}
	}
	return nil
}

// rtnetlink connects, and returns the index of the loopback interface.
func (k Kernel) rtnetlink() (*netlink.Conn, uint32, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: k.NetNS})
	if err != nil {
		return nil, 0, fmt.Errorf("opening rtnetlink: %w", err)
	}
	// The loopback interface is the first of each network namespace.
	const loopback = 1
	return c, loopback, nil
}

// The sizes of the kernel's struct rtmsg and struct ifaddrmsg.
const (
	sizeRtMsg  = 12
	sizeIfAddr = 8
)

func family(p netip.Prefix) byte {
	if p.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func changeRoute(c *netlink.Conn, kind netlink.HeaderType, flags netlink.HeaderFlags, to netip.Prefix, iface uint32) error {
	msg := make([]byte, sizeRtMsg)
	msg[0], msg[1] = family(to), byte(to.Bits())
	// Of this scope the source is 127.0.0.1: a host may have no other address now.
	msg[4], msg[5], msg[6], msg[7] = unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_UNICAST
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.RTA_DST, Data: to.Addr().AsSlice()},
		{Type: unix.RTA_OIF, Data: binaryutil.NativeEndian.PutUint32(iface)},
		{Type: unix.RTA_PRIORITY, Data: binaryutil.NativeEndian.PutUint32(routeMetric)},
	})
	if err != nil {
		return err //nolint:wrapcheck // the callers say what of
	}
	_, err = c.Execute(netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge | flags}, Data: append(msg, attrs...)})
	return err //nolint:wrapcheck // the callers say what of
}

func changeAddress(c *netlink.Conn, kind netlink.HeaderType, flags netlink.HeaderFlags, of netip.Prefix, iface uint32) error {
	msg := make([]byte, sizeIfAddr)
	msg[0], msg[1], msg[2] = family(of), byte(of.Bits()), unix.IFA_F_NODAD
	copy(msg[4:], binaryutil.NativeEndian.PutUint32(iface))
	// Preferred for no time: nothing but Envoy, which binds it, shall use it as a source.
	const sizeCacheInfo, forever = 16, 1<<32 - 1
	life := make([]byte, sizeCacheInfo)
	copy(life[4:], binaryutil.NativeEndian.PutUint32(forever))
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.IFA_CACHEINFO, Data: life},
		{Type: unix.IFA_LOCAL, Data: of.Addr().AsSlice()},
		{Type: unix.IFA_ADDRESS, Data: of.Addr().AsSlice()},
	})
	if err != nil {
		return err //nolint:wrapcheck // the callers say what of
	}
	_, err = c.Execute(netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge | flags}, Data: append(msg, attrs...)})
	return err //nolint:wrapcheck // the callers say what of
}

func listRoutes(c *netlink.Conn) ([]route, error) {
	msgs, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request | netlink.Dump}, Data: make([]byte, sizeRtMsg),
	})
	if err != nil {
		return nil, fmt.Errorf("listing the routes: %w", err)
	}
	var out []route
	for _, m := range msgs {
		if len(m.Data) < sizeRtMsg || m.Data[0] != unix.AF_INET && m.Data[0] != unix.AF_INET6 {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[sizeRtMsg:])
		if err != nil {
			return nil, fmt.Errorf("reading a route: %w", err)
		}
		r, addr := route{table: uint32(m.Data[4])}, netip.IPv4Unspecified()
		if m.Data[0] == unix.AF_INET6 {
			addr = netip.IPv6Unspecified()
		}
		for ad.Next() {
			switch ad.Type() {
			case unix.RTA_DST:
				addr, _ = netip.AddrFromSlice(ad.Bytes())
			case unix.RTA_OIF:
				r.iface = ad.Uint32()
			case unix.RTA_PRIORITY:
				r.metric = ad.Uint32()
			case unix.RTA_TABLE:
				r.table = ad.Uint32()
			}
		}
		if err := ad.Err(); err != nil {
			return nil, fmt.Errorf("reading a route: %w", err)
		}
		r.to = netip.PrefixFrom(addr, int(m.Data[1]))
		out = append(out, r)
	}
	return out, nil
}

// The kernel's numbers of conntrack's messages and attributes, from
// linux/netfilter/nfnetlink_conntrack.h.
const (
	ctMsgGet         = 1
	ctTupleReply     = 2
	ctProtoInfo      = 4
	ctTupleProto     = 2
	ctProtoNum       = 1
	ctProtoSrcPort   = 2
	ctProtoInfoTCP   = 1
	ctTCPState       = 1
	ctTCPEstablished = 3
	ctTCPLastAck     = 6
	sizeNfGenMsg     = 4
)

// captured counts open connections that were redirected to a port of an Envoy.
func (k Kernel) captured(envoys []uint16) (int, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: k.NetNS})
	if err != nil {
		return 0, fmt.Errorf("opening netlink: %w", err)
	}
	defer func() { _ = c.Close() }()
	msgs, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | ctMsgGet, Flags: netlink.Request | netlink.Dump},
		Data:   make([]byte, sizeNfGenMsg),
	})
	if err != nil {
		return 0, fmt.Errorf("listing the tracked connections: %w", err)
	}
	is := map[uint16]bool{}
	for _, p := range envoys {
		is[p] = true
	}
	n := 0
	for _, m := range msgs {
		proto, port, state, err := tracked(m.Data)
		if err != nil {
			return 0, fmt.Errorf("reading a tracked connection: %w", err)
		}
		if proto == tcp && is[port] && state >= ctTCPEstablished && state <= ctTCPLastAck {
			n++
		}
	}
	return n, nil
}

// tracked reads protocol, source port of the replies, and TCP's state of a tracked connection.
func tracked(b []byte) (proto byte, port uint16, state byte, err error) {
	if len(b) < sizeNfGenMsg {
		return 0, 0, 0, errors.New("it is cut short")
	}
	ad, err := netlink.NewAttributeDecoder(b[sizeNfGenMsg:])
	if err != nil {
		return 0, 0, 0, err //nolint:wrapcheck // the caller says what of
	}
	for ad.Next() {
		switch ad.Type() {
		case ctTupleReply:
			ad.Nested(func(tuple *netlink.AttributeDecoder) error {
				for tuple.Next() {
					if tuple.Type() == ctTupleProto {
						tuple.Nested(func(p *netlink.AttributeDecoder) error {
							for p.Next() {
								switch p.Type() {
								case ctProtoNum:
									proto = p.Uint8()
								case ctProtoSrcPort:
									if b := p.Bytes(); len(b) == sizePort {
										port = binary.BigEndian.Uint16(b)
									}
								}
							}
							return nil
						})
					}
				}
				return nil
			})
		case ctProtoInfo:
			ad.Nested(func(info *netlink.AttributeDecoder) error {
				for info.Next() {
					if info.Type() == ctProtoInfoTCP {
						info.Nested(func(t *netlink.AttributeDecoder) error {
							for t.Next() {
								if t.Type() == ctTCPState {
									state = t.Uint8()
								}
							}
							return nil
						})
					}
				}
				return nil
			})
		}
	}
	return proto, port, state, ad.Err() //nolint:wrapcheck // the caller says what of
}
