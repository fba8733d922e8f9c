package webhook

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/internal/localaddr"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Limits of MeshNetworks: every gateway of a network is an endpoint of every service in it.
const (
	maxNetworks         = 1000
	maxNetworkEndpoints = 10_000
	maxGatewayNames     = 256
	// MaxNetworkGateways is how many gateways of a network there can be.
	MaxNetworkGateways = 64
)

// MeshNetworks judges the networks of a mesh (Istio's ValidateMeshNetworks), and what Istio's API
// asks for and istiod does not check: ranges and registries of one network each, and gateways with
// an address.
func MeshNetworks(m *meshconfig.MeshNetworks) []Fault {
	var faults []Fault
	c := cursor{faults: &faults}.at("networks")
	if n := len(m.GetNetworks()); n > maxNetworks {
		c.wrong("there are %d networks; at most %d are read", n, maxNetworks)
		return faults
	}
	endpoints := 0
	registries := map[string]string{}
	var ranges []networkRange
	for _, name := range sorted(m.GetNetworks()) {
		at, n := c.key(name), m.GetNetworks()[name]
		if name == "" {
			at.wrong("the name of the network is empty")
		}
		endpoints += len(n.GetEndpoints())
		for i, e := range n.GetEndpoints() {
			ranges = append(ranges, at.item("endpoints", i).networkEndpoints(name, e, registries)...)
		}
		if len(n.GetGateways()) > MaxNetworkGateways {
			at.at("gateways").wrong("there are %d gateways; a network has at most %d", len(n.GetGateways()), MaxNetworkGateways)
		}
		for i, g := range n.GetGateways() {
			at.item("gateways", i).networkGateway(g)
		}
	}
	if names := (&mesh.Networks{Spec: m}).GatewayNames(); len(names) > maxGatewayNames {
		c.wrong("the gateways have %d names; at most %d are looked up", len(names), maxGatewayNames)
	}
	if endpoints > maxNetworkEndpoints {
		c.wrong("the networks have %d endpoints; at most %d are read", endpoints, maxNetworkEndpoints)
		return faults
	}
	overlaps(ranges)
	return faults
}

// networkRange is fromCidr of a network, and where it is written.
type networkRange struct {
	at      cursor
	network string
	prefix  netip.Prefix
}

func (c cursor) networkEndpoints(network string, e *meshconfig.Network_NetworkEndpoints, registries map[string]string) []networkRange {
	switch ne := e.GetNe().(type) {
	case *meshconfig.Network_NetworkEndpoints_FromCidr:
		prefix, err := mesh.ParseRange(ne.FromCidr)
		if why := whyNotSubnet(ne.FromCidr); why != "" || err != nil {
			c.at("fromCidr").because(cmp.Or(why, fmt.Sprintf("%q is no range of addresses", ne.FromCidr)))
			return nil
		}
		return []networkRange{{c.at("fromCidr"), network, prefix}}
	case *meshconfig.Network_NetworkEndpoints_FromRegistry:
		c = c.at("fromRegistry")
		other, taken := registries[ne.FromRegistry]
		switch {
		case !isDNSLabel(ne.FromRegistry):
			c.wrong("%q is no name of a registry: write Kubernetes for everything in files, or the name of a Consul datacenter", ne.FromRegistry)
		case taken && other != network:
			c.wrong("the registry %s is in network %q already; a registry is in one network", ne.FromRegistry, other)
		default:
			registries[ne.FromRegistry] = network
			if ne.FromRegistry != mesh.ClusterID && strings.EqualFold(ne.FromRegistry, mesh.ClusterID) {
				c.warn("no effect, unless a Consul datacenter has this name: for everything in files, write %s", mesh.ClusterID)
			}
		}
	default:
		c.wrong("the entry says nothing; write fromCidr or fromRegistry")
	}
	return nil
}

// overlaps reports ranges of different networks with an address in common.
func overlaps(list []networkRange) {
	slices.SortStableFunc(list, func(a, b networkRange) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	// Two ranges have nothing in common, or one has the other in it: the widest ones around are on a stack.
	var around []networkRange
	for _, r := range list {
		for len(around) > 0 && !around[len(around)-1].prefix.Overlaps(r.prefix) {
			around = around[:len(around)-1]
		}
		if i := slices.IndexFunc(around, func(o networkRange) bool { return o.network != r.network }); i >= 0 {
			r.at.wrong("%s overlaps with %s of network %q; an address is in one network", r.prefix, around[i].prefix, around[i].network)
			continue
		}
		around = append(around, r)
	}
}

func (c cursor) networkGateway(g *meshconfig.Network_IstioNetworkGateway) {
	switch gw := g.GetGw().(type) {
	case *meshconfig.Network_IstioNetworkGateway_Address:
		c.gatewayAddress(gw.Address)
	case *meshconfig.Network_IstioNetworkGateway_RegistryServiceName:
		c.at("registryServiceName").because(whyNotService(gw.RegistryServiceName))
	default:
		c.wrong("the gateway has no address; write address or registryServiceName")
	}
	c.at("port").because(whyNotPort(g.GetPort()))
	if g.GetLocality() != "" {
		c.at("locality").warn("no effect here: as in Istio, a gateway counts for the localities of the endpoints behind it")
	}
}

// whyNotService says why a text is no HOST or NAMESPACE/HOST, or "".
func whyNotService(text string) string {
	namespace, host, named := strings.Cut(text, "/")
	switch {
	case !named:
		return whyNotFQDN(text)
	case !isDNSLabel(namespace):
		return fmt.Sprintf("%q is no name of a namespace; write HOST or NAMESPACE/HOST", namespace)
	default:
		return whyNotFQDN(host)
	}
}

func (c cursor) gatewayAddress(address string) {
	c = c.at("address")
	a, err := netip.ParseAddr(address)
	switch {
	case err != nil && whyNotFQDN(address) != "":
		c.wrong("%q is neither an IP address nor a DNS name; write an address or a name of the gateway", address)
	case err != nil && localaddr.What(address) != "":
		c.wrong("%q is %s, and other hosts cannot connect to it; write an address or a name of the gateway", address, localaddr.What(address))
	case err != nil: // the server looks it up
	case a.Zone() != "" || a.Unmap().IsUnspecified() || a.Unmap().IsLoopback() || a.Unmap().IsMulticast():
		c.wrong("%s is no address that other hosts can connect to; write an address of the gateway", address)
	}
}
