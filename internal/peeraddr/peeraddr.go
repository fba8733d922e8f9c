// Package peeraddr says what counts as one address where peers are counted that
// have proved nothing.
package peeraddr

import (
	"net"
	"net/netip"
)

// Group is an IPv4 address without its port, or the /64 of an IPv6 address, of
// which one host can have every address. What is neither stands for itself.
func Group(address string) string {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		if host, _, err := net.SplitHostPort(address); err == nil {
			return host
		}
		return address
	}
	ip := ap.Addr().Unmap()
	if ip.Is6() && !ip.IsLoopback() {
		if p, err := ip.WithZone("").Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}
