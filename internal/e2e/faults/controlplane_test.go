package faults

import (
	"maps"
	"testing"
)

// TestControlPlaneKilled shows that nobody notices: no request fails, no Envoy
// loses its stream, and the next control plane sends nothing, because nothing
// has changed.
func TestControlPlaneKilled(t *testing.T) {
	s := newShop(t)
	s.start()
	load := s.client.StartLoad(t, s.url, 100)
	load.Wait(t, 100)
	type streams struct{ connected, attempts, successes, failures, connections int }
	see := func() map[string]streams {
		out := map[string]streams{}
		for _, h := range s.names() {
			c := s.stats(h, "^control_plane|^cluster.xds-grpc;.upstream_cx_total|cds.update_|lds.update_")
			out[h] = streams{
				c["control_plane.connected_state"],
				c["cluster_manager.cds.update_attempt"] + c["listener_manager.lds.update_attempt"],
				c["cluster_manager.cds.update_success"] + c["listener_manager.lds.update_success"],
				c["cluster_manager.cds.update_failure"] + c["listener_manager.lds.update_failure"],
				c["cluster.xds-grpc;.upstream_cx_total"],
			}
		}
		return out
	}
	before := see()
	for h, v := range before {
		if v.connected != 1 || v.connections == 0 {
			t.Fatalf("the Envoy of %s is not connected, or its stats have other names: %+v", h, v)
		}
	}
	if n := sum(s.metrics(), "fairlead_xds_resources_sent_total"); n == 0 {
		t.Fatal("nothing was counted when everything was sent")
	}
	s.Server.Kill()
	load.Wait(t, 200)
	s.StartServer()
	s.awaitLive()
	load.Wait(t, 100)
	unharmed(t, load)
	if after := see(); !maps.Equal(before, after) {
		t.Errorf("Envoys have noticed:\nbefore %+v\nafter  %+v", before, after)
	}
	m := s.metrics()
	if n := sum(m, "fairlead_xds_resources_sent_total"); n != 0 {
		t.Errorf("the restarted control plane sent %d resources: %v", n, m)
	}
	if sum(m, "pilot_xds") != len(s.hosts) {
		t.Errorf("there are %d streams, or the metrics have other names: %v", sum(m, "pilot_xds"), m)
	}
}

// TestControlPlaneRemembersWhoIsOut shows that a restart sends nobody to a
// workload that was out before, although its agent has not said so yet.
func TestControlPlaneRemembersWhoIsOut(t *testing.T) {
	s := newShop(t)
	s.evenly()
	s.start()
	s.apps["orders-v2"].Kill()
	s.awaitHealth("orders-v2", "unhealthy")
	s.awaitOnly("orders-v1")
	load := s.client.StartLoad(t, s.url, 100)
	load.Wait(t, 50)
	// Away for so long that agents try again at different times.
	s.Server.Kill()
	load.Wait(t, 300)
	s.StartServer()
	s.awaitHealth("orders-v2", "unhealthy")
	load.Wait(t, 100)
	unharmed(t, load)
	if n := sum(s.metrics(), "fairlead_xds_resources_sent_total"); n != 0 {
		t.Errorf("the restarted control plane sent %d resources", n)
	}
	s.apps["orders-v2"] = s.StartApp(s.host("orders-v2"))
	s.awaitAnswerOf("orders-v2")
}
