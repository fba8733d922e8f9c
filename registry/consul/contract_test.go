package consul_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/sourcetest"
)

// TestSource holds the catalog of a real Consul to the contract of all sources,
// by table watches and by watches.
func TestSource(t *testing.T) {
	t.Parallel()
	for name, tls := range map[string]bool{"tables": false, "watches": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sourcetest.Run(t, func(tb testing.TB) *sourcetest.Place {
				tb.Helper()
				cluster := consultest.Start(tb, consultest.Options{TLS: tls}).Cluster()
				front := cluster.Front()
				return &sourcetest.Place{
					New: func(tb testing.TB) registry.Source {
						tb.Helper()
						cfg := config(tb, cluster, cluster.Address())
						cfg.Logger, cfg.StateDir, cfg.SweepEvery = slog.New(slog.DiscardHandler), tb.TempDir(), time.Second
						s, err := consul.New(cfg)
						if err != nil {
							tb.Fatal(err)
						}
						return s
					},
					Put: func(tb testing.TB, objects map[string]string) {
						tb.Helper()
						putServices(tb, cluster.Client(), objects)
					},
					Read: func(f *mesh.Fragment) map[string]string {
						out := map[string]string{}
						for _, w := range f.Workloads {
							out[w.Labels[mesh.LabelConsulService]] = w.Labels["content"]
						}
						return out
					},
					Away: func(testing.TB) { front.Cut() }, Back: func(testing.TB) { front.Heal() },
					Again: 15 * time.Second, Within: 30 * time.Second, Quiet: 2 * time.Second,
				}
			})
		})
	}
}

// putServices makes the services of a node of the catalog exactly those, each
// with one instance.
func putServices(tb testing.TB, c *api.Client, objects map[string]string) {
	tb.Helper()
	const name = "contract"
	node, _, err := c.Catalog().Node(name, nil)
	if err != nil {
		tb.Fatal(err)
	}
	have := map[string]string{}
	if node != nil {
		for id, s := range node.Services {
			have[id] = s.Meta["content"]
		}
	}
	for id := range have {
		if objects[id] != "" {
			continue
		}
		if _, err := c.Catalog().Deregister(&api.CatalogDeregistration{Node: name, ServiceID: id}, nil); err != nil {
			tb.Fatal(err)
		}
	}
	for id, content := range objects {
		if have[id] == content {
			continue
		}
		_, err := c.Catalog().Register(&api.CatalogRegistration{Node: name, Address: "10.0.0.1", Service: &api.AgentService{
			ID: id, Service: id, Port: 8080, Meta: map[string]string{"content": content},
		}}, nil)
		if err != nil {
			tb.Fatal(err)
		}
	}
}
