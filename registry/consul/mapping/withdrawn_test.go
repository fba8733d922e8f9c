package mapping

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestMaintenanceIsWithdrawn: what a person took out of service stays out,
// whatever the agent beside it finds; a critical check alone is not that.
func TestMaintenanceIsWithdrawn(t *testing.T) {
	t.Parallel()
	hashes := map[mesh.Hash]string{}
	for id, want := range map[string]bool{"cpu": false, "_service_maintenance:web-1": true, "_node_maintenance": true} {
		r := newMapper(t, Config{}).Map(&Input{
			Source: "consul", Service: "web", Datacenter: "dc1", Local: true,
			Entries: []*api.ServiceEntry{{
				Node:    &api.Node{Node: "n1", Address: "10.0.0.1"},
				Service: &api.AgentService{ID: "web-1", Service: "web", Port: 8080},
				Checks: api.HealthChecks{
					{Node: "n1", CheckID: "disk", Name: "disk", Status: api.HealthCritical},
					{Node: "n1", CheckID: id, Name: id, Status: api.HealthCritical},
				},
			}},
		})
		w := r.Fragment.Workloads[0]
		if w.Health != mesh.Unhealthy || w.Withdrawn != want {
			t.Errorf("%s: health %d, withdrawn %v", id, w.Health, w.Withdrawn)
		}
		hashes[w.Hash] = id
	}
	if len(hashes) != 2 {
		t.Errorf("%d hashes for in and out of maintenance", len(hashes))
	}
}
