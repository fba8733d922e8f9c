package mesh

import (
	"net/netip"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// Networks are the networks of the mesh, Istio's MeshNetworks: which endpoints are in which
// network, and through which gateways other networks reach them.
type Networks struct {
	Meta
	Spec *meshconfig.MeshNetworks
}

// ParseRange reads fromCidr of MeshNetworks: a CIDR block, or one address.
func ParseRange(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, err
		}
		return netip.PrefixFrom(a.WithZone(""), a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err
}

// reachOfNetworks is the reach of a change of the networks.
func reachOfNetworks(prev, next *Networks) Reach {
	switch {
	case prev == next:
		return ReachNone
	case prev == nil || next == nil || !sameHash(&prev.Meta, &next.Meta):
		return ReachConfig
	default:
		return ReachNone
	}
}

// networksChange is the change of the networks.
func networksChange(prev, next *Networks, reach Reach) Change {
	c := Change{Op: Updated, Reach: reach}
	newest := next
	switch {
	case prev == nil:
		c.Op = Added
	case next == nil:
		c.Op, newest = Removed, prev
	}
	c.Key, c.Origin = newest.Key, newest.Origin
	return c
}
