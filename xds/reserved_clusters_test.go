package xds

import (
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// TestNoResourceUsesBootstrapClusters: in random meshes, only the source of a proxy's own
// secrets names a cluster of its bootstrap.
func TestNoResourceUsesBootstrapClusters(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			c := newRandomMesh(seed)
			var s *mesh.Snapshot
			resources := 0
			for step := range 60 {
				c.change()
				s = c.snapshot(s)
				if step%20 != 19 {
					continue
				}
				for i := range c.proxies {
					for p := range view.Build(s, c.proxy(i)).Parts() {
						rs, _ := envoy.Build(p)
						for _, r := range rs {
							resources++
							m, err := envoy.Decode(r)
							if err != nil {
								t.Fatal(err)
							}
							for _, found := range envoytest.Misuses(m, bootstrap.SDSCluster, bootstrap.ALSCluster, bootstrap.Reserved()) {
								t.Errorf("step %d: %s %q: %s", step, r.TypeURL, r.Name, found.At)
							}
						}
					}
				}
			}
			if resources < 1000 {
				t.Errorf("only %d resources were looked at", resources)
			}
		})
	}
}
