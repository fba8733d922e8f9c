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

// socketMatchKey is the metadata by which Envoy selects a transport socket.
const socketMatchKey = "envoy.transport_socket_match"

// oneIsEnough is an overprovisioning factor, in percent. Envoy takes a priority for well to the
// degree of factor * well endpoints / all endpoints, at most 100 %, in integers of 64 bits, and
// the factor has 32. With this one, a single endpoint of a million that is well makes 100 %.
// A constant gives equal bytes for equal endpoints.
const oneIsEnough = 100_000_000

func buildEndpoints(p *view.Endpoints) *endpointv3.ClusterLoadAssignment {
	return loadAssignment(nameOf(p.Ref), p.Localities, p.Auto)
}

// loadAssignment sets only what differs from Envoy's defaults, because there are very many
// endpoints. Localities have a weight in clusters with locality-weighted load balancing.
// With auto, endpoints without mTLS are marked. Where there are endpoints of last resort, one
// well endpoint of the first priority gets all requests.
func loadAssignment(name string, list []view.LocalityEndpoints, auto bool) *endpointv3.ClusterLoadAssignment {
	out := &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: make([]*endpointv3.LocalityLbEndpoints, 0, len(list))}
	for i := range list {
		l := &list[i]
		group := &endpointv3.LocalityLbEndpoints{
			Locality:    locality(l.Locality),
			Priority:    l.Priority,
			LbEndpoints: make([]*endpointv3.LbEndpoint, 0, len(l.Endpoints)),
		}
		if l.Weight > 0 {
			group.LoadBalancingWeight = wrapperspb.UInt32(l.Weight)
		}
		for j := range l.Endpoints {
			group.LbEndpoints = append(group.LbEndpoints, lbEndpoint(&l.Endpoints[j], auto))
		}
		out.Endpoints = append(out.Endpoints, group)
		if l.LastResort {
			out.Policy = &endpointv3.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(oneIsEnough)}
		}
	}
	return out
}

// lbEndpoint is an endpoint. By default, Envoy takes it for healthy, with weight 1.
func lbEndpoint(e *view.Endpoint, auto bool) *endpointv3.LbEndpoint {
	out := &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: address(e.Address, e.Port)},
		},
	}
	if e.Unhealthy {
		out.HealthStatus = corev3.HealthStatus_UNHEALTHY
	}
	if e.Weight > 1 {
		out.LoadBalancingWeight = wrapperspb.UInt32(e.Weight)
	}
	if auto && !e.MTLS {
		out.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{socketMatchKey: plaintextOnly()}}
	}
	if e.Workload != "" {
		if out.Metadata == nil {
			out.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
		}
		out.Metadata.FilterMetadata["istio"] = &structpb.Struct{Fields: map[string]*structpb.Value{workloadKey: structpb.NewStringValue(e.Workload)}}
	}
	return out
}

func locality(l mesh.Locality) *corev3.Locality {
	if l == (mesh.Locality{}) {
		return nil
	}
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
}

// address is an IP address, a DNS name, or "unix:///path".
func address(a string, port uint32) *corev3.Address {
	if path, ok := strings.CutPrefix(a, "unix://"); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       a,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}
