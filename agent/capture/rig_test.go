package capture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// Users of the tests. No such users have to exist.
const (
	proxyUser, appUser, otherUser = 21337, 22001, 23001
)

// host is a network namespace that stands for a host.
type host struct {
	t    *testing.T
	name string
	fd   int
}

var hostCount atomic.Int64

// newHost makes a network namespace. It skips the test in -short, and where root or a program is
// missing; with FAIRLEAD_E2E=1 a missing part fails it.
func newHost(t *testing.T) *host {
	t.Helper()
	if testing.Short() {
		t.Skip("changes nf_tables of network namespaces: not in -short")
	}
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "network namespaces need root: run the tests of this package as root")
	}
	h := &host{t: t, name: fmt.Sprintf("fl%d-%d", os.Getpid(), hostCount.Add(1))}
	run(t, program(t, "ip"), "netns", "add", h.name)
	f, err := os.Open("/run/netns/" + h.name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.Close()
		run(t, program(t, "ip"), "netns", "delete", h.name)
	})
	h.fd = int(f.Fd())
	h.ip("link", "set", "lo", "up")
	return h
}

// program finds a program of the system, or of the project's tools.
func program(t *testing.T, name string) string {
	t.Helper()
	if name == "nft" {
		own := filepath.Join(envoytest.ModuleRoot(t), ".tools", "nftables-1.0.6", "nft")
		if _, err := os.Stat(own); err == nil {
			return own
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		envoytest.Missing(t, "%s is not installed: apt-get install iproute2 nftables", name)
	}
	return path
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func (h *host) ip(args ...string) string {
	h.t.Helper()
	return run(h.t, program(h.t, "ip"), append([]string{"-n", h.name}, args...)...)
}

// nft runs nft on the host, with an input of its own if there is one.
func (h *host) nft(input string, args ...string) string {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), program(h.t, "ip"), append([]string{"netns", "exec", h.name, program(h.t, "nft")}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.t.Fatalf("nft %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// load has nft load rules; nft wants a line for each, so that a semicolon is as good.
func (h *host) load(rules string) {
	h.t.Helper()
	h.nft(strings.ReplaceAll(rules, ";", "\n"), "-f", "-")
}

// kernel is the kernel of the host.
func (h *host) kernel() Kernel { return Kernel{NetNS: h.fd} }

// link connects two hosts: the first gets 10.NET.0.1 and fd00:NET::1, the second .2 and ::2.
func link(a, b *host, net int) {
	va, vb := fmt.Sprintf("v%da", net), fmt.Sprintf("v%db", net)
	a.ip("link", "add", va, "type", "veth", "peer", "name", vb, "netns", b.name)
	for i, end := range []struct {
		h   *host
		dev string
	}{{a, va}, {b, vb}} {
		end.h.ip("address", "add", fmt.Sprintf("10.%d.0.%d/24", net, i+1), "dev", end.dev)
		end.h.ip("address", "add", fmt.Sprintf("fd00:%d::%d/64", net, i+1), "dev", end.dev, "nodad")
		end.h.ip("link", "set", end.dev, "up")
	}
}

// as runs something in the host's network namespace, as a user where sockets are concerned.
func (h *host) as(uid int, do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(h.fd, unix.CLONE_NEWNET); err != nil {
			h.t.Error(err)
			return
		}
		if err := unix.Setfsuid(uid); err != nil {
			h.t.Error(err)
			return
		}
		do()
	}()
	<-done
}

// call connects, and returns the first line of the answer.
func call(ctx context.Context, to string) (string, error) {
	// Anything refused or answered comes at once; only what nobody answers takes this long.
	const unanswered = 5 * time.Second
	d := net.Dialer{Timeout: unanswered}
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(unanswered))
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// get is call as a user of the host; errors become text.
func (h *host) get(uid int, to string) (answer string) {
	h.as(uid, func() {
		var err error
		if answer, err = call(h.t.Context(), to); err != nil {
			answer = "error: " + err.Error()
			if errors.Is(err, syscall.ECONNREFUSED) {
				answer = "refused"
			}
		}
	})
	return answer
}

// want expects an answer.
func (h *host) want(uid int, to, want string) {
	h.t.Helper()
	if got := h.get(uid, to); got != want {
		h.t.Errorf("user %d calls %s: %q, want %q", uid, to, got, want)
	}
}

// serve answers connections at a port of the host, IPv4 and IPv6, with name and, for a fake
// proxy, with the address that the client called. It is no Envoy: what is asked of Envoy here is
// to listen, and which connections come to it.
func (h *host) serve(name string, port int, proxy bool) {
	h.t.Helper()
	var l net.Listener
	h.as(0, func() {
		var err error
		var lc net.ListenConfig
		if l, err = lc.Listen(h.t.Context(), "tcp", fmt.Sprintf(":%d", port)); err != nil {
			h.t.Error(err)
		}
	})
	if l == nil {
		h.t.FailNow()
	}
	var group sync.WaitGroup
	ended := make(chan struct{})
	h.t.Cleanup(func() { _ = l.Close(); close(ended); group.Wait() })
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served := make(chan struct{})
			group.Go(func() {
				select { // a client that was cut off never ends
				case <-ended:
				case <-served:
				}
				_ = c.Close()
			})
			group.Go(func() {
				defer close(served)
				answer := name
				if proxy {
					answer += " " + originalDst(c)
				}
				_, _ = fmt.Fprintln(c, answer)
				// It echoes lines until the client ends.
				in := bufio.NewReader(c)
				for {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					_, _ = fmt.Fprint(c, line)
				}
			})
		}
	})
}

// originalDst is the address that a redirected client called.
func originalDst(c net.Conn) string {
	tcpConn, ok := c.(*net.TCPConn)
	if !ok {
		return "not TCP"
	}
	raw, err := tcpConn.SyscallConn()
	if err != nil {
		return err.Error()
	}
	const option = 80 // SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST
	var out string
	err = raw.Control(func(fd uintptr) {
		addr, _ := netip.ParseAddrPort(c.LocalAddr().String())
		if addr.Addr().Unmap().Is4() {
			v, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, option) // 16 bytes, as a sockaddr_in
			if err != nil {
				out = err.Error()
				return
			}
			b := v.Multiaddr
			out = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])).String()
			return
		}
		var b [28]byte // a sockaddr_in6
		size := uint32(len(b))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_IPV6, option, uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			out = errno.Error()
			return
		}
		out = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), uint16(b[2])<<8|uint16(b[3])).String()
	})
	if err != nil {
		return err.Error()
	}
	return out
}

// usual are settings for the tests.
func usual() *Settings {
	return &Settings{
		Mode: Closed, Outbound: OutboundVIP, Inbound: InboundDeclared, Ranges: DefaultRanges(),
		Proxies: []uint32{proxyUser}, ControlPlanePorts: []uint16{15012},
		Workloads: []Workload{{Name: "web", Users: []uint32{appUser}, Ports: []uint16{8080}, OutboundPort: 15001, InboundPort: 15006}},
	}
}

// build is Build for settings that are right.
func build(t *testing.T, change func(*Settings)) *Ruleset {
	t.Helper()
	s := usual()
	if change != nil {
		change(s)
	}
	r, err := Build(s, &Facts{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// capture applies a table and what belongs to it.
func (h *host) capture(r *Ruleset) {
	h.t.Helper()
	n, err := h.kernel().Prepare(r)
	if err == nil {
		err = h.kernel().Apply(r)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	for _, s := range n.Skipped {
		h.t.Error(s)
	}
}
