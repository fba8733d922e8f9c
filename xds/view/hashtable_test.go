package view

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestTablesAreCountedAsClustersHaveThem: what is counted for a port and a subset is what its cluster has.
func TestTablesAreCountedAsClustersHaveThem(t *testing.T) {
	t.Parallel()
	hash := func(n string) string {
		return `"loadBalancer": {"consistentHash": {"useSourceIp": true, "ringHash": {"minimumRingSize": ` + n + `}}}`
	}
	policies := []string{
		"{}", "{" + hash("2") + "}", `{"portLevelSettings": [{"port": {"number": 80}}]}`, "{" + hash("3") + `, "portLevelSettings": [{"port": {"number": 80}, ` + hash("4") + `}]}`,
		"{" + hash("5") + `, "portLevelSettings": [{"port": {"number": 80}}]}`,
	}
	for _, whole := range policies {
		for _, subset := range append(policies, "null") {
			w := newMeshFixture(t)
			w.rule("shop", "r", `{"host": "a.shop.internal", "trafficPolicy": `+whole+`, "subsets": [{"name": "v1", "trafficPolicy": `+subset+`}]}`)
			r := &rule{spec: w.f.DestinationRules[0].Spec}
			for _, port := range []uint32{80, 81} {
				for _, name := range []string{"", "v1"} {
					got, want := mesh.BalancerOf(r.spec, port, r.subset(name)), r.policyFor(port, r.subset(name)).GetLoadBalancer()
					if !proto.Equal(got, want) {
						t.Errorf("%s with %s, port %d, subset %q: counted %v, the cluster has %v", whole, subset, port, name, got, want)
					}
				}
			}
		}
	}
}
