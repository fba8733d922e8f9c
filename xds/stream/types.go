package stream

import (
	"strings"
	"sync"
)

// TypeURL is the type of a resource, such as [ClusterType].
type TypeURL string

// The types whose order this package knows. Others are served between endpoints and
// extensions.
const (
	ClusterType     TypeURL = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType    TypeURL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ExtensionType   TypeURL = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	ListenerType    TypeURL = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType       TypeURL = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	VirtualHostType TypeURL = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
	SecretType      TypeURL = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// Short is the last word of the type, for logs and metric labels: "Cluster".
func (t TypeURL) Short() string {
	for i := len(t) - 1; i >= 0; i-- {
		if t[i] == '.' || t[i] == '/' {
			return string(t[i+1:])
		}
	}
	return string(t)
}

// splitHostName splits the name of a virtual host, ROUTECONFIG/HOST.
func splitHostName(name string) (routeConfig, host string, ok bool) { return strings.Cut(name, "/") }

// Layer is a part of a generation that peers can share: all proxies of a namespace share
// the layer with the clusters that they see. Immutable.
type Layer struct {
	// Name tells which layers of two generations are compared with each other. It is not
	// sent.
	Name  string
	Types map[TypeURL]*Set
}

// Generation is everything that a peer is to have at one time. Immutable; must not be
// copied.
type Generation struct {
	// Number orders generations in the status. It is not sent.
	Number uint64
	// Layers hold the resources. If two layers have a resource of the same type and name,
	// the earlier layer wins.
	Layers []*Layer
	// HoldRemovals means that resources may be missing here only because a source has not
	// been read yet: nothing that a peer has is removed.
	HoldRemovals bool

	mergedSets struct {
		once sync.Once
		of   map[TypeURL]*mergedSet
		// hosts are the virtual hosts by route configuration.
		hosts map[string]*mergedSet
	}
}

// setDelta is what changed in one type from one set to another.
type setDelta struct {
	changed []*Resource // as they are now, new ones too; sorted by name
	removed []string    // sorted
}
