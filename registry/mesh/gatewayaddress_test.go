package mesh_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

func namedGateway(address string) *meshconfig.Network_IstioNetworkGateway {
	return &meshconfig.Network_IstioNetworkGateway{Gw: &meshconfig.Network_IstioNetworkGateway_Address{Address: address}, Port: 15443}
}

// TestNamesOfGatewaysHaveAddresses: a snapshot has networks with the addresses of names, the same ones as
// long as nothing of it changes, and says when they do.
func TestNamesOfGatewaysHaveAddresses(t *testing.T) {
	t.Parallel()
	written := &mesh.Networks{
		Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindMeshNetworks}, Hash: mesh.Hash{1}, Origin: &mesh.Origin{Path: "networks.yaml"}},
		Spec: &meshconfig.MeshNetworks{Networks: map[string]*meshconfig.Network{"east": {Gateways: []*meshconfig.Network_IstioNetworkGateway{
			namedGateway("GW.example."), namedGateway("203.0.113.9"), namedGateway("other.example"),
		}}}},
	}
	list := func(text ...string) (out []netip.Addr) {
		for _, a := range text {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	fallback := &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{}}
	merge := func(prev *mesh.Snapshot, names map[string][]netip.Addr) *mesh.Snapshot {
		var addresses *mesh.GatewayAddresses
		if names != nil {
			addresses = mesh.NewGatewayAddresses(names)
		}
		return mesh.Merge(mesh.Input{
			Prev: prev, Fallback: fallback, Fragments: []*mesh.Fragment{{Source: "networks", MeshNetworks: written}}, GatewayAddresses: addresses,
		})
	}
	text := func(s *mesh.Snapshot) string {
		var out strings.Builder
		for _, g := range s.MeshNetworks.Spec.GetNetworks()["east"].GetGateways() {
			fmt.Fprintf(&out, "%s:%d ", g.GetAddress(), g.GetPort())
		}
		return out.String()
	}
	var prev *mesh.Snapshot
	for i, c := range []struct {
		names   map[string][]netip.Addr
		want    string
		changed bool
	}{
		{nil, "GW.example.:15443 203.0.113.9:15443 other.example:15443 ", true},
		{map[string][]netip.Addr{"gw.example": list("203.0.113.1", "203.0.113.2")}, "203.0.113.1:15443 203.0.113.2:15443 203.0.113.9:15443 other.example:15443 ", true},
		{map[string][]netip.Addr{"gw.example": list("203.0.113.1", "203.0.113.2")}, "203.0.113.1:15443 203.0.113.2:15443 203.0.113.9:15443 other.example:15443 ", false},
		{map[string][]netip.Addr{"gw.example": list("203.0.113.1", "203.0.113.2"), "nobody.example": list("203.0.113.3")}, "203.0.113.1:15443 203.0.113.2:15443 203.0.113.9:15443 other.example:15443 ", false},
		{map[string][]netip.Addr{"gw.example": list("2001:db8::1"), "other.example": list("203.0.113.9")}, "2001:db8::1:15443 203.0.113.9:15443 203.0.113.9:15443 ", true},
	} {
		s := merge(prev, c.names)
		if got := text(s); got != c.want {
			t.Errorf("%d: %s, want %s", i, got, c.want)
		}
		if prev != nil {
			same, listed := s.MeshNetworks == prev.MeshNetworks, len(s.Changes) > 0
			if same == c.changed || listed != c.changed || (s.MeshNetworks.Hash == prev.MeshNetworks.Hash) == c.changed {
				t.Errorf("%d: the same networks %v, changes %v", i, same, s.Changes)
			}
		}
		prev = s
	}
	if got := text(merge(nil, nil)); text(&mesh.Snapshot{MeshNetworks: written}) != got {
		t.Error("the networks as they are written have changed")
	}
}
