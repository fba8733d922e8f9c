package mesh_test

import (
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestTopologyOf: the annotation of a workload comes before that of its group, as a whole.
func TestTopologyOf(t *testing.T) {
	t.Parallel()
	config := func(trusted uint32) *meshconfig.ProxyConfig {
		if trusted == 0 {
			return nil
		}
		return &meshconfig.ProxyConfig{GatewayTopology: &meshconfig.Topology{NumTrustedProxies: trusted}}
	}
	for _, c := range []struct {
		workload, group uint32
		grouped         bool
		want            uint32
	}{
		{0, 0, false, 0},
		{2, 0, false, 2},
		{0, 3, true, 3},
		{2, 3, true, 2},
		{0, 3, false, 0},
	} {
		g := &mesh.WorkloadGroup{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadGroup, Namespace: "shop", Name: "edge"}}, ProxyConfig: config(c.group)}
		w := &mesh.Workload{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "shop", Name: "edge-1"}}, ProxyConfig: config(c.workload)}
		if c.grouped {
			w.Annotations = map[string]string{mesh.GroupAnnotation: "edge"}
		}
		s := mesh.NewSnapshot(nil, nil, []*mesh.Fragment{{WorkloadGroups: []*mesh.WorkloadGroup{g}, Workloads: []*mesh.Workload{w}}})
		if got := s.TopologyOf(w); got.GetNumTrustedProxies() != c.want || (got == nil) != (c.want == 0) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
