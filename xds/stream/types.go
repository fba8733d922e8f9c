package stream

import (
	"strings"
	"sync"
)

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

// Short is the last word of the type, for people and metric labels: "Cluster".
func (t TypeURL) Short() string {
	for i := len(t) - 1; i >= 0; i-- {
		if t[i] == '.' || t[i] == '/' {
			return string(t[i+1:])
		}
	}
	return string(t)
}

// cutHost splits the name of a virtual host, RC/HOST.
func cutHost(name string) (table, host string, ok bool) { return strings.Cut(name, "/") }

// Layer is a part of a generation that others may have too: all proxies of a
// namespace share the layer of the clusters that they see. Immutable.
type Layer struct {
	// Name says which layers of two generations are compared with each other; it
	// does not enter the protocol.
	Name  string
	Types map[TypeURL]*Set
}

// Generation is everything a peer may have at one moment. Immutable; must not be
// copied.
type Generation struct {
	// Number orders generations for status; it does not enter the protocol.
	Number uint64
	// Layers are what it is made of; of two resources of one type and name that of
	// the earlier layer counts.
	Layers []*Layer
	// HoldRemovals means that what is missing here may only not be known yet:
	// nothing that a peer has is removed.
	HoldRemovals bool

	unions struct {
		once sync.Once
		of   map[TypeURL]*union
		// hosts are the virtual hosts by route configuration.
		hosts map[string]*union
	}
}

// Delta is what changed in one type from one generation to another.
type Delta struct {
	Changed []*Resource // as they are now, new ones too; sorted by name
	Removed []string    // sorted
}
