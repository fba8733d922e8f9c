package stream

// TypeURL is the type of a resource, such as [ClusterType].
type TypeURL string

// The types that this package orders; others are served as they come.
const (
	ClusterType     TypeURL = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType    TypeURL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType    TypeURL = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType       TypeURL = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	VirtualHostType TypeURL = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
	SecretType      TypeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// Resource is one resource of a [Generation].
type Resource struct {
	Version string
	Body    []byte // the message's encoding, without the Any
}

// Generation is everything a peer may have at one moment, by type and name.
// Immutable.
type Generation struct {
	// Number orders generations for status; it does not enter the protocol.
	Number uint64
	Types  map[TypeURL]map[string]Resource
}
