package xds

import (
	"testing"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

func TestUnacknowledgedNamesAreResentAfterReconnect(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), nil)
	a := r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{slow: make(chan struct{})}) // answers nothing
	eventually(t, "clusters are on their way", func() bool {
		p := r.server.Proxies()
		return len(p) == 1 && len(p[0].Types) > 0 && p[0].Types[0].SentGeneration == 1
	})
	a.cancel()
	<-a.err
	eventually(t, "it has gone", func() bool { p := r.server.Proxies(); return len(p) == 1 && !p[0].Connected })
	// It lists all resources in the right versions; one of them was in an unanswered
	// response.
	versions := map[string]string{}
	for res := range r.resourcesOfWeb(t).Generation.All(stream.ClusterType) {
		versions[res.Name] = res.Version
	}
	b := r.connect(t, node("web", "127.0.0.11"), stream.NewClient(stream.ClientConfig{
		Wants:    map[stream.TypeURL]stream.Want{stream.ClusterType: {All: true}, stream.ListenerType: {All: true}},
		Accepted: map[stream.TypeURL]map[string]string{stream.ClusterType: versions},
	}))
	eventually(t, "it is sent again", func() bool { return b.has(ordersCluster) })
}

// The server may notice the end of a stream long after the proxy has reconnected.
func TestReconnectBeforeEndOfLastStreamIsNoticed(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), nil)
	versions := map[stream.TypeURL]map[string]string{}
	g := r.resourcesOfWeb(t).Generation
	for _, url := range cache.Types() {
		for res := range g.All(url) {
			if versions[url] == nil {
				versions[url] = map[string]string{}
			}
			versions[url][res.Name] = res.Version
		}
	}
	old := r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{slow: make(chan struct{})}) // answers nothing
	eventually(t, "clusters are on their way", func() bool {
		p := r.server.Proxies()
		return len(p) == 1 && len(p[0].Types) > 0 && p[0].Types[0].SentGeneration == 1
	})
	b := r.connect(t, node("web", "127.0.0.11"), stream.NewClient(stream.ClientConfig{
		Wants:    map[stream.TypeURL]stream.Want{stream.ClusterType: {All: true}, stream.ListenerType: {All: true}},
		Accepted: versions,
	}))
	eventually(t, "what was not answered is sent again", func() bool { return b.has(ordersCluster) })
	old.cancel()
	<-old.err
	eventually(t, "it is listed once, as connected", func() bool { p := r.server.Proxies(); return len(p) == 1 && p[0].Connected })
	b.cancel()
	<-b.err
	eventually(t, "it is listed once, as gone", func() bool { p := r.server.Proxies(); return len(p) == 1 && !p[0].Connected })
}

// resourcesOfWeb are what the proxy of web is to have.
func (r *rig) resourcesOfWeb(t *testing.T) *cache.Resources {
	t.Helper()
	return mustGet(t, r.server.cache, r.mesh.Snapshot(), view.Proxy{
		ID: "x", Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "web"},
		Addresses: []string{"127.0.0.11"}, Labels: map[string]string{"app": "web"}, Interception: view.InterceptNone,
	}, cache.Routes{}, cache.Configuration{}).Resources
}
