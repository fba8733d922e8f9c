package cache

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// TestNewResourcesAreContiguousInMemory: resources that are first sent together are
// adjacent in memory, so that they are written in few buffers.
func TestNewResourcesAreContiguousInMemory(t *testing.T) {
	t.Parallel()
	const services = 200
	c := New(view.Settings{})
	p := view.Proxy{
		ID: "a", Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "s0001"},
		Addresses: []string{"10.0.1.1"}, Interception: view.InterceptRedirect,
	}
	had := c.mustGet(t, smallmesh.Big(services).Snapshot(nil), p, Routes{Delivery: Auto}, Configuration{})
	for _, url := range []stream.TypeURL{stream.ClusterType, stream.EndpointType, stream.VirtualHostType} {
		r := &stream.Response{TypeURL: url, Resources: slices.Collect(had.Resources.Generation.All(url))}
		if len(r.Resources) < services {
			t.Fatalf("%d %s", len(r.Resources), url.Short())
		}
		// A piece for the response itself, and a few for what is in other layers.
		if n, most := len(r.AppendBuffers(nil)), 5+r.Size()/(8<<10); n > most {
			t.Errorf("%d %s of %d bytes are %d pieces, want at most %d", len(r.Resources), url.Short(), r.Size(), n, most)
		}
	}
}
