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
	"strconv"
	"strings"
	"syscall"
	"time"
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

// patience is how long a resolver of the host waits, and how it chooses, by the options of
// resolv.conf.
type patience struct {
	timeout  time.Duration // of the first query to a nameserver
	attempts int           // rounds over all nameservers
	rotate   bool          // each query begins with another nameserver
	tcp      bool          // nameservers are asked by TCP only
}

// The defaults and limits of glibc (resolv.h).
const (
	defaultTimeout  = 5 * time.Second
	maxTimeout      = 30 * time.Second
	defaultAttempts = 2
	maxAttempts     = 5
)

func defaultPatience() patience { return patience{timeout: defaultTimeout, attempts: defaultAttempts} }

// rounds are how long glibc waits for one of n nameservers, with each query that it sends (res_send):
// twice as long in each round, and then shared by the nameservers.
func (p patience) rounds(n int) []time.Duration {
	out := make([]time.Duration, p.attempts)
	for i := range out {
		out[i] = p.timeout << i
		if i > 0 {
			out[i] /= time.Duration(n)
		}
		out[i] = max(out[i].Truncate(time.Second), time.Second)
	}
	return out
}

// add reads the words of a line of options. glibc ignores what it does not know, and so does this.
func (p *patience) add(words []string) {
	for _, word := range words {
		name, value, _ := strings.Cut(word, ":")
		n, err := strconv.Atoi(value)
		switch {
		case name == "rotate":
			p.rotate = true
		case name == "use-vc":
			p.tcp = true
		case name == "timeout" && err == nil:
			p.timeout = max(min(time.Duration(n)*time.Second, maxTimeout), time.Second)
		case name == "attempts" && err == nil:
			p.attempts = max(min(n, maxAttempts), 1)
		}
	}
}

// readUpstreams reads the nameservers of a file, and its options. own are addresses that are not
// asked, because they are this server's.
func readUpstreams(path, stub string, own []netip.AddrPort) ([]netip.AddrPort, patience, error) {
	list, options, err := nameservers(path)
	if err != nil {
		return nil, options, err
	}
	if slices.ContainsFunc(list, func(a netip.AddrPort) bool { return isStub(a.Addr()) }) {
		if behind, _, err := nameservers(stub); err == nil && len(behind) > 0 {
			list = behind
		}
	}
	n := len(list)
	list = slices.DeleteFunc(list, func(a netip.AddrPort) bool { return slices.Contains(own, a) })
	switch {
	case n == 0:
		return nil, options, fmt.Errorf("%q names no nameserver", path)
	case len(list) == 0:
		return nil, options, fmt.Errorf("%q names this server only", path)
	default:
		return list, options, nil
	}
}

func nameservers(path string) ([]netip.AddrPort, patience, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, defaultPatience(), fmt.Errorf("reading the nameservers: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, defaultPatience(), fmt.Errorf("reading the nameservers: %w", err)
	}
	list, options := parseResolvConf(b)
	return list, options, nil
}

// parseResolvConf returns the nameservers, each once, in their order, and the options; lines that
// glibc would ignore are ignored.
func parseResolvConf(b []byte) (out []netip.AddrPort, options patience) {
	options = defaultPatience()
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, maxResolvConf+1)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) > 1 && words[0] == "options" {
			options.add(words[1:])
		}
		if len(words) < 2 || words[0] != "nameserver" || len(out) == maxNameservers {
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
	return out, options
}

// noIPv6 reports whether an address cannot be bound because the host has no IPv6.
func noIPv6(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}
