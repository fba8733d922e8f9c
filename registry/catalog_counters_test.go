package registry

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// derived is a service of a catalog.
func derived(name string) *mesh.Service {
	s := service("default", "consul/"+name, name)
	s.Hostname, s.Catalog = mesh.Hostname(name+".service.consul"), true
	s.Selector = map[string]string{mesh.LabelConsulService: name}
	return s
}

// instance is one of a service of a catalog.
func instance(of string, i int, health mesh.Health, tag string) *mesh.Workload {
	w := workload("default", i, of)
	w.Name = fmt.Sprintf("consul/dc1/n1/%s-%04d", of, i)
	w.Labels = map[string]string{mesh.LabelConsulService: of, "tag": tag}
	w.Health, w.Hash = health, sha256.Sum256(fmt.Append(nil, of, i, health, tag))
	return w
}

// TestCostOfACatalogsChange counts what each kind of change of a catalog costs
// beside files that have as much: what a source sends is the whole of it, and only
// what differs is looked at.
func TestCostOfACatalogsChange(t *testing.T) {
	t.Parallel()
	const services = 40
	files := &mesh.Fragment{Source: "files"}
	consul := &mesh.Fragment{Source: "consul"}
	for i := range services {
		files.Services = append(files.Services, service("default", fmt.Sprintf("s%02d", i), "x"))
		consul.Services = append(consul.Services, derived(fmt.Sprintf("c%02d", i)))
		for j := range 3 {
			consul.Workloads = append(consul.Workloads, instance(fmt.Sprintf("c%02d", i), 3*i+j, mesh.HealthUnknown, "a"))
		}
	}
	// One is written down and hides the catalog's.
	files.Services[7].Hostname = "c07.service.consul"
	replace := func(i int, w *mesh.Workload) func(f, c *mesh.Fragment) {
		return func(_, c *mesh.Fragment) { c.Workloads[i] = w }
	}
	for _, x := range []struct {
		name string
		edit func(files, consul *mesh.Fragment)
		// compared and merged are objects; changed are those that have another content.
		compared, merged uint64
		changed          int
	}{
		{"nothing", func(*mesh.Fragment, *mesh.Fragment) {}, 0, 0, 0},
		{"turned_critical", replace(5, instance("c01", 5, mesh.Unhealthy, "a")), 1, 1, 1},
		{"tag_changed", replace(5, instance("c01", 5, mesh.HealthUnknown, "b")), 1, 1, 1},
		{"instance_removed", func(_, c *mesh.Fragment) { c.Workloads = slices.Delete(c.Workloads, 5, 6) }, 1, 1, 1},
		{"instance_added", func(_, c *mesh.Fragment) {
			c.Workloads = slices.Insert(c.Workloads, 6, instance("c01", 900, mesh.HealthUnknown, "a"))
		}, 1, 1, 1},
		{"service_removed", func(_, c *mesh.Fragment) {
			c.Services, c.Workloads = slices.Delete(c.Services, 9, 10), slices.Delete(c.Workloads, 27, 30)
		}, 4, 4, 4},
		{"service_added", func(_, c *mesh.Fragment) { c.Services = append(c.Services, derived("c99")) }, 1, 1, 1},
		{"hidden_service_changed", func(_, c *mesh.Fragment) {
			s := *c.Services[7]
			s.Ports, s.Hash[0] = []mesh.Port{{Name: "http", Number: 81, Protocol: mesh.HTTP}}, s.Hash[0]+1
			c.Services[7] = &s
		}, 1, 0, 0},
		{"host_written_down", func(f, _ *mesh.Fragment) {
			s := *f.Services[8]
			s.Hostname, s.Hash[0] = "c08.service.consul", s.Hash[0]+1
			f.Services[8] = &s
		}, 2, 3, 2},
		{"file_edited", func(f, _ *mesh.Fragment) {
			f.VirtualServices = []*mesh.VirtualService{virtualService("v", "1")}
		}, 1, 1, 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, c := newFakeSource("files"), newFakeSource("consul")
				r := run(t, Config{Sources: []Source{f, c}})
				f.say(files)
				c.say(consul)
				r.after(time.Minute)
				before, was := r.Status(), r.Snapshot()
				nextFiles, nextConsul := *files, *consul
				nextFiles.Services, nextConsul.Services = slices.Clone(files.Services), slices.Clone(consul.Services)
				nextConsul.Workloads = slices.Clone(consul.Workloads)
				x.edit(&nextFiles, &nextConsul)
				f.say(&nextFiles)
				c.say(&nextConsul) // within the debounce
				r.after(time.Minute)
				after, now := r.Status(), r.Snapshot()
				if got := after.Compared - before.Compared; got != x.compared {
					t.Errorf("%d objects compared, want %d", got, x.compared)
				}
				if got := after.Merged - before.Merged; got != x.merged {
					t.Errorf("%d objects merged, want %d", got, x.merged)
				}
				changed := 0
				if now != was {
					changed = len(now.Changed)
				}
				if changed != x.changed || now.Generation > was.Generation+1 {
					t.Errorf("%d objects changed in %d snapshots, want %d in one", changed, now.Generation-was.Generation, x.changed)
				}
			})
		})
	}
}
