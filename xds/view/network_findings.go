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

// NetworkWithoutGateway is a network of MeshNetworks that has gateways, of which none can be used.
type NetworkWithoutGateway struct {
	Network string
	// Why says of each gateway why it is none.
	Why []string
}

// NetworksWithoutGateways are such networks, sorted. Proxies of other networks connect to the addresses of
// their workloads, as in Istio.
func NetworksWithoutGateways(s *mesh.Snapshot) (out []NetworkWithoutGateway) {
	if s.MeshNetworks == nil {
		return nil
	}
	networks := s.MeshNetworks.Spec.GetNetworks()
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		without := NetworkWithoutGateway{Network: name}
		for _, g := range networks[name].GetGateways() {
			list, why := gatewaysOf(s, g)
			if len(list) > 0 {
				without.Why = nil
				break
			}
			without.Why = append(without.Why, why)
		}
		if len(without.Why) > 0 {
			out = append(out, without)
		}
	}
	return out
}

// UnknownRegistries are the values of fromRegistry that are the source of no workload, sorted. known are
// names of sources besides those of workloads.
func UnknownRegistries(s *mesh.Snapshot, known []string) []string {
	if s.MeshNetworks == nil {
		return nil
	}
	wanted := map[string]bool{}
	for _, n := range s.MeshNetworks.Spec.GetNetworks() {
		for _, e := range n.GetEndpoints() {
			if r := e.GetFromRegistry(); r != "" && r != mesh.ClusterID && !slices.Contains(known, r) {
				wanted[r] = true
			}
		}
	}
	for _, w := range s.Workloads {
		if len(wanted) == 0 {
			break
		}
		delete(wanted, w.Labels[mesh.LabelConsulDatacenter])
	}
	return slices.Sorted(maps.Keys(wanted))
}
