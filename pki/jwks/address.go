package jwks

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/internal/localaddr"
)

// reach is who may fetch from an address.
type reach int

const (
	// refused addresses are fetched from by nobody.
	refused reach = iota
	// private addresses are fetched from by sources that may.
	private
	// public addresses are fetched from by all.
	public
)

// never are ranges that are no issuer's, in addition to metadata servers of clouds and to those
// outside of the global unicast and private ranges. The first that has an address decides.
//
//nolint:gochecknoglobals // constant
var never = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "an unspecified address"},             // RFC 1122
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},               // RFC 1122
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},          // RFC 3927
	{netip.MustParsePrefix("192.0.0.0/24"), "an address for protocols"},        // RFC 6890
	{netip.MustParsePrefix("192.0.2.0/24"), "an address for documentation"},    // RFC 5737
	{netip.MustParsePrefix("192.88.99.0/24"), "an address for protocols"},      // RFC 7526
	{netip.MustParsePrefix("198.51.100.0/24"), "an address for documentation"}, // RFC 5737
	{netip.MustParsePrefix("203.0.113.0/24"), "an address for documentation"},  // RFC 5737
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},              // RFC 5771
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved address"},               // RFC 1112
	{netip.MustParsePrefix("::/128"), "an unspecified address"},                // RFC 4291
	{netip.MustParsePrefix("::1/128"), "a loopback address"},                   // RFC 4291
	{netip.MustParsePrefix("::/96"), "a reserved address"},                     // RFC 4291: IPv4-compatible
	{netip.MustParsePrefix("::ffff:0:0:0/96"), "an address for translation"},   // RFC 2765
	{netip.MustParsePrefix("64:ff9b:1::/48"), "an address for translation"},    // RFC 8215
	{netip.MustParsePrefix("2001::/23"), "an address for protocols"},           // RFC 2928: Teredo, ORCHID, benchmarks
	{netip.MustParsePrefix("2001:db8::/32"), "an address for documentation"},   // RFC 3849
	{netip.MustParsePrefix("3fff::/20"), "an address for documentation"},       // RFC 9637
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},               // RFC 4291
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},                 // RFC 4291
}

// privateRanges are addresses of networks that are not the Internet.
//
//nolint:gochecknoglobals // constant
var privateRanges = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),     // RFC 1918
	netip.MustParsePrefix("172.16.0.0/12"),  // RFC 1918
	netip.MustParsePrefix("192.168.0.0/16"), // RFC 1918
	netip.MustParsePrefix("100.64.0.0/10"),  // RFC 6598: carrier-grade NAT
	netip.MustParsePrefix("198.18.0.0/15"),  // RFC 2544: benchmarks
	netip.MustParsePrefix("fc00::/7"),       // RFC 4193: unique local
	netip.MustParsePrefix("fec0::/10"),      // RFC 3879: site-local
}

// classify says who may fetch from an address, and what it is.
func classify(a netip.Addr) (reach, string) {
	if !a.IsValid() {
		return refused, "no address"
	}
	if a.Zone() != "" {
		return refused, "an address of one link" // a zone chooses an interface of ours
	}
	a = a.Unmap()
	if localaddr.IsMetadataServer(a) {
		return refused, "the metadata server of a cloud"
	}
	for _, n := range never {
		if n.prefix.Contains(a) {
			return refused, n.what
		}
	}
	if inner := localaddr.EmbeddedIPv4(a); inner != a {
		// Whatever translates it connects to the address inside.
		if r, what := classify(inner); r != public {
			return r, what + " in an IPv6 address"
		}
	}
	for _, p := range privateRanges {
		if p.Contains(a) {
			return private, "a private address"
		}
	}
	if a.Is6() && !netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20}), 3).Contains(a) && !nat64.Contains(a) {
		return refused, "a reserved address" // only 2000::/3 is assigned
	}
	return public, "a public address"
}

// nat64 is RFC 6052's well-known prefix.
var nat64 = netip.MustParsePrefix("64:ff9b::/96") //nolint:gochecknoglobals // constant

// AddressError says that keys may not be fetched from an address.
type AddressError struct {
	// Address is it, as host or address with its port.
	Address string
	// What says what kind of address it is.
	What string
	// Private says that sources exist that may.
	Private bool
}

func (e *AddressError) Error() string {
	if e.Private {
		return fmt.Sprintf("keys may not be fetched from %s: it is %s, and the object is not from a source that may use those", e.Address, e.What)
	}
	return fmt.Sprintf("keys may not be fetched from %s: it is %s", e.Address, e.What)
}

// policy decides which addresses keys are fetched from.
type policy struct {
	// ownPorts are where this server listens.
	ownPorts []uint16
	// own are the addresses of this machine.
	own func() ([]net.Addr, error)
}

// check is asked with the address to which a connection is just being made.
func (p policy) check(to netip.AddrPort, privateToo bool) error {
	r, what := classify(to.Addr())
	if r == refused {
		return &AddressError{to.String(), what, false}
	}
	if slices.Contains(p.ownPorts, to.Port()) {
		own, err := p.isOwn(to.Addr().Unmap())
		if err != nil {
			return fmt.Errorf("reading the addresses of this machine: %w", err)
		}
		if own {
			return &AddressError{to.String(), "a port of this server", false}
		}
	}
	if r == private && !privateToo {
		return &AddressError{to.String(), what, true}
	}
	return nil
}

func (p policy) isOwn(a netip.Addr) (bool, error) {
	list, err := p.own()
	if err != nil {
		return false, err
	}
	for _, n := range list {
		text, _, _ := strings.Cut(n.String(), "/")
		if own, err := netip.ParseAddr(text); err == nil && own.Unmap().WithZone("") == a {
			return true, nil
		}
	}
	return false, nil
}

// checkName judges the host of a URI before a name is looked up. It decides alone only where
// a proxy looks names up: what a name leads to is checked when a connection is made.
func (p policy) checkName(host string, port uint16, privateToo bool) error {
	if host == "" {
		return errors.New("the URI has no host")
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return p.check(netip.AddrPortFrom(a, port), privateToo)
	}
	if host == "." {
		return &AddressError{host, "no name", false}
	}
	if what := localaddr.What(host); what != "" { // resolvers take 127.1, 0x7f000001 and 2130706433 for addresses
		return &AddressError{host, what, false}
	}
	return nil
}
