package mesh

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// Networks are the networks of the mesh, Istio's MeshNetworks: which endpoints are in which
// network, and through which gateways other networks reach them.
type Networks struct {
	Meta
	Spec *meshconfig.MeshNetworks
	// of are the networks as they are written, where a snapshot has addresses in place of names, and
	// sign says which.
	of   *Networks
	sign string
}

// ParseRange reads fromCidr of MeshNetworks: a CIDR block, or one address. Addresses of IPv4 are the
// same if they are written as IPv6 (::ffff:10.0.0.0/104).
func ParseRange(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if !strings.Contains(text, "/") {
		var a netip.Addr
		a, err = netip.ParseAddr(text)
		p = netip.PrefixFrom(a.WithZone(""), a.BitLen())
	}
	if err != nil {
		return netip.Prefix{}, err
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
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

// GatewayLoss is what networks lost: hosts of other networks would connect to the addresses behind
// them directly.
type GatewayLoss struct {
	Networks *Networks // as they were
	// Names are the networks that had gateways and have none, sorted.
	Names []string
	// Had is how many networks had gateways, and Left how many have.
	Had, Left int
}

// LostGateways are the networks of which all gateways are gone; nil if there are none.
func (d *Difference) LostGateways() *GatewayLoss {
	prev, next := d.prev.MeshNetworks, d.next.MeshNetworks
	if prev == nil || prev == next {
		return nil
	}
	loss := &GatewayLoss{Networks: prev}
	count := func(n *Networks, with func(name string)) {
		if n == nil {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(n.Spec.GetNetworks())) {
			if len(n.Spec.GetNetworks()[name].GetGateways()) > 0 {
				with(name)
			}
		}
	}
	left := map[string]bool{}
	count(next, func(name string) { left[name] = true })
	loss.Left = len(left)
	count(prev, func(name string) {
		if loss.Had++; !left[name] {
			loss.Names = append(loss.Names, name)
		}
	})
	if len(loss.Names) == 0 {
		return nil
	}
	return loss
}
