package xds

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// TestProxyOfCatalogInstance: one address has several instances of a catalog, like a
// Consul node, and its host is entitled to some of their identities.
func TestProxyOfCatalogInstance(t *testing.T) {
	t.Parallel()
	o := new(smallmesh.Objects).
		Instance("web", "web-1", "127.0.0.11", 8080, map[string]string{"version": "v1"}).
		Instance("web", "web-2", "127.0.0.11", 8081, map[string]string{"version": "v2"}).
		Instance("api", "api-1", "127.0.0.11", 9090, nil).
		Instance("web", "team%2Fweb 5", "127.0.0.11", 8082, map[string]string{"version": "v5"}).
		Instance("web", "web-3", "127.0.0.12", 8080, nil)
	s := o.Snapshot(nil)
	pairs := []mesh.ServiceAccount{{Namespace: "shop", Name: "web"}}
	claimed := func(n *bootstrap.Node) (*mesh.Workload, error) {
		v, err := verifyNode(Peer{Host: "n1", Pairs: pairs}, n)
		if err != nil {
			return nil, err
		}
		return v.workload(s)
	}
	for name, version := range map[string]string{"n1": "v5", "web-1": "v1", "web-2": "v2", "api-1": "v5", "team/web 5": "v5", "5": "v5", "n1/web-1": "v5"} {
		n := node("web", "127.0.0.11")
		n.WorkloadName, n.Name = name, name
		w, err := claimed(n)
		if err != nil || w.ServiceAccount != "web" || w.Labels["version"] != version {
			t.Errorf("named %s: %+v, %v; want version %s", name, w, err, version)
		}
	}
	if _, err := claimed(node("api", "127.0.0.11")); err == nil || !strings.Contains(err.Error(), "entitled to shop/web") {
		t.Errorf("for another service of the host: %v", err)
	}
	if _, err := claimed(node("web", "127.0.0.13")); err == nil || !strings.Contains(err.Error(), "no instance of a catalog, has address 127.0.0.13") {
		t.Errorf("for an address that the catalog does not have: %v", err)
	}
	if w, err := claimed(node("web", "127.0.0.12")); err != nil || w.Name != "consul/dc1/n1/web-3" {
		t.Errorf("for another host's address: %+v, %v", w, err) // whoever is entitled to web may be any of its instances
	}
}
