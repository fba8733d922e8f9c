package envoy

import (
	"crypto/sha256"
	"encoding/base64"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/view"
)

// The resource types that this package builds.
const (
	ClusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	// ExtensionType is for ECDS resources: configurations of HTTP filters that listeners name.
	ExtensionType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	ListenerType  = "type.googleapis.com/envoy.config.listener.v3.Listener"
	// NameType is for what the proxy's agent answers to DNS queries. No Envoy subscribes to it.
	NameType  = bootstrap.NameType
	RouteType = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	// VirtualHostType is for VHDS resources, which BuildVirtualHost makes.
	VirtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
)

// Build makes the resources of one part. It is pure: the same part gives the same bytes on
// every machine.
func Build(p view.Part) ([]Resource, []Diagnostic) {
	switch p := p.(type) {
	case *view.Cluster:
		return []Resource{resource(ClusterType, nameOf(p.Ref), marshal(buildCluster(p)), p.Origins())}, nil
	case *view.Endpoints:
		return []Resource{resource(EndpointType, nameOf(p.Ref), marshal(buildEndpoints(p)), p.Origins())}, nil
	case *view.Extension:
		e, diagnostics := buildExtension(p)
		return []Resource{resource(ExtensionType, string(p.Slot), marshal(e), p.Origins())}, diagnostics
	case *view.Listener:
		l, diagnostics := buildListener(p)
		return []Resource{resource(ListenerType, p.Name, marshal(l), p.Origins())}, diagnostics
	case *view.Name:
		return buildName(p), nil
	case *view.RouteConfiguration:
		t, diagnostics := BuildVHDSRoutes(p)
		whole := t.Inline()
		whole.Origins = p.Origins()
		return []Resource{whole}, diagnostics
	default:
		return nil, nil
	}
}

// resource returns a Resource with its version.
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
	if err != nil { // only for text that is not UTF-8, which decoding has rejected
		panic("envoy: marshaling " + string(m.ProtoReflect().Descriptor().FullName()) + ": " + err.Error())
	}
	return body
}

// pack encodes a message deterministically, which anypb.New does not.
func pack(m proto.Message) *anypb.Any {
	return &anypb.Any{
		TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName()),
		Value:   marshal(m),
	}
}

// optional is nil for a zero duration.
func optional(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
