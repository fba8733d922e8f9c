package mesh

import (
	"fmt"
	"slices"
	"testing"
)

// BenchmarkOneChange is the price of one changed workload in a mesh of 10,000
// services and 50,000 workloads.
func BenchmarkOneChange(b *testing.B) {
	for _, shape := range []struct{ namespaces, services int }{{100, 100}, {1, 10_000}} {
		b.Run(fmt.Sprintf("namespaces=%d", shape.namespaces), func(b *testing.B) {
			f := testFragment(shape.namespaces, shape.services, 5)
			agents := &Fragment{Source: "agents"}
			for _, w := range f.Workloads {
				agents.Health = append(agents.Health, &HealthReport{
					ServiceAccount: ServiceAccount{w.Namespace, w.ServiceAccount}, Address: w.Address, Health: Healthy, Own: true,
				})
			}
			slices.SortFunc(agents.Health, compareReports)
			agents.Health = slices.CompactFunc(agents.Health, func(a, b *HealthReport) bool { return compareReports(a, b) == 0 })
			b.Run("anew", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					testSnapshot(nil, f, agents)
				}
			})
			b.Run("workload", func(b *testing.B) {
				s := testSnapshot(nil, f, agents)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					next := *f
					next.Workloads = slices.Clone(f.Workloads)
					w := *next.Workloads[i%len(f.Workloads)]
					w.Weight, w.Hash = w.Weight+1, Hash{byte(i), byte(i >> 8), 1}
					next.Workloads[i%len(f.Workloads)] = &w
					s = testSnapshot(s, &next, agents)
					if len(s.Changed) == 0 {
						b.Fatal("nothing changed")
					}
				}
			})
			b.Run("health", func(b *testing.B) {
				s := testSnapshot(nil, f, agents)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					next := &Fragment{Source: "agents", Health: slices.Clone(agents.Health)}
					report := *next.Health[i%len(next.Health)]
					report.Health = Unhealthy
					next.Health[i%len(next.Health)] = &report
					s = testSnapshot(s, f, next)
					if len(s.Changed) == 0 {
						b.Fatal("nothing changed")
					}
				}
			})
		})
	}
}

// BenchmarkCatalog is the price of one change in a mesh of 5,000 services of a
// catalog with 20 instances each, beside 1,000 services that are written down, one
// in ten of them for a host of the catalog.
func BenchmarkCatalog(b *testing.B) {
	files, consul := testFragment(10, 90, 2), &Fragment{Source: "consul"}
	for i := range 5000 {
		name := fmt.Sprintf("s%04d", i)
		consul.Services = append(consul.Services, testDerived("default", name, 80))
		for j := range 20 {
			w := testInstance("default", fmt.Sprintf("10.%d.%d.%d", j, i/250, i%250), name)
			w.Name = fmt.Sprintf("consul/dc1/n%02d/%s", j, name)
			w.Labels["version"] = fmt.Sprintf("v%d", j%2)
			consul.Workloads = append(consul.Workloads, w)
		}
		if i < 100 {
			files.Services = append(files.Services, written("mine", name, name+".service.consul"))
		}
	}
	slices.SortFunc(consul.Workloads, compareKeys)
	slices.SortFunc(files.Services, compareServiceKeys)
	first := testSnapshot(nil, files, consul)
	if len(first.Conflicts) != 100 || len(first.EndpointsOf(first.ServicesOn("s4999.service.consul")[0])) != 20 {
		b.Fatalf("%d conflicts", len(first.Conflicts))
	}
	b.Run("anew", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			testSnapshot(nil, files, consul)
		}
	})
	b.Run("instance", func(b *testing.B) {
		s := first
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			next := *consul
			next.Workloads = slices.Clone(consul.Workloads)
			w := *next.Workloads[i%len(next.Workloads)]
			w.Health, w.Hash = Unhealthy, Hash{byte(i), byte(i >> 8), 1}
			next.Workloads[i%len(next.Workloads)] = &w
			s = testSnapshot(s, files, &next)
			if s.Merged() > 2 {
				b.Fatalf("%d objects", s.Merged())
			}
		}
	})
	b.Run("host_taken", func(b *testing.B) {
		s := first
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			next := *files
			if i%2 == 0 {
				next.Services = append(slices.Clone(files.Services), written("z", "z", "s2000.service.consul"))
			}
			s = testSnapshot(s, &next, consul)
			if s.Merged() > 2 {
				b.Fatalf("%d objects", s.Merged())
			}
		}
	})
}
