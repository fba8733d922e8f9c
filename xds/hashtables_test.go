package xds

import (
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// TestHashTablesOfConnectedProxies: the tables of a rule are in the status of proxies that call its host, and in the
// largest sum, while the rule is in force and a proxy is connected.
func TestHashTablesOfConnectedProxies(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	r := newRig(t, o, nil)
	n := node("web", "127.0.0.11")
	n.Interception = "REDIRECT"
	web := r.connect(t, n, nil)
	if st := r.synced(t, "web.shop"); st.HashTables.Entries != 0 || r.server.LargestHashTables().Entries != 0 {
		t.Errorf("without a rule there are %+v", st.HashTables)
	}
	publish := func(size uint64) {
		o := *o
		if size > 0 {
			o.DestinationRules = []*mesh.DestinationRule{{
				Meta: smallmesh.Meta(mesh.KindDestinationRule, "orders", "hash"),
				Spec: &networking.DestinationRule{Host: "orders.mesh", TrafficPolicy: &networking.TrafficPolicy{LoadBalancer: &networking.LoadBalancerSettings{
					LbPolicy: &networking.LoadBalancerSettings_ConsistentHash{ConsistentHash: &networking.LoadBalancerSettings_ConsistentHashLB{
						HashKey: &networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp{UseSourceIp: true},
						HashAlgorithm: &networking.LoadBalancerSettings_ConsistentHashLB_RingHash_{
							RingHash: &networking.LoadBalancerSettings_ConsistentHashLB_RingHash{MinimumRingSize: size},
						},
					}},
				}}},
			}}
		}
		r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
	}
	publish(4096)
	eventually(t, "the proxy has a ring", func() bool {
		sum := r.server.LargestHashTables()
		return sum.Clusters > 0 && sum.LargestEntries >= 4096 && sum.Largest.Host == "orders.mesh" && len(sum.LargestOrigins) > 0
	})
	if st := r.synced(t, "web.shop"); st.HashTables.Entries != r.server.LargestHashTables().Entries || st.HashTables.Largest.Kind != view.OutboundCluster {
		t.Errorf("the status has %+v, the largest is %+v", st.HashTables, r.server.LargestHashTables())
	}
	publish(0)
	eventually(t, "the rule is gone", func() bool { return r.server.LargestHashTables().Entries == 0 })
	publish(1 << 16)
	eventually(t, "it is there again", func() bool { return r.server.LargestHashTables().Entries >= 1<<16 })
	web.cancel()
	eventually(t, "the proxy has left", func() bool { return r.server.LargestHashTables().Entries == 0 })
	r.server.tables.mu.Lock()
	defer r.server.tables.mu.Unlock()
	if n := len(r.server.tables.known); n != 0 {
		t.Errorf("%d sums of proxies that left", n)
	}
}
