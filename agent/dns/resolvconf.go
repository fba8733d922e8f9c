package dns

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
)

// Limits of resolv.conf.
const (
	maxResolvConf  = 64 << 10
	maxNameservers = 8
	portOfDNS      = 53
)

// stubs are the addresses of systemd-resolved: it asks the nameservers of another file.
func isStub(a netip.Addr) bool {
	return a == netip.AddrFrom4([4]byte{127, 0, 0, 53}) || a == netip.AddrFrom4([4]byte{127, 0, 0, 54})
}

// readUpstreams reads the nameservers of a file. own are addresses that are not asked, because they
// are this server's.
func readUpstreams(path, stub string, own []netip.AddrPort) ([]netip.AddrPort, error) {
	list, err := nameservers(path)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(list, func(a netip.AddrPort) bool { return isStub(a.Addr()) }) {
		if behind, err := nameservers(stub); err == nil && len(behind) > 0 {
			list = behind
		}
	}
	n := len(list)
	list = slices.DeleteFunc(list, func(a netip.AddrPort) bool { return slices.Contains(own, a) })
	switch {
	case n == 0:
		return nil, fmt.Errorf("%q names no nameserver", path)
	case len(list) == 0:
		return nil, fmt.Errorf("%q names this server only", path)
	default:
		return list, nil
	}
}

func nameservers(path string) ([]netip.AddrPort, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the nameservers: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("reading the nameservers: %w", err)
	}
	return parseResolvConf(b), nil
}

// parseResolvConf returns the nameservers, each once, in their order; lines that glibc would ignore
// are ignored.
func parseResolvConf(b []byte) (out []netip.AddrPort) {
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, maxResolvConf+1)
	for lines.Scan() && len(out) < maxNameservers {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		a, err := netip.ParseAddr(words[1])
		if err != nil || a.IsMulticast() {
			continue
		}
		if a.IsUnspecified() { // this host, for glibc
			a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		if at := netip.AddrPortFrom(a.Unmap(), portOfDNS); !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}

// noIPv6 reports whether an address cannot be bound because the host has no IPv6.
func noIPv6(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}
