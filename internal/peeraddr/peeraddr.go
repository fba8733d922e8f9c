// Package peeraddr says what counts as one address where peers are counted or told
// apart by where they come from. A test holds everything else to it.
package peeraddr

import (
	"net"
	"net/netip"
)

// Group is an IPv4 address without its port, or the /64 of an IPv6 address, of
// which one host can have every address. What is neither stands for itself.
func Group(address string) string {
	ip, ok := parse(address)
	if !ok {
		return Host(address)
	}
	if ip.Is6() && !ip.IsLoopback() {
		if p, err := ip.Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}

// Host is an address without its port, for people and where each address counts by
// itself. What is none stands for itself.
func Host(address string) string {
	if ip, ok := parse(address); ok {
		return ip.String()
	}
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// parse reads an address with its port or without. One of IPv4 that is written as
// one of IPv6 is one of IPv4.
func parse(address string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(address)
	if ap, apErr := netip.ParseAddrPort(address); apErr == nil {
		ip, err = ap.Addr(), nil
	}
	return ip.Unmap().WithZone(""), err == nil
}
