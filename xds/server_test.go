package xds

import (
	"slices"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

const ordersCluster = "Cluster outbound|8080||orders.mesh"

func TestSnapshotReachesProxies(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	r := newRig(t, o, nil)
	web := r.connect(t, node("web", "127.0.0.11"), nil)
	captured := node("orders", "127.0.0.12")
	captured.Interception = "REDIRECT"
	orders := r.connect(t, captured, nil)
	eventually(t, "both have the cluster", func() bool { return web.has(ordersCluster) && orders.has(ordersCluster) })
	st := r.synced(t, "web.shop")
	if st.Host != "vm1" || st.ServiceAccount.Name != "web" || st.Workload.Name != "web" || st.Partial || st.Stale != "" {
		t.Errorf("status %+v", st)
	}
	if got := r.synced(t, "orders.shop"); got.Encryption != cache.EncryptionMixed {
		t.Errorf("encryption %q", got.Encryption)
	}

	// A new service reaches both, and the rollout records it.
	o.Service("stock", 9090)
	next := o.Snapshot(r.mesh.Snapshot())
	r.mesh.publish(next)
	eventually(t, "both have the new cluster", func() bool {
		return web.has("Cluster outbound|9090||stock.mesh") && orders.has("Cluster outbound|9090||stock.mesh")
	})
	eventually(t, "the change is known to have arrived", func() bool {
		c, ok := r.server.Convergence(next.Generation)
		return ok && !c.Done.IsZero() && c.Affected == 2 && c.Accepted == 2
	})
	eventually(t, "it is logged", func() bool { return strings.Contains(r.log.String(), "applied=2/2") })
	if !strings.Contains(r.log.String(), "stock.yaml") {
		t.Error("the log does not name the file")
	}

	rows, err := r.server.Sent(t.Context(), "web.shop")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, row := range rows {
		if row.Name == "outbound|8080||orders.mesh" && row.Type == stream.ClusterType {
			found = row.Accepted && len(row.Body) > 0 && len(row.Origins) > 0
		}
	}
	if !found {
		t.Errorf("what was sent does not say so: %d rows", len(rows))
	}
}

func TestReconnectToAnotherServerSendsNothing(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	first := newRig(t, o, nil)
	a := first.connect(t, node("web", "127.0.0.11"), nil)
	first.synced(t, "web.shop")
	eventually(t, "it has endpoints", func() bool { return a.has("ClusterLoadAssignment outbound|8080||orders.mesh") })
	first.synced(t, "web.shop")
	a.cancel()
	<-a.err
	second := newRig(t, smallmesh.Shop(), nil)
	b := second.connect(t, node("web", "127.0.0.11"), a.client)
	st := second.synced(t, "web.shop")
	if len(st.Types) != 3 {
		t.Errorf("types %+v", st.Types)
	}
	if n := b.received(); n != 0 {
		t.Errorf("%d resources sent again", n)
	}
}

func TestNackAffectsNoOtherProxy(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	r := newRig(t, o, nil)
	bad := func(name string) bool { return strings.Contains(name, "stock") }
	web := r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{reject: bad})
	orders := r.connect(t, node("orders", "127.0.0.12"), nil)
	r.synced(t, "web.shop")
	r.synced(t, "orders.shop")
	o.Service("stock", 9090).Service("more", 9091)
	next := o.Snapshot(r.mesh.Snapshot())
	r.mesh.publish(next)
	eventually(t, "the good part arrives everywhere", func() bool {
		return web.has("Cluster outbound|9091||more.mesh") && orders.has("Cluster outbound|9090||stock.mesh")
	})
	eventually(t, "the rejection is logged", func() bool {
		c, _ := r.server.Convergence(next.Generation)
		return !c.Done.IsZero() && c.Accepted == 1 && len(c.Rejected) > 0 && c.Rejected[0].Reason == "does not compute"
	})
	if st := r.synced(t, "orders.shop"); st.Partial {
		t.Errorf("orders %+v", st)
	}
	for _, p := range r.server.Proxies() {
		if p.Name == "web.shop" && (p.Synced || len(p.Types[0].Rejected) != 1) {
			t.Errorf("web %+v", p)
		}
		if from := p.Origins[stream.ClusterType]["outbound|9090||stock.mesh"]; p.Name == "web.shop" && (len(from) == 0 || from[0] != "stock.yaml:1:1") {
			t.Errorf("the origin of what is rejected is %q", p.Origins)
		}
	}
	eventually(t, "it is logged", func() bool { return strings.Contains(r.log.String(), "change rejected by a proxy") })
	m, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m {
		if f.GetName() == "pilot_xds_cds_reject" && f.GetMetric()[0].GetGauge().GetValue() != 1 {
			t.Errorf("metric %v", f)
		}
	}
}

func TestSlowProxyDelaysNoOther(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	r := newRig(t, o, nil)
	slow := r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{slow: make(chan struct{}, 1000)})
	fast := r.connect(t, node("orders", "127.0.0.12"), nil)
	r.synced(t, "orders.shop")
	for i := range 5 {
		o.Service("s"+string(rune('a'+i)), 9000+uint32(i))
		r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
		r.synced(t, "orders.shop")
	}
	if !fast.has("Cluster outbound|9004||se.mesh") || slow.received() != 0 {
		t.Error("the fast one waits for the slow one, or the slow one is not slow")
	}
	for range 100 {
		slow.slow <- struct{}{}
	}
	r.synced(t, "web.shop")
	for _, p := range r.server.Proxies() {
		if p.Name == "web.shop" && p.Types[0].SentGeneration != 6 {
			t.Errorf("not merged: %+v", p.Types[0])
		}
	}
}

func TestRejectedPeers(t *testing.T) {
	t.Parallel()
	pair := []mesh.ServiceAccount{{Namespace: "shop", Name: "web"}}
	router := node("web", "127.0.0.11")
	router.Type = bootstrap.TypeRouter
	none := node("web", "127.0.0.11")
	none.ServiceAccount = ""
	const generic = "the control plane's log and proxy-status say why"
	for name, c := range map[string]struct {
		peer *Peer
		node *bootstrap.Node
		why  string
		told string // to the peer
	}{
		"no-certificate": {nil, node("web", "127.0.0.11"), "no certificate", generic},
		"other-account":  {&Peer{Host: "vm1", Pairs: pair}, node("orders", "127.0.0.12"), "entitled to shop/web", generic},
		// A host does not learn whether an address is another's.
		"other-address":   {&Peer{Host: "vm1", Pairs: pair}, node("web", "127.0.0.12"), "not with service account", `has address 127.0.0.12 with serviceAccount "web" in namespace "shop"`},
		"unknown-address": {&Peer{Host: "vm1", Pairs: pair}, node("web", "127.0.0.99"), "of a catalog, has address 127.0.0.99; add one", `has address 127.0.0.99 with serviceAccount "web" in namespace "shop"`},
		"anonymous":       {&Peer{Host: "vm1", Anonymous: true, Pairs: pair}, node("web", "127.0.0.99"), "has address 127.0.0.99; add one", generic},
		"router":          {&Peer{Host: "vm1", Pairs: pair}, router, "--type router", generic},
		"no-pair":         {&Peer{Host: "vm1"}, none, "names no service account", generic},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, smallmesh.Shop(), nil)
			r.admission.peer.Store(c.peer)
			a := r.connect(t, c.node, nil)
			err := <-a.err
			if status.Code(err) != codes.PermissionDenied || strings.Contains(err.Error(), c.why) || !strings.HasSuffix(err.Error(), c.told) {
				t.Errorf("the peer gets %v", err)
			}
			list := r.server.Refused()
			if len(list) != 1 || !strings.Contains(list[0].Reason, c.why) {
				t.Errorf("listed %+v, want %q", list, c.why)
			}
			if !strings.Contains(r.log.String(), "proxy not admitted") {
				t.Error("not logged")
			}
			if a.received() != 0 {
				t.Error("the rejected peer got resources")
			}
		})
	}
}

func TestRefusalIsForgottenOnceAdmitted(t *testing.T) {
	t.Parallel()
	o := new(smallmesh.Objects).Workload("orders", "127.0.0.12", nil)
	r := newRig(t, o, nil)
	<-r.connect(t, node("web", "127.0.0.11"), nil).err
	if len(r.server.Refused()) != 1 {
		t.Fatal("not listed")
	}
	o.Workload("web", "127.0.0.11", nil)
	r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
	r.connect(t, node("web", "127.0.0.11"), nil)
	r.synced(t, "web.shop")
	if l := r.server.Refused(); len(l) != 0 {
		t.Errorf("still listed: %+v", l)
	}
}

func TestNoConfigurationBeforeFirstSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	if err := <-r.connect(t, node("web", "127.0.0.11"), nil).err; status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
}

func TestLabelsComeFromWorkload(t *testing.T) {
	t.Parallel()
	s := smallmesh.Shop().Snapshot(nil)
	n := node("web", "127.0.0.11")
	v, err := verifyNode(Peer{Pairs: []mesh.ServiceAccount{{Namespace: "shop", Name: "web"}}}, n)
	if err != nil {
		t.Fatal(err)
	}
	w, err := v.workload(s)
	if err != nil {
		t.Fatal(err)
	}
	n.Addresses = append(n.Addresses, node("orders", "127.0.0.12").Address)
	p := v.proxy(s, w)
	if p.Labels["app"] != "web" || p.Interception != view.InterceptNone || len(p.Addresses) != 1 {
		t.Errorf("proxy %+v", p)
	}
}

func TestProxyKeepsConfigurationWithoutWorkload(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	r := newRig(t, o, nil)
	a := r.connect(t, node("web", "127.0.0.11"), nil)
	r.synced(t, "web.shop")
	before := a.received()
	fewer := &smallmesh.Objects{Fragment: mesh.Fragment{Services: o.Services, Workloads: o.Workloads[:1]}}
	r.mesh.publish(fewer.Snapshot(r.mesh.Snapshot()))
	eventually(t, "the status says so", func() bool {
		p := r.server.Proxies()
		return strings.Contains(p[0].Stale, "no longer in the mesh") && !p[0].Synced
	})
	if !a.has(ordersCluster) || a.received() != before {
		t.Error("its configuration changed")
	}
	r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
	r.synced(t, "web.shop")
}

// TestStaleSaysWhatDiffers: a workload that is still there, but not as the host is, is not called removed.
func TestStaleSaysWhatDiffers(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	r := newRig(t, o, nil)
	r.connect(t, node("web", "127.0.0.11"), nil)
	r.synced(t, "web.shop")
	at := slices.IndexFunc(o.Workloads, func(w *mesh.Workload) bool { return w.Address == "127.0.0.11" })
	for _, c := range []struct {
		edit func(w *mesh.Workload)
		says string
	}{
		{func(w *mesh.Workload) { w.ServiceAccount = "other" }, `workload shop/web at its address 127.0.0.11 has service account "shop/other", and the host is "shop/web"`},
		{func(w *mesh.Workload) { w.Address = "127.0.0.99" }, "its workload shop/web has address 127.0.0.99, and the host has 127.0.0.11"},
		{func(w *mesh.Workload) { w.Name = "third"; w.ServiceAccount = "other" }, `workload shop/third at its address 127.0.0.11 has service account "shop/other"`},
	} {
		edited := *o.Workloads[at]
		c.edit(&edited)
		workloads := slices.Clone(o.Workloads)
		workloads[at] = &edited
		slices.SortFunc(workloads, func(a, b *mesh.Workload) int { return a.Compare(b.Key) })
		next := &smallmesh.Objects{Fragment: mesh.Fragment{Services: o.Services, Workloads: workloads}}
		r.mesh.publish(next.Snapshot(r.mesh.Snapshot()))
		eventually(t, c.says, func() bool { return strings.HasPrefix(r.server.Proxies()[0].Stale, c.says) })
	}
	r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
	r.synced(t, "web.shop")
	if st := r.server.Proxies()[0].Stale; st != "" {
		t.Errorf("all is as it was, and the proxy is stale: %s", st)
	}
}

func TestHoldsRemovalsWhileIncomplete(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	first := newRig(t, o, nil)
	a := first.connect(t, node("web", "127.0.0.11"), nil)
	first.synced(t, "web.shop")
	eventually(t, "it has the cluster", func() bool { return a.has(ordersCluster) })
	first.synced(t, "web.shop")
	a.cancel()
	<-a.err

	// A restarted server that knows only the workloads yet.
	second := newRig(t, nil, nil)
	part := (&smallmesh.Objects{Fragment: mesh.Fragment{Workloads: o.Workloads}}).Snapshot(nil)
	part.Incomplete = true
	second.mesh.publish(part)
	b := second.connect(t, node("web", "127.0.0.11"), a.client)
	second.synced(t, "web.shop")
	if _, ok := a.client.Accepted(stream.ClusterType)["outbound|8080||orders.mesh"]; !ok {
		t.Fatal("removed for being unknown")
	}
	second.mesh.publish(o.Snapshot(second.mesh.Snapshot()))
	second.synced(t, "web.shop")
	if b.received() != 0 {
		t.Errorf("%d resources sent", b.received())
	}
}

func TestDiagnostics(t *testing.T) {
	t.Parallel()
	warned := mesh.Key{Kind: mesh.KindSidecar, Namespace: "shop", Name: "x"}
	built := mesh.Key{Kind: mesh.KindDestinationRule, Namespace: "shop", Name: "y"}
	r := newRig(t, smallmesh.Shop(), nil)
	r.connect(t, node("web", "127.0.0.11"), nil)
	r.connect(t, node("orders", "127.0.0.12"), nil)
	r.synced(t, "web.shop")
	r.synced(t, "orders.shop")
	for _, c := range r.server.connections() {
		o := *c.current.Load()
		o.View = &view.View{Stack: &view.Stack{}, Warnings: []view.Warning{{Key: warned, Origin: &mesh.Origin{Path: "x.yaml", Line: 3, Column: 7}, Message: "left out"}}}
		resources := *o.Resources
		resources.Diagnostics = []envoy.Diagnostic{{Key: built, Origin: &mesh.Origin{Path: "y.yaml", Line: 4, Column: 8}, Message: "not built"}}
		o.Resources = &resources
		c.current.Store(&o)
	}
	want := []DiagnosticCount{
		{Diagnostic: Diagnostic{Key: built, Origin: "y.yaml:4:8", Message: "not built"}, Proxies: 2},
		{Diagnostic: Diagnostic{Key: warned, Origin: "x.yaml:3:7", Message: "left out"}, Proxies: 2},
	}
	if got := r.server.Diagnostics(); !slices.Equal(got, want) {
		t.Errorf("diagnostics %+v, want %+v", got, want)
	}
}

// Reports of an agent set health and Envoy state.
func TestReports(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), nil)
	a := r.connect(t, node("web", "127.0.0.11"), nil)
	r.synced(t, "web.shop")
	for _, req := range []*discovery.DeltaDiscoveryRequest{
		{TypeUrl: bootstrap.HealthType},
		{TypeUrl: bootstrap.HealthType, ErrorDetail: &rpcstatus.Status{Message: "http probe: 503"}},
		{TypeUrl: bootstrap.EnvoyStateType, ResourceNamesSubscribe: []string{string(bootstrap.EnvoyAbsent)}},
		{TypeUrl: bootstrap.EnvoyStateType, ResourceNamesSubscribe: []string{string(bootstrap.EnvoyStarting)}},
		{TypeUrl: bootstrap.EnvoyStateType, ResourceNamesSubscribe: []string{string(bootstrap.EnvoyRejecting)}},
		{TypeUrl: bootstrap.EnvoyStateType, ResourceNamesSubscribe: []string{string(bootstrap.EnvoyRejecting), `{"total":1,"not_ready":1,"list":[{"name":"shop","state":"missing"}]}`}},
		{TypeUrl: bootstrap.EnvoyStateType, ResourceNamesSubscribe: []string{string(bootstrap.EnvoyRejecting), "no report"}},
	} {
		if err := a.stream.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the status has it", func() bool {
		p := r.server.Proxies()[0]
		return p.EnvoyState == bootstrap.EnvoyRejecting && p.Credentials != nil && p.Credentials.List[0].Name == "shop" && p.Health == mesh.Unhealthy && p.HealthReason == "decided elsewhere: rejecting"
	})
	a.cancel()
	want := "opened shop/web 127.0.0.11\nprobe 1 \nprobe 2 http probe: 503\nenvoy absent\nenvoy starting\nenvoy rejecting\nclosed"
	eventually(t, "the health source got all reports", func() bool {
		r.health.mu.Lock()
		defer r.health.mu.Unlock()
		return strings.Join(r.health.calls, "\n") == want
	})
}
