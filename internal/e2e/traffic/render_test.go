package traffic

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// TestRender renders every workload that an example's manifests have, for each
// way of interception, and has a real Envoy judge it. Where a catalog has them,
// the example's own test runs them.
func TestRender(t *testing.T) {
	t.Parallel()
	m := meshtest.New(t, "", nil)
	dirs, err := filepath.Glob(filepath.Join(envoytest.ModuleRoot(t), "examples", "*", "mesh"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, dir := range dirs {
		workloads := workloadsOf(t, dir)
		_, err := os.Stat(filepath.Join(filepath.Dir(dir), "consul"))
		if byCatalog := err == nil; byCatalog != (len(workloads) == 0) {
			t.Errorf("%s has %d workloads, and a catalog: %v", dir, len(workloads), byCatalog)
		}
		for _, w := range workloads {
			for _, interception := range []string{"NONE", "REDIRECT", "TPROXY"} {
				name := filepath.Base(filepath.Dir(dir)) + "_" + strings.ReplaceAll(w, "/", "_") + "_" + interception
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					out, err := m.CLI("render", "--config-dir", dir, "--workload", w, "--interception", interception)
					if err != nil {
						t.Fatal(err)
					}
					if err := envoytest.Validate(t, static(t, out)); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// workloadsOf are the WorkloadEntries in a directory, NAMESPACE/NAME.
func workloadsOf(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for dec := yaml.NewDecoder(strings.NewReader(string(content))); ; {
			var doc struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
			}
			if err := dec.Decode(&doc); err == io.EOF { //nolint:errorlint // it is returned as it is
				break
			} else if err != nil {
				t.Fatalf("reading %s: %v", path, err)
			}
			if doc.Kind == "WorkloadEntry" {
				found = append(found, doc.Metadata.Namespace+"/"+doc.Metadata.Name)
			}
		}
	}
	return found
}

// object is a message as its JSON.
type object = map[string]any

// static is a bootstrap of what a dump shows: what comes by EDS and RDS stands
// where it is used.
func static(t *testing.T, dump string) []byte {
	t.Helper()
	var d struct {
		Configs []struct {
			Clusters []struct {
				Cluster object `json:"cluster"`
			} `json:"dynamic_active_clusters"`
			Endpoints []struct {
				Config object `json:"endpoint_config"`
			} `json:"dynamic_endpoint_configs"`
			Listeners []struct {
				State struct {
					Listener object `json:"listener"`
				} `json:"active_state"`
			} `json:"dynamic_listeners"`
			Routes []struct {
				Config object `json:"route_config"`
			} `json:"dynamic_route_configs"`
		} `json:"configs"`
	}
	if err := json.Unmarshal([]byte(dump), &d); err != nil {
		t.Fatalf("reading the dump: %v\n%s", err, dump)
	}
	endpoints, routes := map[string]object{}, map[string]object{}
	clusters := []object{{"name": "sds-grpc", "type": "STATIC"}}
	var listeners []object
	for _, c := range d.Configs {
		for _, e := range c.Endpoints {
			endpoints[fmt.Sprint(e.Config["cluster_name"])] = e.Config
		}
		for _, r := range c.Routes {
			routes[fmt.Sprint(r.Config["name"])] = r.Config
		}
		for _, x := range c.Clusters {
			clusters = append(clusters, x.Cluster)
		}
		for _, l := range c.Listeners {
			listeners = append(listeners, l.State.Listener)
		}
	}
	if len(clusters) < 2 || len(listeners) == 0 {
		t.Fatalf("the dump has %d clusters and %d listeners", len(clusters)-1, len(listeners))
	}
	for _, c := range clusters {
		if c["type"] == "EDS" {
			delete(c, "eds_cluster_config")
			c["type"], c["load_assignment"] = "STATIC", plainOf(t, endpoints, fmt.Sprint(c["name"]))
		}
		delete(c, "@type")
	}
	for _, l := range listeners {
		inline(t, l, routes)
		delete(l, "@type")
	}
	b, err := json.Marshal(object{
		"node":             object{"id": "test", "cluster": "test"},
		"static_resources": object{"clusters": clusters, "listeners": listeners},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// plainOf is a message of its own made a field of another.
func plainOf(t *testing.T, from map[string]object, name string) object {
	t.Helper()
	if from[name] == nil {
		t.Fatalf("%q is asked for and not there", name)
	}
	out := object{}
	for k, v := range from[name] {
		if k != "@type" {
			out[k] = v
		}
	}
	return out
}

// inline puts route tables where they are asked for, wherever that is.
func inline(t *testing.T, node any, routes map[string]object) {
	t.Helper()
	switch n := node.(type) {
	case object:
		if rds, ok := n["rds"].(object); ok {
			delete(n, "rds")
			n["route_config"] = plainOf(t, routes, fmt.Sprint(rds["route_config_name"]))
		}
		for _, v := range n {
			inline(t, v, routes)
		}
	case []any:
		for _, v := range n {
			inline(t, v, routes)
		}
	}
}
