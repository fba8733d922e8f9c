package envoy

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// socketMatchKey is where Envoy looks for what chooses a transport socket.
const socketMatchKey = "envoy.transport_socket_match"

func buildEndpoints(p *view.Endpoints) *endpointv3.ClusterLoadAssignment {
	return loadAssignment(nameOf(p.Ref), p.Localities)
}

func loadAssignment(name string, list []view.Locality) *endpointv3.ClusterLoadAssignment {
	out := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	for i := range list {
		l := &list[i]
		weight := uint32(0)
		group := &endpointv3.LocalityLbEndpoints{Locality: locality(l.Place), Priority: l.Priority}
		for j := range l.Endpoints {
			e := &l.Endpoints[j]
			weight += e.Weight
			group.LbEndpoints = append(group.LbEndpoints, lbEndpoint(e))
		}
		group.LoadBalancingWeight = wrapperspb.UInt32(weight)
		out.Endpoints = append(out.Endpoints, group)
	}
	return out
}

func lbEndpoint(e *view.Endpoint) *endpointv3.LbEndpoint {
	out := &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: address(e.Address, e.Port)},
		},
		HealthStatus:        corev3.HealthStatus_HEALTHY,
		LoadBalancingWeight: wrapperspb.UInt32(e.Weight),
	}
	if e.Unhealthy {
		out.HealthStatus = corev3.HealthStatus_UNHEALTHY
	}
	if e.MTLS {
		out.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{socketMatchKey: takesMTLS()}}
	}
	return out
}

// takesMTLS is the mark of endpoints that take mTLS of the mesh.
func takesMTLS() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"tlsMode": structpb.NewStringValue("istio")}}
}

func locality(l mesh.Locality) *corev3.Locality {
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
}

// address is an IP address, a name, or "unix:///path".
func address(a string, port uint32) *corev3.Address {
	if path, ok := strings.CutPrefix(a, "unix://"); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       a,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}
