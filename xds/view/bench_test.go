package view

import (
	"fmt"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// BenchmarkBuild derives the view of one proxy more of a mesh: what a push costs
// a proxy before any byte is made.
func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("services_%d", n), func(b *testing.B) {
			x := NewIndex(bigWorld(b, n).snapshot())
			p := proxyIn("ns0", map[string]string{"app": "web"})
			b.ReportAllocs()
			for b.Loop() {
				x.Build(p)
			}
		})
	}
}

// BenchmarkFirst derives the view of the first proxy of a snapshot.
func BenchmarkFirst(b *testing.B) {
	s := bigWorld(b, 1000).snapshot()
	p := proxyIn("ns0", map[string]string{"app": "web"})
	b.ReportAllocs()
	for b.Loop() {
		Build(s, p)
	}
}

// BenchmarkFlap derives the view of a proxy after one endpoint has changed.
func BenchmarkFlap(b *testing.B) {
	w := bigWorld(b, 1000)
	for i, svc := range w.f.Services { // a selected workload besides the written ones
		if i == 0 {
			svc.Selector = map[string]string{"app": "flaps"}
		}
	}
	base := mesh.Workload{Meta: w.meta(mesh.KindWorkloadEntry, "ns0", "flaps"), Address: "10.99.0.1"}
	base.Labels = map[string]string{"app": "flaps"}
	mc := &mesh.MeshConfig{Spec: w.mc}
	at := func(prev *mesh.Snapshot, n int) *mesh.Snapshot {
		next := base
		next.Weight = uint32(n%2) + 1
		next.Hash[0] = byte(n)
		f := w.f
		f.Workloads = []*mesh.Workload{&next}
		return mesh.NewSnapshot(prev, mc, []*mesh.Fragment{&f})
	}
	s := at(nil, 0)
	x := NewIndex(s)
	p := proxyIn("ns0", map[string]string{"app": "web"})
	x.Build(p)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		b.StopTimer()
		s = at(s, n)
		b.StartTimer()
		x = x.Next(s)
		x.Build(p)
	}
}

// BenchmarkIndex prepares a snapshot: what a push costs once.
func BenchmarkIndex(b *testing.B) {
	s := bigWorld(b, 1000).snapshot()
	b.ReportAllocs()
	for b.Loop() {
		NewIndex(s)
	}
}

// bigWorld has n services with ten endpoints each, every second one with a
// DestinationRule of two subsets and a VirtualService.
func bigWorld(tb testing.TB, n int) *world {
	tb.Helper()
	w := newWorld(tb)
	for i := range n {
		ns := fmt.Sprintf("ns%d", i%10)
		host := fmt.Sprintf("s%d.mesh", i)
		s := w.service(ns, host, 80)
		for j := range 10 {
			s.Inline = append(s.Inline, &mesh.Workload{
				Meta:    mesh.Meta{Key: mesh.Key{Namespace: ns}, Origin: s.Origin, Labels: map[string]string{"version": fmt.Sprintf("v%d", j%2)}},
				Address: fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j+1), ServiceAccount: "sa",
			})
		}
		if i%2 == 0 {
			w.rule(ns, host, `{"host":"`+host+`","subsets":[{"name":"v0","labels":{"version":"v0"}},{"name":"v1","labels":{"version":"v1"}}]}`)
			w.routes(ns, host, `{"hosts":["`+host+`"],"http":[{"route":[{"destination":{"host":"`+host+`","subset":"v0"},"weight":90},{"destination":{"host":"`+host+`","subset":"v1"},"weight":10}]}]}`)
		}
	}
	return w
}
