package registry

import (
	"fmt"
	"testing"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// networksOf is a source of networks, of which the first ones have a gateway.
func networksOf(networks, gateways int) *mesh.Fragment {
	spec := &meshconfig.MeshNetworks{Networks: map[string]*meshconfig.Network{}}
	for i := range networks {
		n := &meshconfig.Network{}
		if i < gateways {
			n.Gateways = []*meshconfig.Network_IstioNetworkGateway{{Gw: &meshconfig.Network_IstioNetworkGateway_Address{Address: "203.0.113.1"}, Port: 15443}}
		}
		spec.Networks[fmt.Sprintf("net-%02d", i)] = n
	}
	m := meta(mesh.KindMeshNetworks, "", "", "networks.yaml")
	m.Hash[0], m.Hash[1] = byte(networks), byte(gateways)
	return &mesh.Fragment{Source: "mesh-networks", MeshNetworks: &mesh.Networks{Meta: m, Spec: spec}}
}

// TestGuardOfNetworks: without their gateways, hosts would connect to addresses of other sites.
func TestGuardOfNetworks(t *testing.T) {
	t.Parallel()
	type step struct {
		after time.Duration
		next  *mesh.Fragment
		why   Reason // or nothing is held
	}
	none := &mesh.Fragment{Source: "mesh-networks"}
	for name, steps := range map[string][]step{
		"all_wait_for_a_person":       {{0, networksOf(2, 2), ""}, {0, networksOf(0, 0), GatewaysGone}, {time.Hour, networksOf(0, 0), GatewaysGone}},
		"one_is_all":                  {{0, networksOf(1, 1), ""}, {0, networksOf(1, 0), GatewaysGone}, {time.Hour, networksOf(1, 0), GatewaysGone}},
		"no_networks_at_all":          {{0, networksOf(2, 2), ""}, {0, none, GatewaysGone}, {time.Hour, none, GatewaysGone}},
		"one_of_two_goes_at_once":     {{0, networksOf(2, 2), ""}, {0, networksOf(2, 1), ""}},
		"many_wait_for_a_second":      {{0, networksOf(20, 20), ""}, {0, networksOf(20, 9), SourceShrank}, {9 * time.Second, networksOf(20, 9), SourceShrank}, {time.Second, networksOf(20, 9), ""}},
		"other_ones_start_again":      {{0, networksOf(20, 20), ""}, {0, networksOf(20, 9), SourceShrank}, {9 * time.Second, networksOf(20, 8), SourceShrank}, {9 * time.Second, networksOf(20, 8), SourceShrank}},
		"what_comes_back_is_in_force": {{0, networksOf(2, 2), ""}, {0, networksOf(0, 0), GatewaysGone}, {0, networksOf(2, 2), ""}},
		"those_without_may_go":        {{0, networksOf(9, 1), ""}, {0, networksOf(1, 1), ""}},
		"none_to_lose":                {{0, networksOf(9, 0), ""}, {0, networksOf(0, 0), ""}},
		"the_first_ones":              {{0, none, ""}, {0, networksOf(2, 2), ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := limits{share: 0.3, floor: 5, confirmAfter: 10 * time.Second}
			now := time.Unix(1, 0)
			var inForce *mesh.Fragment
			var held holds
			w := newWindow(DefaultRemovalWindow, nil, now)
			for i, s := range steps {
				now = now.Add(s.after)
				before := inForce
				r := reading{limits: l, prev: inForce, next: s.next, held: held, window: w, now: now}
				inForce, held = r.decide()
				if before == nil {
					w.first(mesh.Compare(nil, inForce))
				}
				want, n := s.next, 0
				if s.why != "" {
					want, n = before, 1
				}
				if inForce.MeshNetworks != want.MeshNetworks || len(held) != n {
					t.Fatalf("reading %d: in force %+v, %d held", i, inForce.MeshNetworks, len(held))
				}
				for key, h := range held {
					if h.reason != s.why || h.origin == nil || key.String() != "MeshNetworks" {
						t.Errorf("reading %d: %s is held for %q, of %s", i, key, h.reason, h.origin)
					}
				}
			}
		})
	}
}
