package mesh

import "net/netip"

// VirtualRanges are where the control plane gives addresses to hosts that have none
// ([Allocations]): class E, of which the settings choose a part, and 2001:2::/48, Istio's range of
// IPv6. No network routes them, so that nobody has a network there.
func VirtualRanges() (ipv4, ipv6 netip.Prefix) {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{240}), 4), netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0, 2}), 48)
}

// isVirtual reports whether an address or range has addresses that the control plane gives to hosts.
// Hosts of all namespaces have them, those that come later, too. So a bound source has no range
// of them and routes none of them. It may write the address of one of its hosts into the
// service, and package addresses refuses that if another host has the address.
func isVirtual(a Hostname) bool {
	p, is := prefixOf(a)
	ipv4, ipv6 := VirtualRanges()
	return is && (p.Overlaps(ipv4) || p.Overlaps(ipv6))
}

// hostsOfControlPlane are the owners of virtual addresses.
func hostsOfControlPlane() *rival {
	return &rival{who: "the hosts that the control plane gives addresses: a source that is bound to namespaces names single ones in a ServiceEntry, and routes the host instead"}
}
