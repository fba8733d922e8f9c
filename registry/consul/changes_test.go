package consul_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/mesh"
)

// modes are the two ways in which changes are found.
func modes() map[string]consultest.Options {
	return map[string]consultest.Options{"tables": {}, "watches": {TLS: true}}
}

// Every kind of change is found by itself, long before the slow sweep.
func TestEveryKindOfChangeIsFound(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := consultest.Start(t, o)
			c := a.Client()
			web := instance{node: "n1", id: "web-1", service: "web", tags: []string{"version=v1"}}
			other := instance{node: "n2", nodeAddress: "10.0.0.2", id: "web-2", service: "web", tags: []string{"version=v1"}}
			web.register(t, c)
			other.register(t, c)
			instance{node: "n3", nodeAddress: "10.0.0.3", id: "api-1", service: "api"}.register(t, c)
			cfg := config(t, a.Cluster(), a.Address())
			cfg.SweepEvery = time.Hour
			r := start(t, cfg)
			r.awaitFresh("at the start")

			catalog := func(reg *api.CatalogRegistration) {
				t.Helper()
				if _, err := c.Catalog().Register(reg, nil); err != nil {
					t.Fatal(err)
				}
			}
			check := func(node, id, service, status string) {
				t.Helper()
				catalog(&api.CatalogRegistration{Node: node, SkipNodeUpdate: true, Check: &api.AgentCheck{
					Node: node, CheckID: id, Name: id, ServiceID: service, Status: status,
				}})
			}
			health := func(name string, h mesh.Health) func(*mesh.Fragment) bool {
				return func(f *mesh.Fragment) bool { w := workload(f, name); return w != nil && w.Health == h }
			}
			steps := []struct {
				name   string
				change func()
				want   func(*mesh.Fragment) bool
			}{
				{"turns critical", func() { web.with(func(i *instance) { i.status = "critical" }).register(t, c) }, health("/web-1", mesh.Unhealthy)},
				{"turns passing", func() { web.register(t, c) }, health("/web-1", mesh.Healthy)},
				{"node turns critical", func() { check("n2", "host", "", "critical") }, health("/web-2", mesh.Unhealthy)},
				{"node turns passing", func() { check("n2", "host", "", "passing") }, health("/web-2", mesh.Healthy)},
				{"maintenance", func() { check("n1", "_service_maintenance:web-1", "web-1", "critical") }, health("/web-1", mesh.Unhealthy)},
				{"maintenance over", func() {
					if _, err := c.Catalog().Deregister(&api.CatalogDeregistration{Node: "n1", CheckID: "_service_maintenance:web-1"}, nil); err != nil {
						t.Fatal(err)
					}
				}, health("/web-1", mesh.Healthy)},
				{"one instance more, same tags", func() { web.with(func(i *instance) { i.id = "web-3"; i.port = 8081 }).register(t, c) }, func(f *mesh.Fragment) bool { return workload(f, "/web-3") != nil }},
				{"one instance less, same tags", func() { deregister(t, c, "n1", "web-3") }, func(f *mesh.Fragment) bool { return workload(f, "/web-3") == nil }},
				{"metadata", func() { web.with(func(i *instance) { i.meta = map[string]string{"team": "blue"} }).register(t, c) }, func(f *mesh.Fragment) bool { return workload(f, "/web-1").Labels["team"] == "blue" }},
				{"tags", func() { web.with(func(i *instance) { i.tags = []string{"version=v2"} }).register(t, c) }, func(f *mesh.Fragment) bool { return workload(f, "/web-1").Labels["version"] == "v2" }},
				{"port", func() { other.with(func(i *instance) { i.port = 9090 }).register(t, c) }, func(f *mesh.Fragment) bool { return workload(f, "/web-2").Ports["tcp"] == 9090 }},
				{"node's address", func() { catalog(&api.CatalogRegistration{Node: "n2", Address: "10.0.0.22"}) }, func(f *mesh.Fragment) bool { return workload(f, "/web-2").Address == "10.0.0.22" }},
				{"Connect's default", func() {
					if _, _, err := c.ConfigEntries().Set(&api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: "web", Protocol: "http"}, nil); err != nil {
						t.Fatal(err)
					}
				}, func(f *mesh.Fragment) bool { return f.Services[len(f.Services)-1].Ports[0].Protocol == mesh.HTTP }},
				{"a service more", func() { instance{node: "n3", id: "db-1", service: "db"}.register(t, c) }, func(f *mesh.Fragment) bool { return workload(f, "/db-1") != nil }},
				{"a service less", func() { deregister(t, c, "n3", "db-1") }, func(f *mesh.Fragment) bool { return workload(f, "/db-1") == nil }},
				{"a node less", func() { deregister(t, c, "n3", "") }, func(f *mesh.Fragment) bool { return workload(f, "/api-1") == nil }},
			}
			for _, s := range steps {
				s.change()
				t.Logf("%s: %v", s.name, r.await(s.name, s.want).Round(time.Millisecond))
			}
			r.awaitFresh("after all")
			if st := r.source.Status(); st.State != consul.Live || st.Throttled > 0 || st.Failed > 0 {
				t.Errorf("status is %+v", *st)
			}
		})
	}
}

// What flaps costs its own service: everything else is the same by pointer.
func TestOneFlappingInstanceCostsOnlyItself(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := consultest.Start(t, o)
			c := a.Client()
			for i := range 20 {
				for j := range 3 {
					instance{node: fmt.Sprint("n", j), id: fmt.Sprintf("s%d-%d", i, j), service: fmt.Sprint("s", i), port: 8000 + j}.register(t, c)
				}
			}
			r := start(t, config(t, a.Cluster(), a.Address()))
			r.awaitFresh("at the start")
			before := r.Last()
			instance{node: "n1", id: "s7-1", service: "s7", port: 8001, status: "critical"}.register(t, c)
			r.await("critical", func(f *mesh.Fragment) bool { return workload(f, "/s7-1").Health == mesh.Unhealthy })
			d := mesh.Compare(before, r.Last())
			if d.Objects() != 1 || d.Reach() > mesh.ReachHealth {
				t.Errorf("%d objects differ, reach %v; want 1, %v", d.Objects(), d.Reach(), mesh.ReachHealth)
			}
		})
	}
}

// A service that comes and goes very fast ends as Consul has it.
func TestFastDeregistrationsEndAsConsulHasThem(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := consultest.Start(t, o)
			c := a.Client()
			web := instance{node: "n1", id: "web-1", service: "web"}
			instance{node: "n1", id: "other-1", service: "other"}.register(t, c)
			cfg := config(t, a.Cluster(), a.Address())
			cfg.SweepEvery = time.Hour
			r := start(t, cfg)
			for range 1000 {
				web.register(t, c)
				deregister(t, c, "n1", "web-1")
			}
			t.Logf("gone: equal after %v", r.awaitFresh("deregistered last"))
			for range 100 {
				deregister(t, c, "n1", "web-1")
				web.register(t, c)
			}
			t.Logf("there: equal after %v", r.awaitFresh("registered last"))
			st := r.source.Status()
			t.Logf("%d reads, %d sweeps, %d fragments", st.Reads, st.Sweeps, st.Fragments)
		})
	}
}
