package capture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/nethost"
)

// TestCaptureOfAllLeavesTheHostReachable: all is captured and no Envoy runs. A person gets in and
// out by ssh, and the control plane, Consul and nameservers are reached; all else is refused.
func TestCaptureOfAllLeavesTheHostReachable(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 85)
	open := []int{22, 2222, 53, 853, 8301, 8500, 8600, 15012}
	for _, port := range append([]int{80}, open...) {
		h.Serve("here", port, false)
		peer.Serve("there", port, false)
	}
	s := usual()
	s.Outbound, s.Inbound = OutboundAll, InboundAll
	s.Workloads[0].Users, s.Workloads[0].Ports = nil, nil
	r, err := Build(s, &Facts{SSHPorts: []uint16{2222}})
	if err != nil {
		t.Fatal(err)
	}
	h.capture(r)
	for _, to := range []string{"10.85.0.%d:%d", "[fd00:85::%d]:%d"} {
		for _, port := range open {
			peer.Want(otherUser, fmt.Sprintf(to, 1, port), "here")
			for _, uid := range []int{0, appUser} {
				h.Want(uid, fmt.Sprintf(to, 2, port), "there")
			}
		}
		peer.Want(otherUser, fmt.Sprintf(to, 1, 80), "refused")
		h.Want(0, fmt.Sprintf(to, 2, 80), "refused")
		h.Want(appUser, fmt.Sprintf(to, 2, 80), "refused")
		h.Want(proxyUser, fmt.Sprintf(to, 2, 80), "there")
	}
	h.Want(appUser, "127.0.0.1:80", "here")
	h.Want(appUser, "[::1]:80", "here")
}

// TestSocketsBelongToTheirMakers: a daemon that makes its socket as root and then changes its user
// is not captured; one that makes it after the change is.
func TestSocketsBelongToTheirMakers(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 86)
	h.Serve("out", 15001, true)
	peer.Serve("peer", 80, false)
	h.capture(build(t, all))
	for maker, want := range map[int]string{0: "peer\n", appUser: "out 10.86.0.2:80\n"} {
		got := ""
		h.As(maker, func() {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = unix.Close(fd) }()
			err = errors.Join(unix.Setfsuid(appUser), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}),
				unix.Connect(fd, &unix.SockaddrInet4{Port: 80, Addr: [4]byte{10, 86, 0, 2}}))
			b := make([]byte, 64)
			n, readErr := unix.Read(fd, b)
			if err = errors.Join(err, readErr); err != nil {
				t.Error(err)
				return
			}
			got = string(b[:n])
		})
		if got != want {
			t.Errorf("a socket that user %d made: %q answers, want %q", maker, got, want)
		}
	}
}

// datagram sends a UDP packet to an address, and reports whether it is refused.
func (h *host) datagram(uid int, to string) (refused bool) {
	h.As(uid, func() {
		c, err := (&net.Dialer{}).DialContext(context.WithoutCancel(h.t.Context()), "udp", to)
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write([]byte("x"))
		if err == nil {
			_ = c.SetReadDeadline(time.Now().Add(dropped))
			_, err = c.Read(make([]byte, 8))
		}
		refused = errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EPERM)
	})
	return refused
}

// TestVirtualAddressesStayOffTheWire: whatever routes a host has, a virtual address leads to Envoy,
// or is refused at once where no Envoy captures it: closed, open, and not confirmed in time. Also
// when another program has deleted the table, not one packet leaves the host.
func TestVirtualAddressesStayOffTheWire(t *testing.T) {
	t.Parallel()
	const device = "v87a"
	for name, change := range map[string]func(h *host){
		"default_route": func(h *host) {
			h.IP("route", "add", "default", "via", "10.87.0.2")
			h.IP("-6", "route", "add", "default", "via", "fd00:87::2")
		},
		"no_default_route": func(*host) {},
		"uplink_down": func(h *host) {
			h.IP("route", "add", "default", "via", "10.87.0.2")
			h.IP("link", "set", device, "down")
		},
		"ipv4_only": func(h *host) {
			h.IP("route", "add", "default", "via", "10.87.0.2")
			nethost.Run(h.t, nethost.Program(h.t, "ip"), "netns", "exec", h.Name, "sh", "-c", "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >$f; done")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, peer := newHost(t), newHost(t)
			link(h, peer, 87)
			change(h)
			h.Serve("out", 15001, true)
			addresses := []string{"240.240.0.7:4242", "[2001:2::7]:4242"}
			if name == "ipv4_only" {
				addresses = addresses[:1]
			}
			wire := h.WireTo(device, DefaultRanges()...)
			want := func(when, captured string) {
				t.Helper()
				for _, to := range addresses {
					if captured != "" {
						h.Want(appUser, to, captured+to)
					} else if got := h.Get(appUser, to); got != "refused" {
						t.Errorf("%s: the application calls %s: %q", when, to, got)
					}
					h.Want(otherUser, to, "refused")
					if !h.datagram(appUser, to) {
						t.Errorf("%s: a UDP packet to %s is not refused", when, to)
					}
				}
				if n := wire(); n != 0 {
					t.Errorf("%s: %d packets on the wire", when, n)
				}
			}
			apply := func(r *Ruleset) {
				t.Helper()
				n, err := h.kernel().Prepare(r)
				if err == nil {
					err = h.kernel().Apply(r)
				}
				if err != nil || (len(n.Skipped) > 0) != (name == "ipv4_only") {
					t.Fatal(n, err)
				}
			}
			apply(build(t, nil))
			want("closed", "out ")
			apply(build(t, func(s *Settings) { s.Mode = Open }))
			want("open, and Envoy is dead", "")
			apply(build(t, nil).With(time.Millisecond))
			envoytest.Eventually(t, envoytest.Patience, func() error {
				st, err := h.kernel().State()
				if err == nil && st.Capturing {
					err = errors.New("still capturing")
				}
				return err
			})
			want("not confirmed", "")
			h.NFT("", "flush", "ruleset")
			for _, to := range addresses { // nobody answers, and nobody refuses
				_ = h.datagram(appUser, to)
			}
			if n := wire(); n != 0 {
				t.Errorf("the table is deleted: %d packets on the wire", n)
			}
			if err := h.kernel().Withdraw(); err != nil || name != "default_route" {
				return
			}
			envoytest.Eventually(t, envoytest.Patience, func() error { // the same counter sees what leaves
				for _, to := range addresses {
					_ = h.datagram(appUser, to)
				}
				if n := wire(); n < int64(len(addresses)) {
					return fmt.Errorf("%d packets were counted without routes", n)
				}
				return nil
			})
		})
	}
}
