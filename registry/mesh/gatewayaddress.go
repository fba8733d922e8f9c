package mesh

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// GatewayAddresses are the addresses of names of gateways in MeshNetworks. It is immutable; nil is
// empty.
type GatewayAddresses struct{ names map[string][]netip.Addr }

// NewGatewayAddresses returns the addresses of each name, which is as [Networks.GatewayNames] has it.
func NewGatewayAddresses(names map[string][]netip.Addr) *GatewayAddresses {
	return &GatewayAddresses{names: maps.Clone(names)}
}

// Equal reports whether the addresses are these.
func (a *GatewayAddresses) Equal(names map[string][]netip.Addr) bool {
	if a == nil {
		return len(names) == 0
	}
	return maps.EqualFunc(a.names, names, slices.Equal[[]netip.Addr])
}

// of are the addresses of a name; none if it is not known.
func (a *GatewayAddresses) of(name string) []netip.Addr {
	if a == nil {
		return nil
	}
	return a.names[name]
}

// gatewayName is the name of a gateway; empty if it is an address, or a service of the mesh.
func gatewayName(g *meshconfig.Network_IstioNetworkGateway) string {
	if _, err := netip.ParseAddr(g.GetAddress()); err == nil {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(g.GetAddress(), "."))
}

// GatewayNames are the names of gateways that have to be looked up: in lower case, without a final
// dot, sorted, each once.
func (n *Networks) GatewayNames() []string {
	if n == nil {
		return nil
	}
	var out []string
	for _, network := range n.Spec.GetNetworks() {
		for _, g := range network.GetGateways() {
			if name := gatewayName(g); name != "" {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// withAddresses are the networks of which names of gateways are replaced by their addresses. What has
// none stays a name. The result is the previous one if it is the same.
func (n *Networks) withAddresses(a *GatewayAddresses, prev *Networks) *Networks {
	names := n.GatewayNames()
	if len(names) == 0 {
		return n
	}
	var sign strings.Builder
	for _, name := range names {
		_, _ = fmt.Fprintln(&sign, name, a.of(name)) // never fails
	}
	if prev != nil && prev.of == n && prev.sign == sign.String() {
		return prev
	}
	out := &Networks{Meta: n.Meta, Spec: proto.CloneOf(n.Spec), of: n, sign: sign.String()}
	out.Hash = hashAs(n.Hash, out.sign)
	for _, network := range out.Spec.GetNetworks() {
		list := make([]*meshconfig.Network_IstioNetworkGateway, 0, len(network.GetGateways()))
		for _, g := range network.GetGateways() {
			addresses := a.of(gatewayName(g))
			for _, address := range addresses {
				x := proto.CloneOf(g)
				x.Gw = &meshconfig.Network_IstioNetworkGateway_Address{Address: address.String()}
				list = append(list, x)
			}
			if len(addresses) == 0 {
				list = append(list, g)
			}
		}
		network.Gateways = list
	}
	return out
}
