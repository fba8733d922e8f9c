package envoy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestNetworkCases asks real Envoys which endpoints they have, with priority, locality, weight and
// health, in meshes of several networks. The cases are the lines of the files' last parts:
//
//	PROXY CLUSTER: P0 REGION/ZONE ADDRESS:PORT WEIGHT, …
func TestNetworkCases(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/networks/*.txtar")
	fatalIf(t, err, "listing the cases")
	cases := 0
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		fatalIf(t, err, "reading %q", path)
		parts := map[string]string{}
		for _, f := range a.Files {
			parts[f.Name] = string(f.Data)
		}
		want := map[string]map[string]string{} // by proxy and cluster
		for line := range strings.Lines(parts["want"]) {
			of, endpoints, ok := strings.Cut(strings.TrimSpace(line), ": ")
			proxy, cluster, named := strings.Cut(of, " ")
			if !ok || !named {
				t.Fatalf("%s: %q is no case", path, line)
			}
			if want[proxy] == nil {
				want[proxy] = map[string]string{}
			}
			want[proxy][cluster] = endpoints
			cases++
		}
		var proxies map[string]proxyFile
		fatalIf(t, yaml.Unmarshal([]byte(parts["proxies.yaml"]), &proxies), "reading the proxies of %q", path)
		s := snapshotWithNetworks(t, parts)
		for _, name := range slices.Sorted(maps.Keys(proxies)) {
			t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar")+"/"+name, func(t *testing.T) {
				t.Parallel()
				f := &fixture{ca: newAuthority(t), version: envoytest.Ends()[0], rewire: func(node map[string]any) {
					if static, ok := node["staticResources"].(map[string]any); ok {
						delete(static, "listeners") // nobody connects
					}
				}}
				got := endpointsOf(t, f.start(t, s, proxies[name]))
				for _, cluster := range slices.Sorted(maps.Keys(got)) {
					if w := want[name][cluster]; got[cluster] != w {
						t.Errorf("%s %s: %s\nwant %s", name, cluster, got[cluster], w)
					}
					delete(want[name], cluster)
				}
				for cluster := range want[name] {
					t.Errorf("%s has no cluster %s", name, cluster)
				}
			})
		}
	}
	if cases < 20 {
		t.Errorf("there are only %d cases", cases)
	}
}

// snapshotWithNetworks is the mesh of a case.
func snapshotWithNetworks(t *testing.T, parts map[string]string) *mesh.Snapshot {
	t.Helper()
	s := snapshotOf(t, parts["mesh.yaml"], parts["meshconfig.yaml"])
	networks, faults := manifest.DecodeMeshNetworks("networks.yaml", []byte(parts["networks.yaml"]))
	refuse(t, faults)
	s.MeshNetworks = networks // nothing else has seen the snapshot
	return s
}

// endpointsOf are the endpoints of an Envoy's outbound clusters, by cluster, as the cases have them.
func endpointsOf(t *testing.T, e *envoytest.Envoy) map[string]string {
	t.Helper()
	var answer struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
				Health struct {
					EDS string `json:"eds_health_status"`
				} `json:"health_status"`
				Weight   int `json:"weight"`
				Priority int `json:"priority"`
				Locality struct {
					Region string `json:"region"`
					Zone   string `json:"zone"`
				} `json:"locality"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	fatalIf(t, json.Unmarshal([]byte(e.Admin(t, "/clusters?format=json")), &answer), "reading the clusters")
	out := map[string]string{}
	for _, c := range answer.Clusters {
		if !strings.HasPrefix(c.Name, "outbound") || !strings.HasSuffix(c.Name, ".shop.mesh") {
			continue
		}
		var list []string
		for _, h := range c.Hosts {
			place := strings.Trim(h.Locality.Region+"/"+h.Locality.Zone, "/")
			text := fmt.Sprintf("P%d %s:%d W%d", h.Priority, h.Address.Socket.Address, h.Address.Socket.Port, h.Weight)
			if place != "" {
				text = fmt.Sprintf("P%d %s %s:%d W%d", h.Priority, place, h.Address.Socket.Address, h.Address.Socket.Port, h.Weight)
			}
			if h.Health.EDS != "HEALTHY" {
				text += " " + h.Health.EDS
			}
			list = append(list, text)
		}
		slices.Sort(list)
		out[c.Name] = strings.Join(list, ", ")
	}
	return out
}
