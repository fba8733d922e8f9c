package cache

import (
	"sync/atomic"

	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
)

// Work counts what a Cache has done.
type Work struct {
	// ViewsBuilt are views that differ from what the proxy had, ViewsKept those that do
	// not. Resources are the different contents for all proxies.
	ViewsBuilt, ViewsKept, Resources atomic.Uint64
	// Encoded are the resources that were encoded, and their bytes.
	Encoded ByType
}

// Counter counts resources, and bytes.
type Counter struct{ Resources, Bytes atomic.Uint64 }

// Add counts some more.
func (c *Counter) Add(resources, bytes int) {
	c.Resources.Add(uint64(resources))
	c.Bytes.Add(uint64(bytes))
}

// countedTypes are counted separately.
//
//nolint:gochecknoglobals // a read-only table
var countedTypes = [...]stream.TypeURL{
	stream.ClusterType, stream.EndpointType, stream.ExtensionType, stream.ListenerType, envoy.NameType, stream.RouteType, stream.VirtualHostType, "",
}

// Types are the types that are counted separately; the empty one stands for all others.
func Types() []stream.TypeURL { return countedTypes[:] }

// ByType has a Counter for each of [Types].
type ByType [len(countedTypes)]Counter

// Of is the counter of a type.
func (b *ByType) Of(t stream.TypeURL) *Counter {
	for i, c := range countedTypes {
		if c == t {
			return &b[i]
		}
	}
	return &b[len(b)-1]
}
