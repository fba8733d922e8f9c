// Package nethost has hosts for tests that change packet filters: network namespaces of this
// machine, with links, users, and servers that say who answers. Its callers are tests; they need
// root, and skip in -short.
package nethost

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

// Host is a network namespace that stands for a host.
type Host struct {
	tb testing.TB
	// Name is the namespace's, for ip netns exec.
	Name string
	// FD is a file descriptor of the namespace.
	FD int
}

var count atomic.Int64 //nolint:gochecknoglobals // tells namespaces of one process apart

// New makes a network namespace. It skips the test in -short, and where root or a program is
// missing; with FAIRLEAD_E2E=1 a missing part fails it.
func New(tb testing.TB) *Host {
	tb.Helper()
	if testing.Short() {
		tb.Skip("changes nf_tables of network namespaces: not in -short")
	}
	if os.Geteuid() != 0 {
		envoytest.Missing(tb, "network namespaces need root: run the tests of this package as root")
	}
	h := &Host{tb: tb, Name: fmt.Sprintf("fl%d-%d", os.Getpid(), count.Add(1))}
	Run(tb, Program(tb, "ip"), "netns", "add", h.Name)
	f, err := os.Open("/run/netns/" + h.Name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = f.Close()
		Run(tb, Program(tb, "ip"), "netns", "delete", h.Name)
	})
	h.FD = int(f.Fd())
	h.IP("link", "set", "lo", "up")
	return h
}

// Program finds a program of the system, or of the project's tools.
func Program(tb testing.TB, name string) string {
	tb.Helper()
	if name == "nft" || name == "iptables" {
		own := filepath.Join(envoytest.ModuleRoot(tb), ".tools", "nftables-1.0.6", name)
		if _, err := os.Stat(own); err == nil {
			return own
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		envoytest.Missing(tb, "%s is not installed: apt-get install iproute2 nftables iptables", name)
	}
	return path
}

// Run runs a program, and returns its output.
func Run(tb testing.TB, name string, args ...string) string {
	tb.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		tb.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// IP runs ip on the host.
func (h *Host) IP(args ...string) string {
	h.tb.Helper()
	return Run(h.tb, Program(h.tb, "ip"), append([]string{"-n", h.Name}, args...)...)
}

// NFT runs nft on the host, with an input of its own if there is one.
func (h *Host) NFT(input string, args ...string) string {
	h.tb.Helper()
	cmd := exec.CommandContext(h.tb.Context(), Program(h.tb, "ip"), append([]string{"netns", "exec", h.Name, Program(h.tb, "nft")}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.tb.Fatalf("nft %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// Load has nft load rules; nft wants a line for each, so that a semicolon is as good.
func (h *Host) Load(rules string) {
	h.tb.Helper()
	h.NFT(strings.ReplaceAll(rules, ";", "\n"), "-f", "-")
}

// Link connects two hosts: the first gets 10.NET.0.1 and fd00:NET::1, the second .2 and ::2.
func Link(a, b *Host, net int) {
	va, vb := fmt.Sprintf("v%da", net), fmt.Sprintf("v%db", net)
	a.IP("link", "add", va, "type", "veth", "peer", "name", vb, "netns", b.Name)
	for i, end := range []struct {
		h   *Host
		dev string
	}{{a, va}, {b, vb}} {
		end.h.IP("address", "add", fmt.Sprintf("10.%d.0.%d/24", net, i+1), "dev", end.dev)
		end.h.IP("address", "add", fmt.Sprintf("fd00:%d::%d/64", net, i+1), "dev", end.dev, "nodad")
		end.h.IP("link", "set", end.dev, "up")
	}
}

// As runs something in the host's network namespace, as a user where sockets are concerned.
func (h *Host) As(uid int, do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(h.FD, unix.CLONE_NEWNET); err != nil {
			h.tb.Error(err)
			return
		}
		if err := unix.Setfsuid(uid); err != nil {
			h.tb.Error(err)
			return
		}
		do()
	}()
	<-done
}

// Dial connects from the host to an address without names, as [net.Dialer.DialContext] does.
func (h *Host) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = errors.New("the host's network namespace cannot be entered") // stands if the function below does not run
	h.As(0, func() { c, err = new(net.Dialer).DialContext(ctx, network, address) })
	return c, err
}

// Call connects, and returns the first line of the answer.
func Call(ctx context.Context, to string) (string, error) { return call(ctx, nil, to) }

func call(ctx context.Context, from net.Addr, to string) (string, error) {
	// Anything refused or answered comes at once; only what nobody answers takes this long.
	const unanswered = 5 * time.Second
	d := net.Dialer{Timeout: unanswered, LocalAddr: from}
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(unanswered))
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// Get is [Call] as a user of the host; errors become text.
func (h *Host) Get(uid int, to string) (answer string) { return h.GetFrom(uid, "", to) }

// GetFrom is Get from an address of the host; empty means any.
func (h *Host) GetFrom(uid int, from, to string) (answer string) {
	h.As(uid, func() {
		var local net.Addr
		if from != "" {
			local = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		var err error
		if answer, err = call(h.tb.Context(), local, to); err != nil {
			answer = "error: " + err.Error()
			if errors.Is(err, syscall.ECONNREFUSED) {
				answer = "refused"
			}
		}
	})
	return answer
}

// Want expects an answer.
func (h *Host) Want(uid int, to, want string) {
	h.tb.Helper()
	if got := h.Get(uid, to); got != want {
		h.tb.Errorf("user %d calls %s: %q, want %q", uid, to, got, want)
	}
}

// Serve answers connections at a port of the host, IPv4 and IPv6, with name and, for a fake
// proxy, with the address that the client called. It is no Envoy: what is asked of Envoy here is
// to listen, and which connections come to it.
func (h *Host) Serve(name string, port int, proxy bool) {
	h.tb.Helper()
	var l net.Listener
	h.As(0, func() {
		var err error
		var lc net.ListenConfig
		if l, err = lc.Listen(h.tb.Context(), "tcp", fmt.Sprintf(":%d", port)); err != nil {
			h.tb.Error(err)
		}
	})
	if l == nil {
		h.tb.FailNow()
	}
	var group sync.WaitGroup
	ended := make(chan struct{})
	h.tb.Cleanup(func() { _ = l.Close(); close(ended); group.Wait() })
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
