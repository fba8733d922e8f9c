package jwks

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address string
		want    reach
	}{
		{"8.8.8.8", public},
		{"93.184.216.34", public},
		{"2606:2800:220:1::1", public},
		{"2a00:1450:4001:80b::200e", public},
		{"9.255.255.255", public},
		{"11.0.0.0", public},
		{"172.15.255.255", public},
		{"172.32.0.0", public},
		{"192.167.255.255", public},
		{"192.169.0.0", public},
		{"100.63.255.255", public},
		{"100.128.0.0", public},
		{"126.255.255.255", public},
		{"128.0.0.0", public},
		{"223.255.255.255", public},
		{"::ffff:8.8.8.8", public},
		{"64:ff9b::8.8.8.8", public},
		{"2002:808:808::1", public},

		{"10.0.0.0", private},
		{"10.255.255.255", private},
		{"172.16.0.0", private},
		{"172.31.255.255", private},
		{"192.168.0.1", private},
		{"100.64.0.1", private},
		{"100.127.255.255", private},
		{"198.18.0.1", private},
		{"fc00::1", private},
		{"fdff::1", private},
		{"fec0::1", private},
		{"::ffff:10.0.0.1", private},
		{"64:ff9b::10.0.0.1", private},
		{"2002:a00:1::1", private},
		{"2001:4860::5efe:10.0.0.1", private},
		{"2001:4860::200:5efe:192.168.0.1", private},

		{"0.0.0.0", refused},
		{"0.1.2.3", refused},
		{"127.0.0.1", refused},
		{"127.255.255.254", refused},
		{"169.254.169.254", refused},
		{"169.254.0.23", refused},
		{"100.100.100.200", refused},
		{"168.63.129.16", refused},
		{"192.0.0.192", refused},
		{"192.0.2.1", refused},
		{"198.51.100.7", refused},
		{"203.0.113.7", refused},
		{"192.88.99.1", refused},
		{"224.0.0.1", refused},
		{"239.255.255.250", refused},
		{"240.0.0.1", refused},
		{"255.255.255.255", refused},
		{"::", refused},
		{"::1", refused},
		{"::127.0.0.1", refused},
		{"::8.8.8.8", refused},
		{"::ffff:127.0.0.1", refused},
		{"::ffff:169.254.169.254", refused},
		{"::ffff:100.100.100.200", refused},
		{"::ffff:0:127.0.0.1", refused},
		{"64:ff9b::127.0.0.1", refused},
		{"64:ff9b::169.254.169.254", refused},
		{"64:ff9b:1::8.8.8.8", refused},
		{"2002:7f00:1::1", refused},
		{"2002:a9fe:a9fe::", refused},
		{"2001:4860::5efe:127.0.0.1", refused},
		{"2001:4860::200:5efe:169.254.169.254", refused},
		{"2001::1", refused},
		{"2001:10::1", refused},
		{"2001:db8::1", refused},
		{"3fff::1", refused},
		{"4000::1", refused},
		{"100::1", refused},
		{"5f00::1", refused},
		{"fe80::1", refused},
		{"fe80::1%eth0", refused},
		{"2606:2800:220:1::1%eth0", refused},
		{"ff02::1", refused},
		{"ff0e::1", refused},
		{"fd00:ec2::254", refused},
		{"fd20:ce::254", refused},
		{"fd00:c1::a9fe:a9fe", refused},
		{"fd00:42::42", refused},
	} {
		if got, what := classify(netip.MustParseAddr(c.address)); got != c.want {
			t.Errorf("%s is %d (%s), want %d", c.address, got, what, c.want)
		}
	}
	if got, _ := classify(netip.Addr{}); got != refused {
		t.Error("no address is not refused")
	}
}

// forms are all ways in which an IPv6 address can stand for an IPv4 one.
func forms(v4 netip.Addr) map[string]netip.Addr {
	b := v4.As4()
	with := func(prefix string, at int) netip.Addr {
		a := netip.MustParseAddr(prefix).As16()
		copy(a[at:], b[:])
		return netip.AddrFrom16(a)
	}
	return map[string]netip.Addr{
		"mapped":     with("::ffff:0:0", 12),
		"compatible": with("::", 12),
		"translated": with("::ffff:0:0:0", 12),
		"nat64":      with("64:ff9b::", 12),
		"local":      with("64:ff9b:1::", 12),
		"6to4":       with("2002::1", 2),
		"isatap":     with("2606:2800::5efe:0:0", 12),
		"isatap-u":   with("2606:2800::200:5efe:0:0", 12),
		"teredo":     with("2001::", 4),
	}
}

// Whatever form an address has, it can be fetched from by nobody who may not fetch from it as
// it is.
func TestNoFormReachesMore(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	try := func(a netip.Addr) {
		t.Helper()
		plain, what := classify(a)
		for form, b := range forms(a) {
			if got, _ := classify(b); got > plain {
				t.Fatalf("%s is %d (%s), and %d as %s (%s)", a, plain, what, got, b, form)
			}
		}
	}
	for _, n := range never {
		if n.prefix.Addr().Is4() {
			for range 200 {
				try(within(r, n.prefix))
			}
		}
	}
	for _, p := range privateRanges {
		if p.Addr().Is4() {
			for range 200 {
				try(within(r, p))
			}
		}
	}
	for range 20_000 {
		try(netip.AddrFrom4([4]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}))
	}
}

// within is a random address of a range.
func within(r *rand.Rand, p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		if r.Uint32()&1 == 1 {
			b[i/8] |= 0x80 >> (i % 8)
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// The standard library's words for addresses are a second opinion.
func TestClassifyAgreesWithTheStandardLibrary(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	ask := func(a netip.Addr) {
		t.Helper()
		got, what := classify(a)
		u := a.Unmap()
		switch {
		case u.IsLoopback(), u.IsLinkLocalUnicast(), u.IsMulticast(), u.IsUnspecified(), !u.IsGlobalUnicast():
			if got != refused {
				t.Fatalf("%s is %d (%s), want refused", a, got, what)
			}
		case u.IsPrivate():
			if got == public {
				t.Fatalf("%s is public, and private by the standard library", a)
			}
		}
	}
	for _, n := range never {
		for range 500 {
			a := within(r, n.prefix)
			if got, _ := classify(a); got != refused {
				t.Fatalf("%s of %s is %d, want refused", a, n.prefix, got)
			}
			ask(a)
		}
	}
	for _, p := range privateRanges {
		for range 500 {
			a := within(r, p)
			if got, _ := classify(a); got == public {
				t.Fatalf("%s of %s is public", a, p)
			}
			ask(a)
		}
	}
	for range 50_000 {
		var b [16]byte
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		ask(netip.AddrFrom16(b))
		ask(netip.AddrFrom4([4]byte(b[:4])))
	}
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	p := policy{[]uint16{15012}, func() ([]net.Addr, error) {
		return []net.Addr{
			&net.IPNet{IP: net.ParseIP("10.0.0.5"), Mask: net.CIDRMask(24, 32)},
			&net.IPNet{IP: net.ParseIP("2a00:1450::5"), Mask: net.CIDRMask(64, 128)},
		}, nil
	}}
	for _, c := range []struct {
		to         string
		privateToo bool
		ok         bool
		private    bool
	}{
		{"93.184.216.34:443", false, true, false},
		{"93.184.216.34:15012", false, true, false},
		{"10.0.0.5:443", true, true, false},
		{"10.0.0.5:443", false, false, true},
		{"10.0.0.5:15012", true, false, false},
		{"[::ffff:10.0.0.5]:15012", true, false, false},
		{"[2a00:1450::5]:15012", true, false, false},
		{"[2a00:1450::5]:443", false, true, false},
		{"10.0.0.6:15012", true, true, false},
		{"127.0.0.1:443", true, false, false},
		{"169.254.169.254:80", true, false, false},
	} {
		err := p.check(netip.MustParseAddrPort(c.to), c.privateToo)
		refusal, is := errors.AsType[*AddressError](err)
		if (err == nil) != c.ok || err != nil && (!is || refusal.Private != c.private) {
			t.Errorf("%s, private %v: %v", c.to, c.privateToo, err)
		}
	}
	p.own = func() ([]net.Addr, error) { return nil, errors.New("no") }
	if err := p.check(netip.MustParseAddrPort("10.0.0.6:15012"), true); err == nil {
		t.Error("a port of ours is fetched from, and nobody knows whether the address is ours")
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	p := policy{nil, net.InterfaceAddrs}
	for _, name := range []string{"login.example.com", "a", "1.example.com", "xn--bcher-kva.example", "0x1.example.com", "93.184.216.34", "2a00:1450::5"} {
		if err := p.checkName(name, 443, false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{
		"", ".", "localhost", "LOCALHOST", "localhost.", "a.localhost", "ip6-localhost", "127.1", "0177.0.0.1", "2130706433", "0x7f000001", "127.0.0.1.",
		"0x7f.1", "1.2.3.0x4", "127.0.0.1", "::1", "::ffff:127.0.0.1", "fe80::1%eth0", "10.0.0.1", "metadata.google.internal", "Metadata.Google.Internal.",
	} {
		if err := p.checkName(name, 443, false); err == nil {
			t.Errorf("%q is not refused", name)
		}
	}
}
