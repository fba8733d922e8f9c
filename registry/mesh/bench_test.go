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
