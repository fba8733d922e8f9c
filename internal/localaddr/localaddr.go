// Package localaddr knows the addresses and names that lead each host to itself, or to what is there
// for this host alone. Whoever writes one of these has others connect where they would not.
package localaddr

import (
	"net/netip"
	"slices"
	"strings"
)

// Addresses from which clouds serve a machine's own credentials, besides link-local ones, and
// what stays for other addresses within IPv6.
//
//nolint:gochecknoglobals // read-only
var (
	metadataServers = []netip.Prefix{
		netip.MustParsePrefix("100.100.100.200/32"),  // Alibaba
		netip.MustParsePrefix("168.63.129.16/32"),    // Azure
		netip.MustParsePrefix("fd00:ec2::/32"),       // AWS
		netip.MustParsePrefix("fd20:ce::/32"),        // Google
		netip.MustParsePrefix("192.0.0.192/32"),      // Oracle
		netip.MustParsePrefix("fd00:c1::a9fe:0/112"), // Oracle
		netip.MustParsePrefix("fd00:42::42/128"),     // Scaleway
	}
	metadataNames = []string{
		"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal", "metadata.tencentyun.com",
	}
	thisNetwork  = netip.MustParsePrefix("0.0.0.0/8")
	translated   = netip.MustParsePrefix("64:ff9b::/96")
	translatedBy = netip.MustParsePrefix("64:ff9b:1::/48") // networks of one's own
	sixToFour    = netip.MustParsePrefix("2002::/16")
)

// What says what an address is that leads each host to itself, or to what is there for
// this host alone: loopback and link-local addresses, metadata servers of clouds, and names of
// these. It is "" for all other addresses and names. Where a name leads is not looked up.
func What(text string) string {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return localName(text)
	}
	switch inner := EmbeddedIPv4(addr.Unmap()); {
	case inner.IsLoopback():
		return "a loopback address"
	case inner.IsUnspecified() || thisNetwork.Contains(inner):
		return "an unspecified address" // Linux connects to itself
	case inner.WithZone("").IsLinkLocalUnicast():
		return "a link-local address"
	case IsMetadataServer(inner):
		return "the metadata server of a cloud"
	default:
		return ""
	}
}

func localName(text string) string {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case name == "":
		return ""
	case IsOwnName(name):
		return "a name of a loopback address"
	case IsMetadataName(name):
		return "the metadata server of a cloud"
	case strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x"):
		return "a number that is no IP address" // some resolvers take 127.1 for one
	default:
		return ""
	}
}

// IsMetadataServer reports whether a cloud serves a machine's own credentials there; link-local
// addresses are not among these.
func IsMetadataServer(addr netip.Addr) bool {
	addr = addr.WithZone("")
	return slices.ContainsFunc(metadataServers, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// IsMetadataName reports whether a cloud calls its metadata server so; in lower case, without a
// final dot.
func IsMetadataName(name string) bool { return slices.Contains(metadataNames, name) }

// IsOwnName reports whether hosts call themselves so: in the file of hosts that distributions
// come with, or by RFC 6761; in lower case, without a final dot.
func IsOwnName(name string) bool {
	first, _, _ := strings.Cut(name, ".")
	switch first {
	case "localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback":
		return true
	default:
		return strings.HasSuffix(name, ".localhost")
	}
}

// EmbeddedIPv4 is the address of IPv4 that one of IPv6 leads to, or the address itself: by NAT64
// (RFC 6052, RFC 8215), 6to4 (RFC 3056) and ISATAP (RFC 5214).
func EmbeddedIPv4(addr netip.Addr) netip.Addr {
	b, plain := addr.As16(), addr.WithZone("")
	switch {
	case addr.Is4():
		return addr
	case sixToFour.Contains(plain):
		return netip.AddrFrom4([4]byte(b[2:6]))
	case translatedBy.Contains(plain) && [4]byte(b[8:12]) != [4]byte{}:
		// Of a longer suffix than 32 bits (RFC 6052): which one, only its network knows.
		return netip.IPv6Unspecified()
	case translated.Contains(plain), translatedBy.Contains(plain), isISATAP(b):
		return netip.AddrFrom4([4]byte(b[12:]))
	default:
		return addr
	}
}

// isISATAP reports whether the interface identifier is of an address of IPv4, private or global.
func isISATAP(b [16]byte) bool { return b[8]&^0x02 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe }
