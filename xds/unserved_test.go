package xds

import (
	"testing"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestStaleProxyStillListens: a proxy whose workload has another service account now keeps its listeners. It
// is stale, and nobody is told that there is no proxy.
func TestStaleProxyStillListens(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	o.Workloads[0].Labels = map[string]string{"app": "orders", "security.istio.io/tlsMode": "istio"}
	r := newRig(t, o, nil)
	captured := func(account, address string) *agent {
		n := node(account, address)
		n.Interception = "REDIRECT"
		a := r.connect(t, n, nil)
		r.synced(t, account+".shop")
		return a
	}
	captured("web", "127.0.0.11")
	if got := r.server.Unserved(); len(got) != 1 || got[0].Proxy != "" || got[0].Key.Name != "orders" {
		t.Fatalf("without a proxy: %+v", got)
	}
	orders := captured("orders", "127.0.0.12")
	if got := r.server.Unserved(); len(got) > 0 {
		t.Fatalf("with its proxy: %+v", got)
	}
	moved := *o.Workloads[0]
	moved.ServiceAccount, moved.Hash = "buyers", mesh.Hash{1}
	now := *o
	now.Workloads = []*mesh.Workload{&moved, o.Workloads[1]}
	r.mesh.publish(now.Snapshot(r.mesh.Snapshot()))
	eventually(t, "its proxy is stale", func() bool {
		for _, p := range r.server.Proxies() {
			if p.Name == "orders.shop" {
				return p.Connected && p.Stale != ""
			}
		}
		return false
	})
	r.synced(t, "web.shop")
	if got := r.server.Unserved(); len(got) > 0 {
		t.Errorf("its proxy is stale, and there is %+v", got)
	}
	orders.cancel()
	eventually(t, "its proxy has left", func() bool { return len(r.server.Unserved()) == 1 })
}

// TestUnservedDoesNotWait: who asks while the list is made anew gets the last one.
func TestUnservedDoesNotWait(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	o.Workloads[0].Labels = map[string]string{"app": "orders", "security.istio.io/tlsMode": "istio"}
	r := newRig(t, o, nil)
	n := node("web", "127.0.0.11")
	n.Interception = "REDIRECT"
	r.connect(t, n, nil)
	r.synced(t, "web.shop")
	last := r.server.Unserved()
	if len(last) != 1 {
		t.Fatalf("%+v", last)
	}
	r.server.unserved.finding.Lock() // as another one who asks
	plain := *o.Workloads[0]
	plain.Labels, plain.Hash = map[string]string{"app": "orders", "security.istio.io/tlsMode": "disabled"}, mesh.Hash{1}
	now := *o
	now.Workloads = []*mesh.Workload{&plain, o.Workloads[1]}
	r.mesh.publish(now.Snapshot(r.mesh.Snapshot()))
	r.synced(t, "web.shop")
	if got := r.server.Unserved(); len(got) != 1 {
		t.Errorf("while the list is made anew: %+v", got)
	}
	r.server.unserved.finding.Unlock()
	if got := r.server.Unserved(); len(got) > 0 {
		t.Errorf("after that: %+v", got)
	}
}
