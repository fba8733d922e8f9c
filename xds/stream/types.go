package stream

import (
	"sync"
	"weak"
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

// Resource is one resource of a [Generation].
type Resource struct {
	// Version identifies the content; never empty.
	Version string
	Body    []byte // the message's encoding, without the Any
	// Refs are the names of the route configurations that a listener refers to;
	// nil means that they are not known. Other types have none: the endpoints of
	// a cluster have its name.
	Refs []string
}

// Generation is everything a peer may have at one moment, by type and name.
// Immutable, but for a cache of differences that has its own lock; must not be
// copied.
type Generation struct {
	// Number orders generations for status; it does not enter the protocol.
	Number uint64
	Types  map[TypeURL]map[string]Resource
	// HoldRemovals means that what is missing here may only not be known yet:
	// nothing that a peer has is removed.
	HoldRemovals bool

	mu    sync.Mutex // guards diffs
	diffs map[weak.Pointer[Generation]]map[TypeURL]Delta
}

// Delta is what changed in one type from one generation to another.
type Delta struct {
	Changed []string // new ones too; sorted
	Removed []string // sorted
}
