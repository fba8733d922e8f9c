package xds

import (
	"testing"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// asksOwn is a client that subscribes to what agents subscribe to.
func asksOwn(versions map[stream.TypeURL]map[string]string) *stream.Client {
	return stream.NewClient(stream.ClientConfig{
		Wants: map[stream.TypeURL]stream.Want{
			stream.ClusterType: {All: true}, stream.ListenerType: {All: true},
			bootstrap.ProxyConfigType: {Names: []string{bootstrap.ProxyConfigName}},
		},
		Accepted: versions,
	})
}

// ownOf is the ProxyConfig that a proxy has accepted, and its version.
func (r *rig) ownOf(t *testing.T, proxy string) (pc *meshconfig.ProxyConfig, version string) {
	t.Helper()
	pc = &meshconfig.ProxyConfig{}
	eventually(t, proxy+" has its ProxyConfig", func() bool {
		sent, err := r.server.Sent(t.Context(), proxy)
		for _, s := range sent {
			if s.Type == bootstrap.ProxyConfigType && s.Accepted && s.Version != "" {
				version = s.Version
				return proto.Unmarshal(s.Body, pc) == nil
			}
		}
		return err != nil && false
	})
	return pc, version
}

// TestAgentsGetTheirOwnProxyConfig: each agent learns who its workload is, from the mesh and not
// from its node, and only its own changes are sent to it. Proxies that have the same view keep
// sharing one generation. An Envoy that does not ask gets none.
func TestAgentsGetTheirOwnProxyConfig(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	o.Workload("calls-1", "10.9.0.1", map[string]string{"app": "calls", "version": "v1"})
	o.Workload("calls-2", "10.9.0.2", map[string]string{"app": "calls", "version": "v2"})
	for _, w := range o.Workloads[len(o.Workloads)-2:] {
		w.ServiceAccount = "calls"
	}
	r := newRig(t, o, nil)
	r.admission.peer.Store(&Peer{Host: "vm1", Pairs: []mesh.ServiceAccount{{Namespace: "shop", Name: "calls"}}})
	names := []string{"calls-1", "calls-2"}
	agents := map[string]*agent{}
	for i, name := range names {
		n := node("calls", []string{"10.9.0.1", "10.9.0.2"}[i])
		n.Name = name
		n.Labels = map[string]string{"app": "forged", "version": "forged"}
		agents[name] = r.connect(t, n, asksOwn(nil))
	}
	versions := map[string]string{}
	for i, name := range names {
		pc, version := r.ownOf(t, name+".shop")
		versions[name] = version
		who, err := bootstrap.WorkloadOf(pc.GetProxyMetadata())
		want := bootstrap.Workload{
			Name: name, Namespace: "shop", Cluster: "Kubernetes", CanonicalName: "calls", CanonicalRevision: []string{"v1", "v2"}[i],
			App: "calls", Version: []string{"v1", "v2"}[i],
		}
		if err != nil || who != want {
			t.Errorf("%s is told that it is %+v, %v; want %+v", name, who, err, want)
		}
	}
	silent := r.connect(t, func() *bootstrap.Node { n := node("calls", "10.9.0.1"); n.Name = "plain"; return n }(), nil)
	eventually(t, "all three are in step", func() bool { return r.server.convergedProxies() == 3 })
	if silent.has("ProxyConfig " + bootstrap.ProxyConfigName) {
		t.Error("a proxy that did not ask for it has a ProxyConfig")
	}
	generations := map[*stream.Generation]bool{}
	for _, c := range r.server.connections() {
		now := c.current.Load()
		generations[now.Resources.Generation] = true
		if plain := c.node.reported.Name == "plain"; plain != (now.own.set == nil) {
			t.Errorf("a ProxyConfig is made for %s: %t", c.node.reported.Name, !plain)
		}
	}
	if len(generations) != 1 {
		t.Errorf("%d generations for three proxies with equal views", len(generations))
	}

	// Only the proxy whose workload changed gets another one, and nothing else.
	before := map[string]int{}
	for name, a := range agents {
		before[name] = a.received()
	}
	last := len(o.Workloads) - 1
	changed := *o.Workloads[last]
	changed.Annotations = map[string]string{"istio.io/autoRegistrationGroup": "group"} // which is in no view
	changed.Hash[0]++
	o.Workloads[last] = &changed
	r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
	eventually(t, "calls-2 is told of its group", func() bool {
		version := agents["calls-2"].version("ProxyConfig " + bootstrap.ProxyConfigName)
		return version != versions["calls-2"]
	})
	if pc, _ := r.ownOf(t, "calls-2.shop"); pc.GetProxyMetadata()["ISTIO_META_WORKLOAD_NAME"] != "group" {
		t.Errorf("it is told %v", pc.GetProxyMetadata())
	}
	eventually(t, "all are in step again", func() bool { return r.server.convergedProxies() == 3 })
	if got := agents["calls-2"].received() - before["calls-2"]; got != 1 {
		t.Errorf("%d resources were sent to the one that changed", got)
	}
	if got := agents["calls-1"].received() - before["calls-1"]; got != 0 {
		t.Errorf("%d resources were sent to the other", got)
	}

	// Another server sends nothing to an agent that has everything.
	second := newRig(t, o, nil)
	second.admission.peer.Store(r.admission.peer.Load())
	accepted := map[stream.TypeURL]map[string]string{}
	for _, s := range r.server.Proxies()[0].Types {
		accepted[s.Type] = map[string]string{}
	}
	sent, err := r.server.Sent(t.Context(), "calls-1.shop")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sent {
		accepted[s.Type][s.Name] = s.Version
	}
	n := node("calls", "10.9.0.1")
	n.Name = "calls-1"
	client := asksOwn(accepted)
	for name := range accepted[stream.EndpointType] {
		client.Subscribe(stream.EndpointType, name)
	}
	back := second.connect(t, n, client)
	eventually(t, "it is in step with the other server", func() bool { return second.server.convergedProxies() == 1 })
	if got := back.received(); got != 0 {
		t.Errorf("%d resources were sent again: %v", got, back.got)
	}
}

// TestRejectedProxyConfigIsShown: an agent that cannot use its ProxyConfig is not in step, and the
// status says why.
func TestRejectedProxyConfigIsShown(t *testing.T) {
	t.Parallel()
	o := smallmesh.Shop()
	r := newRig(t, o, nil)
	a := &agent{reject: func(name string) bool { return name == bootstrap.ProxyConfigName }}
	r.connectWith(t, node("web", "127.0.0.11"), asksOwn(nil), a)
	eventually(t, "the rejection is known", func() bool {
		for _, p := range r.server.Proxies() {
			for _, s := range p.Types {
				if s.Type == bootstrap.ProxyConfigType && len(s.Rejected) == 1 && s.Rejected[0].Reason == "does not compute" {
					return !p.Synced
				}
			}
		}
		return false
	})
}
