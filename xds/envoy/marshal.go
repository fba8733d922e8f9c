package envoy

import (
	"crypto/sha256"
	"encoding/base64"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// The types of resource that are built here.
const (
	ClusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	// VirtualHostType is of virtual hosts that travel by themselves, which
	// BuildHost makes.
	VirtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// Build makes the resources of one part. It is pure: the same part gives the
// same bytes, on every machine.
func Build(p view.Part) ([]Resource, []Diagnostic) {
	switch p := p.(type) {
	case *view.Cluster:
		return []Resource{resource(ClusterType, nameOf(p.Ref), marshal(buildCluster(p)), p.Origins())}, nil
	case *view.Endpoints:
		return []Resource{resource(EndpointType, nameOf(p.Ref), marshal(buildEndpoints(p)), p.Origins())}, nil
	case *view.Listener:
		return []Resource{resource(ListenerType, p.Name, marshal(buildListener(p)), p.Origins())}, nil
	case *view.RouteConfiguration:
		t, diagnostics := BuildTable(p)
		whole := t.Whole()
		whole.Origins = p.Origins()
		return []Resource{whole}, diagnostics
	default:
		return nil, nil
	}
}

// resource names a body, and hashes it.
func resource(typeURL, name string, body []byte, origins []*mesh.Origin) Resource {
	sum := sha256.Sum256(body)
	return Resource{
		TypeURL: typeURL,
		Name:    name,
		Version: base64.RawURLEncoding.EncodeToString(sum[:8]),
		Body:    body,
		Origins: origins,
	}
}

func marshal(m proto.Message) []byte {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil { // only text that is not UTF-8, which decoding has refused
		panic("envoy: marshaling " + string(m.ProtoReflect().Descriptor().FullName()) + ": " + err.Error())
	}
	return body
}

// pack wraps a message deterministically, which anypb.New does not.
func pack(m proto.Message) *anypb.Any {
	return &anypb.Any{
		TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()),
		Value:   marshal(m),
	}
}

// optional is a duration that is left out when it is zero.
func optional(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
