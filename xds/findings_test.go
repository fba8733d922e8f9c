package xds

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// TestFindingsOfConnectedProxies: a finding has the number of connected proxies that route there, and since
// when; it ends with its cause, or with its last proxy. While a source is missing there is none.
func TestFindingsOfConnectedProxies(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	r := newRig(t, o, nil)
	captured := func(account, address string) *agent {
		n := node(account, address)
		n.Interception = "REDIRECT"
		return r.connect(t, n, nil)
	}
	web := captured("web", "127.0.0.11")
	captured("orders", "127.0.0.12")
	r.synced(t, "web.shop")
	r.synced(t, "orders.shop")
	publish := func(host string, incomplete bool) {
		o := *o
		o.VirtualServices = []*mesh.VirtualService{{
			Meta: smallmesh.Meta(mesh.KindVirtualService, "orders", host),
			Spec: &networking.VirtualService{Hosts: []string{"orders.mesh"}, Http: []*networking.HTTPRoute{{
				Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}},
			}}},
		}}
		s := o.Snapshot(r.mesh.Snapshot())
		s.Incomplete = incomplete
		r.mesh.publish(s)
	}
	has := func(proxies int) func() bool {
		return func() bool {
			list := r.server.Findings()
			if proxies == 0 {
				return len(list) == 0
			}
			return len(list) == 1 && list[0].Kind == view.NoDestination && list[0].Host == "gone.mesh" && list[0].Proxies == proxies && !list[0].Since.IsZero()
		}
	}
	publish("gone.mesh", false)
	eventually(t, "both proxies have the finding", has(2))
	began := r.server.Findings()
	publish("gone.mesh", true)
	eventually(t, "a source is missing", has(0))
	publish("gone.mesh", false)
	eventually(t, "all sources are there", has(2))
	if again := r.server.Findings(); !again[0].Since.After(began[0].Since) {
		t.Errorf("it began at %v, and again at %v", began[0].Since, again[0].Since)
	}
	again := r.server.Findings()
	web.cancel()
	eventually(t, "one proxy has left", has(1))
	if now := r.server.Findings(); !slices.Equal(now, []FindingStatus{{again[0].Finding, again[0].Since, 1}}) {
		t.Errorf("it was %+v, and is %+v", again, now)
	}
	publish("orders.mesh", false)
	eventually(t, "it is mended", has(0))
}
