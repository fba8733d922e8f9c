package view

import (
	"maps"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// UnreachedWorkload is a workload that proxies of other networks do not reach, or not as one may
// expect.
type UnreachedWorkload struct {
	*mesh.Workload
	// Owner is what it is written in: a WorkloadEntry, or the service that has it as an endpoint.
	Owner   *mesh.Meta
	Network string
	// Service is the one for which the workload takes no mTLS; nil means that its network has no
	// gateway, and proxies of other networks connect to its address.
	Service *mesh.Service
}

// Unreached returns such workloads: the first one of each network without a gateway, and all that are
// left out in other networks because they take no mTLS, each once. Without gateways of any network there
// are none.
func (x *Index) Unreached() (out []UnreachedWorkload) {
	if x.networks == nil || len(x.networks.Gateways) == 0 {
		return nil
	}
	noGateway, seen := map[string]bool{}, map[*mesh.Workload]bool{}
	for _, svc := range x.services {
		in := clusterInput{serviceInput: &serviceInput{svc: svc, authn: x.authn.in(svc.Namespace), workloads: x.workloadsOf(svc)}}
		in.networks = x.networksFor(&in.workloads)
		for _, port := range svc.Ports {
			in.port = port
			for _, m := range in.membersAt(port) {
				u := UnreachedWorkload{Workload: m.Workload, Owner: &m.Meta, Network: in.networks.of(m.Workload)}
				if m.Name == "" {
					u.Owner = &svc.Meta
				}
				switch gateways := x.networks.Gateways[u.Network]; {
				case u.Network == "" || seen[m.Workload]:
				case len(gateways) == 0 && !noGateway[u.Network]:
					noGateway[u.Network] = true
					out = append(out, u)
				case len(gateways) > 0 && !svc.External && port.Protocol != mesh.UDP && (!takesMTLS(m) || !x.endpointMTLS(in, m)):
					seen[m.Workload], u.Service = true, svc
					out = append(out, u)
				}
			}
		}
	}
	return out
}

// NetworksWithoutGateways are the networks of which all gateways are services that have no workload at the
// port; sorted.
func (x *Index) NetworksWithoutGateways() []string {
	if x.networks == nil {
		return nil
	}
	var out []string
	networks := x.s.MeshNetworks.Spec.GetNetworks()
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		if len(networks[name].GetGateways()) > 0 && len(x.networks.Gateways[name]) == 0 {
			out = append(out, name)
		}
	}
	return out
}
