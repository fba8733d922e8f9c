package addresses

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/fairlead/fairlead/registry/mesh"
)

// DefaultRange is the range of IPv4 addresses by default, Istio's.
const DefaultRange = "240.240.0.0/16"

// Default is DefaultRange.
func Default() netip.Prefix { return netip.MustParsePrefix(DefaultRange) }

// ipv6Prefix is the prefix of all IPv6 addresses, Istio's: 2001:2::/48 (RFC 5180, for
// benchmarks).
func ipv6Prefix() netip.Prefix {
	_, p := mesh.VirtualRanges()
	return p
}

// Widths of a range of IPv4 addresses.
const (
	widest, narrowest = 8, 24
	// perBlock is how many of 256 addresses are used. Some programs take one that ends in 0 or
	// 255 for that of a network.
	perBlock = 254
)

// ParseRange reads a range of IPv4 addresses: within 240.0.0.0/4, which no network routes,
// and of /8 to /24. Addresses of a network would be taken from whoever has them.
func ParseRange(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, fmt.Errorf("%q is no range of addresses: write it like %s", text, DefaultRange)
	case !p.Addr().Is4() || p.Addr().As4()[0] < 240 || p.Addr().As4()[0] == 255:
		return p, fmt.Errorf("%q is not within 240.0.0.0 to 254.255.255.255, which no network uses", text)
	case p.Bits() < widest || p.Bits() > narrowest:
		return p, fmt.Errorf("%q: the range must be of /%d to /%d", text, widest, narrowest)
	case p != p.Masked():
		return p, fmt.Errorf("%q: the range begins at %s", text, p.Masked())
	default:
		return p, nil
	}
}

// capacity is the number of addresses that a range has for hosts.
func capacity(p netip.Prefix) uint32 { return 1 << (32 - p.Bits()) / 256 * perBlock }

// slotAddress is the address of a slot.
func slotAddress(p netip.Prefix, slot uint32) netip.Addr {
	first := p.Addr().As4()
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(first[:])+slot/perBlock*256+1+slot%perBlock)
	return netip.AddrFrom4(a)
}

// slotOf is the slot of an address; false if it is not for hosts.
func slotOf(p netip.Prefix, a netip.Addr) (uint32, bool) {
	if !p.Contains(a) {
		return 0, false
	}
	first, b := p.Addr().As4(), a.As4()
	offset := binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(first[:])
	if offset%256 == 0 || offset%256 == 255 {
		return 0, false
	}
	return offset/256*perBlock + offset%256 - 1, true
}

// hashOf is the hash of a host. Namespaces and names have no zero byte, so that no two hosts
// are the same text.
func hashOf(h mesh.NamespacedHost, try byte) [sha256.Size]byte {
	text := h.Namespace + "\x00" + string(h.Host)
	if try > 0 {
		text += "\x00" + string(rune(try))
	}
	return sha256.Sum256([]byte(text))
}

// Hashed is the IPv4 address that stands for a host: it has that unless it was taken.
func Hashed(p netip.Prefix, h mesh.NamespacedHost) netip.Addr {
	return slotAddress(p, hashedSlot(p, h))
}

// hashedSlot is the slot where the search for an address of a host begins.
func hashedSlot(p netip.Prefix, h mesh.NamespacedHost) uint32 {
	sum := hashOf(h, 0)
	return uint32(binary.BigEndian.Uint64(sum[16:]) % uint64(capacity(p)))
}

// hashedIPv6 is the IPv6 address of a host, by 80 bits of its hash.
func hashedIPv6(h mesh.NamespacedHost, try byte) netip.Addr {
	a, sum := ipv6Prefix().Addr().As16(), hashOf(h, try)
	copy(a[6:], sum[:10])
	return netip.AddrFrom16(a)
}
