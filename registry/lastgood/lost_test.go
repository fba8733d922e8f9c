package lastgood_test

import (
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestLostGateways: the guard decides about gateways of networks that were lost while the server was
// stopped, as about objects.
func TestLostGateways(t *testing.T) {
	t.Parallel()
	networks := func(gateways ...*meshconfig.Network_IstioNetworkGateway) *mesh.Fragment {
		return &mesh.Fragment{MeshNetworks: &mesh.Networks{Spec: &meshconfig.MeshNetworks{Networks: map[string]*meshconfig.Network{"a": {Gateways: gateways}}}}}
	}
	with := networks(&meshconfig.Network_IstioNetworkGateway{Port: 15443})
	for name, c := range map[string]struct {
		restored, now *mesh.Fragment
		lost          bool
	}{
		"all_gateways": {with, networks(), true},
		"all_networks": {with, &mesh.Fragment{}, true},
		"the_same":     {with, with, false},
		"none_to_lose": {networks(), &mesh.Fragment{}, false},
		"first_start":  {nil, with, false},
	} {
		if got := lastgood.Lost(c.restored, c.now); got != c.lost {
			t.Errorf("%s: lost %v", name, got)
		}
	}
}
