package capture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/nethost"
)

// held is a connection that stays open.
type held struct {
	net.Conn
	in    *bufio.Reader
	first string
}

// hold connects and keeps the connection.
func (h *host) hold(uid int, to string) *held {
	h.t.Helper()
	var c net.Conn
	var err error
	h.As(uid, func() {
		d := net.Dialer{Timeout: envoytest.Patience}
		c, err = d.DialContext(h.t.Context(), "tcp", to)
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	out := &held{Conn: c, in: bufio.NewReader(c)}
	if out.first, err = out.in.ReadString('\n'); err != nil {
		h.t.Fatal(err)
	}
	return out
}

// echo sends a line and reads it back.
func (c *held) echo() error {
	if err := c.SetDeadline(time.Now().Add(envoytest.Patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		return err
	}
	line, err := c.in.ReadString('\n')
	if err == nil && line != "hello\n" {
		err = fmt.Errorf("it answers %q", line)
	}
	return err
}

// all captures all of the application's user.
func all(s *Settings) { s.Outbound = OutboundUID }

// TestFirstRulesBreakNoConnection: a host where nothing tracked connections gets its first
// table; those that exist go on, in both directions.
func TestFirstRulesBreakNoConnection(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 72)
	h.Serve("app", 8080, false)
	h.Serve("out", 15001, true)
	h.Serve("in", 15006, true)
	peer.Serve("peer", 80, false)
	var open []*held
	for range 20 {
		open = append(open, h.hold(appUser, "10.72.0.2:80"), h.hold(appUser, "[fd00:72::2]:80"), peer.hold(otherUser, "10.72.0.1:8080"), peer.hold(otherUser, "[fd00:72::1]:8080"))
	}
	h.capture(build(t, all))
	for i, c := range open {
		if err := c.echo(); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	h.Want(appUser, "10.72.0.2:80", "out 10.72.0.2:80")
	peer.Want(otherUser, "10.72.0.1:8080", "in 10.72.0.1:8080")
	for i, c := range open {
		if err := c.echo(); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
}

// TestReplacementsLeakNothing: while the table is replaced again and again, no connection goes
// past the proxy and none fails, in either mode.
func TestReplacementsLeakNothing(t *testing.T) {
	t.Parallel()
	for i, mode := range []Mode{Closed, Open} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			replaceUnderLoad(t, 73+10*i, mode)
		})
	}
}

func replaceUnderLoad(t *testing.T, network int, mode Mode) {
	t.Helper()
	const replacements, connections = 137, 7000
	h, peer := newHost(t), newHost(t)
	link(h, peer, network)
	h.Serve("out", 15001, true)
	h.Serve("in", 15006, true)
	h.Serve("app", 8080, false)
	peer.Serve("peer", 80, false)
	table := func(ports ...uint16) *Ruleset {
		r := build(t, func(s *Settings) { all(s); s.Mode, s.Workloads[0].Ports = mode, ports })
		return r.Alive(func(uint16) time.Duration { return time.Hour })
	}
	one, two := table(8080), table(8080, 9090)
	h.capture(one)
	var through, bad atomic.Int64
	ctx, end := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer func() { end(); group.Wait() }()
	for _, c := range []struct {
		from           *host
		to, port, want string
	}{
		{h, "10.%d.0.2", "80", "out "}, {h, "fd00:%d::2", "80", "out "}, {peer, "10.%d.0.1", "8080", "in "}, {peer, "fd00:%d::1", "8080", "in "},
	} {
		to := net.JoinHostPort(fmt.Sprintf(c.to, network), c.port)
		group.Go(func() {
			c.from.As(appUser, func() {
				for ctx.Err() == nil {
					answer, err := nethost.Call(t.Context(), to)
					if err != nil || !strings.HasPrefix(answer, c.want) {
						bad.Add(1)
						t.Errorf("%s: %q %v", to, answer, err)
						return
					}
					through.Add(1)
				}
			})
		})
	}
	done := 0
	for ; (done < replacements || through.Load() < connections) && bad.Load() == 0; done++ {
		before := through.Load()
		if err := h.kernel().Apply([]*Ruleset{two, one}[done%2]); err != nil {
			t.Error(err)
			break
		}
		envoytest.Eventually(t, envoytest.Patience, func() error { // some between any two
			if bad.Load() == 0 && through.Load() < before+4 {
				return errors.New("no connections")
			}
			return nil
		})
	}
	t.Logf("%d connections during %d replacements", through.Load(), done)
}

// TestRemovalCutsNothingOff: captured connections go on while the table is removed, and new
// ones go directly. The table goes when the last one has ended.
func TestRemovalCutsNothingOff(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 74)
	h.Serve("out", 15001, true)
	h.Serve("in", 15006, true)
	h.Serve("app", 8080, false)
	peer.Serve("peer", 80, false)
	r := build(t, all)
	h.capture(r)
	open := []*held{h.hold(appUser, "10.74.0.2:80"), h.hold(appUser, "[fd00:74::2]:80"), peer.hold(otherUser, "10.74.0.1:8080"), peer.hold(otherUser, "[fd00:74::1]:8080")}
	for _, c := range open {
		if !strings.HasPrefix(c.first, "out ") && !strings.HasPrefix(c.first, "in ") {
			t.Fatalf("not captured: %q", c.first)
		}
	}
	type result struct {
		cut int
		err error
	}
	done := make(chan result, 1)
	go func() {
		cut, err := h.kernel().Remove(t.Context(), r.envoys, envoytest.Patience)
		done <- result{cut, err}
	}()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		st, err := h.kernel().State()
		if err == nil && !st.Draining {
			err = fmt.Errorf("%+v", st)
		}
		return err
	})
	h.Want(appUser, "10.74.0.2:80", "peer")
	peer.Want(otherUser, "10.74.0.1:8080", "app")
	for i, c := range open {
		if err := c.echo(); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
		select {
		case got := <-done:
			t.Fatalf("removed while %d connections were open: %+v", len(open)-i, got)
		default:
		}
		_ = c.Close()
	}
	if got := <-done; got.err != nil || got.cut != 0 {
		t.Errorf("%+v", got)
	}
	if err := h.kernel().Withdraw(); err != nil {
		t.Error(err)
	}
	if left := h.NFT("", "list", "ruleset") + h.IP("route", "show", "table", "main", "dev", "lo") + h.IP("-6", "route", "show", "table", "main", "dev", "lo"); strings.TrimSpace(left) != "" {
		t.Errorf("left behind: %s", left)
	}
	// A second removal finds nothing.
	if cut, err := h.kernel().Remove(t.Context(), r.envoys, 0); err != nil || cut != 0 {
		t.Error(cut, err)
	}
}

// TestRemovalIsBounded: a connection that never ends is cut off after the time, and counted.
func TestRemovalIsBounded(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 75)
	h.Serve("out", 15001, true)
	peer.Serve("peer", 80, false)
	r := build(t, all)
	h.capture(r)
	h.hold(appUser, "10.75.0.2:80")
	if cut, err := h.kernel().Remove(t.Context(), r.envoys, 0); err != nil || cut != 1 {
		t.Errorf("%d %v", cut, err)
	}
	if st, err := h.kernel().State(); err != nil || st.Present {
		t.Errorf("%+v %v", st, err)
	}
}

// TestUnconfirmedTablesExpire: without a process, new connections go directly after the time;
// and confirming comes too late then.
func TestUnconfirmedTablesExpire(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 76)
	h.Serve("out", 15001, true)
	peer.Serve("peer", 80, false)
	r := build(t, all)
	h.capture(r.With(time.Hour))
	open := h.hold(appUser, "10.76.0.2:80")
	if open.first != "out 10.76.0.2:80\n" {
		t.Errorf("not captured: %q", open.first)
	}
	h.capture(r.With(time.Second))
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if got := h.Get(appUser, "10.76.0.2:80"); got != "peer" {
			return fmt.Errorf("answer %q", got)
		}
		return nil
	})
	if err := open.echo(); err != nil {
		t.Errorf("the captured connection: %v", err)
	}
	if err := h.kernel().Confirm(nil); !errors.Is(err, ErrExpired) {
		t.Errorf("confirmed too late: %v", err)
	}
	if st, err := h.kernel().State(); err != nil || !st.Present || st.Capturing {
		t.Errorf("%+v %v", st, err)
	}
	h.capture(r.With(time.Hour))
	if err := h.kernel().Confirm(nil); err != nil {
		t.Error(err)
	}
	if st, err := h.kernel().State(); err != nil || !st.Capturing || st.Remaining != 0 {
		t.Errorf("confirmed, and %+v %v", st, err)
	}
}

// TestBeatsExtend: in open mode connections are captured while the Envoy of their workload is
// reported as alive; another workload's Envoy may be dead meanwhile.
func TestBeatsExtend(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 77)
	h.Serve("out", 15001, true)
	h.Serve("in", 15006, true)
	h.Serve("app", 8080, false)
	h.Serve("out2", 15011, true)
	peer.Serve("peer", 80, false)
	beat := func(ports ...uint16) {
		t.Helper()
		of := map[uint16]time.Duration{}
		for _, p := range ports {
			of[p] = OpenTimeout
		}
		if err := h.kernel().Beat(of); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.kernel().Switch(time.Second); !errors.Is(err, ErrNoTable) {
		t.Errorf("without a table: %v", err)
	}
	h.capture(build(t, all))
	if err := h.kernel().Beat(map[uint16]time.Duration{15001: OpenTimeout}); !errors.Is(err, ErrNoTable) {
		t.Errorf("in closed mode: %v", err)
	}
	r := build(t, func(s *Settings) {
		all(s)
		s.Mode = Open
		s.Workloads = append(s.Workloads, Workload{Name: "db", Users: []uint32{otherUser}, OutboundPort: 15011, InboundPort: 15016})
	})
	h.capture(r)
	h.Want(appUser, "10.77.0.2:80", "peer")
	h.Want(appUser, "240.240.0.7:80", "refused") // nobody answers there but Envoy
	peer.Want(otherUser, "10.77.0.1:8080", "app")
	for range 40 {
		beat(15001)
		for range 4 { // none goes directly in between
			h.Want(appUser, "10.77.0.2:80", "out 10.77.0.2:80")
		}
	}
	h.Want(appUser, "240.240.0.7:80", "out 240.240.0.7:80")
	peer.Want(otherUser, "10.77.0.1:8080", "in 10.77.0.1:8080")
	h.Want(otherUser, "10.77.0.2:80", "peer")
	beat(15011)
	h.Want(otherUser, "10.77.0.2:80", "out2 10.77.0.2:80")
	st, err := h.kernel().State()
	if err != nil || !st.Capturing || st.Remaining != 0 || len(st.Alive) != 2 || st.Alive[15001] <= 0 || st.Alive[15001] > OpenTimeout {
		t.Errorf("%+v %v", st, err)
	}
	// A table that replaces another one keeps what is known.
	h.capture(r.Alive(func(port uint16) time.Duration { return st.Alive[port] }))
	h.Want(appUser, "10.77.0.2:80", "out 10.77.0.2:80")
	h.NFT("", "flush", "set", "inet", Table, aliveOf+"15001")
	h.Want(appUser, "10.77.0.2:80", "peer")
	peer.Want(otherUser, "10.77.0.1:8080", "app")
	h.Want(otherUser, "10.77.0.2:80", "out2 10.77.0.2:80")
	if err := h.kernel().Beat(map[uint16]time.Duration{15001: time.Second}); err != nil {
		t.Error(err)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if got := h.Get(appUser, "10.77.0.2:80"); got != "peer" {
			return fmt.Errorf("the time is over, and %q answers", got)
		}
		return nil
	})
}

// TestForwardedTrafficIsLeftAlone: a container's connection to a captured port of another host is
// not ours.
func TestForwardedTrafficIsLeftAlone(t *testing.T) {
	t.Parallel()
	h, peer, container := newHost(t), newHost(t), newHost(t)
	link(h, peer, 78)
	link(h, container, 79)
	nethost.Run(t, nethost.Program(t, "ip"), "netns", "exec", h.Name, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	container.IP("route", "add", "default", "via", "10.79.0.1")
	container.IP("-6", "route", "add", "default", "via", "fd00:79::1")
	peer.IP("route", "add", "default", "via", "10.78.0.1")
	peer.IP("-6", "route", "add", "default", "via", "fd00:78::1")
	h.Serve("in", 15006, true)
	h.Serve("app", 8080, false)
	peer.Serve("peer", 8080, false)
	h.capture(build(t, nil))
	container.Want(otherUser, "10.78.0.2:8080", "peer")
	container.Want(otherUser, "[fd00:78::2]:8080", "peer")
	container.Want(otherUser, "10.79.0.1:8080", "in 10.79.0.1:8080") // the host's own
}

// TestFailedApplyLeavesTheTable: a table that the kernel refuses changes nothing.
func TestFailedApplyLeavesTheTable(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if err := h.kernel().Apply(build(t, nil)); err != nil {
		t.Fatal(err)
	}
	before := h.NFT("", "-a", "list", "ruleset")
	bad := build(t, nil)
	bad.chains = append(bad.chains, chain{name: "bad", kind: nftables.ChainTypeNAT, hook: "output", priority: -300, rules: []rule{{verdict{kind: accept}}}})
	if err := h.kernel().Apply(bad); err == nil { // conntrack comes after a chain of NAT at that priority
		t.Fatal("the kernel takes it")
	}
	if after := h.NFT("", "-a", "list", "ruleset"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// TestHostsWithoutIPv6: what cannot be added is reported, and IPv4 is captured.
func TestHostsWithoutIPv6(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	nethost.Run(t, nethost.Program(t, "ip"), "netns", "exec", h.Name, "sh", "-c", "for f in all default lo; do echo 1 >/proc/sys/net/ipv6/conf/$f/disable_ipv6; done")
	h.Serve("out", 15001, true)
	r := build(t, nil)
	n, err := h.kernel().Prepare(r)
	if err != nil || len(n.Skipped) != 2 || !strings.Contains(n.Skipped[0], "IPv6 is off on this host") {
		t.Fatalf("%+v %v", n, err)
	}
	if err := h.kernel().Apply(r); err != nil {
		t.Fatal(err)
	}
	h.Want(appUser, "240.240.1.1:80", "out 240.240.1.1:80")
	if err := h.kernel().Withdraw(); err != nil {
		t.Error(err)
	}
}

// TestHostsWithoutAnAddress: a host whose network is away has loopback addresses only.
func TestHostsWithoutAnAddress(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.Serve("out", 15001, true)
	h.capture(build(t, nil))
	h.Want(appUser, "240.240.1.1:80", "out 240.240.1.1:80")
	h.Want(appUser, "[2001:2::1]:80", "out [2001:2::1]:80")
	h.Want(otherUser, "240.240.1.1:80", "refused")
	h.Want(otherUser, "[2001:2::1]:80", "refused")
}

// TestRangesInUseAreRefused: a range that the host has another route to would be cut off.
func TestRangesInUseAreRefused(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 81)
	h.IP("route", "add", "240.240.9.0/24", "via", "10.81.0.2")
	if _, err := h.kernel().Prepare(build(t, nil)); err == nil || !strings.Contains(err.Error(), "the host has a route to 240.240.9.0/24") {
		t.Error(err)
	}
}
