package view

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// fleet is a mesh with services in ten namespaces, each with ten workloads; most have HTTP
// ports and some TCP. Half of them have a VirtualService and a DestinationRule. Some
// workloads have a proxy.
type fleet struct {
	w       *meshFixture
	s       *mesh.Snapshot
	mc      *mesh.MeshConfig
	proxies []Proxy
	views   []*View
}

const fleetEndpoints = 10

func newFleet(tb testing.TB, services, proxies int) *fleet {
	tb.Helper()
	f := &fleet{w: newMeshFixture(tb)}
	f.mc = &mesh.MeshConfig{Spec: f.w.mc}
	for i := range services {
		f.addService(i)
	}
	slices.SortFunc(f.w.f.Workloads, byKey)
	for i := range proxies {
		w := f.w.f.Workloads[i*len(f.w.f.Workloads)/proxies]
		f.proxies = append(f.proxies, Proxy{
			ID:   "sidecar~" + w.Address + "~" + w.Name + "." + w.Namespace + "~" + w.Namespace + ".svc.cluster.local",
			Type: Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount},
			Addresses: []string{w.Address}, Labels: w.Labels, Locality: w.Locality, Interception: InterceptRedirect,
		})
	}
	f.views = make([]*View, proxies)
	f.s = f.next()
	return f
}

func (f *fleet) addService(i int) {
	ns, name := fmt.Sprintf("ns%d", i%10), fmt.Sprintf("s%04d", i)
	s := f.w.service(ns, name+"."+ns+".svc.cluster.local", 8080)
	s.Inline, s.Selector = nil, map[string]string{"app": name}
	if i%10 == 9 {
		s.Ports = []mesh.Port{{Name: "tcp", Number: 9000, Protocol: mesh.TCP}}
		s.Addresses = []string{fmt.Sprintf("172.16.%d.%d", i/250, i%250)}
	}
	for j := range fleetEndpoints {
		f.addWorkload(ns, name, fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j+1))
	}
	if i%2 == 0 {
		h := string(s.Hostname)
		f.w.rule(ns, name, `{"host":"`+h+`","trafficPolicy":{"connectionPool":{"http":{"maxRequestsPerConnection":100}}},"subsets":[{"name":"v0","labels":{"version":"v0"}},{"name":"v1","labels":{"version":"v1"}}]}`)
		f.w.routes(ns, name, `{"hosts":["`+h+`"],"http":[{"match":[{"uri":{"prefix":"/v1"}}],"timeout":"2s","route":[{"destination":{"host":"`+h+`","subset":"v1"}}]},{"timeout":"3s","retries":{"attempts":2},"route":[{"destination":{"host":"`+h+`","subset":"v0"},"weight":90},{"destination":{"host":"`+h+`","subset":"v1"},"weight":10}]}]}`)
	}
}

func (f *fleet) addWorkload(ns, app, address string) {
	n := len(f.w.f.Workloads)
	w := &mesh.Workload{Meta: f.w.meta(mesh.KindWorkloadEntry, ns, fmt.Sprintf("%s-%d", app, n)), Address: address, ServiceAccount: app}
	w.Labels = map[string]string{"app": app, "version": fmt.Sprintf("v%d", n%2), "id": strconv.Itoa(n)}
	w.Locality = mesh.ParseLocality([]string{"eu/a", "eu/b", "us/a"}[n%3])
	f.w.f.Workloads = append(f.w.f.Workloads, w)
}

// next returns the next snapshot.
func (f *fleet) next() *mesh.Snapshot {
	f.s = mesh.NewSnapshot(f.s, f.mc, []*mesh.Fragment{smallmesh.Clone(&f.w.f)})
	return f.s
}

// rebuildViews rebuilds the view of every proxy.
func (f *fleet) rebuildViews(x *Index) {
	for i, p := range f.proxies {
		f.views[i] = x.Rebuild(f.views[i], p)
	}
}

// editRoutes edits the VirtualService of a service in place.
func (f *fleet) editRoutes(i, n int) {
	vs := *f.w.f.VirtualServices[i]
	spec := &networking.VirtualService{}
	f.w.decode(fmt.Sprintf(`{"hosts":["%s"],"http":[{"timeout":"%ds","route":[{"destination":{"host":"%s"}}]}]}`,
		vs.Spec.GetHosts()[0], 1+n, vs.Spec.GetHosts()[0]), spec)
	vs.Spec = spec
	vs.Hash[0]++
	f.w.f.VirtualServices[i] = &vs
}

// editWorkload replaces an endpoint.
func (f *fleet) editWorkload(i, n int) {
	w := *f.w.f.Workloads[i]
	w.Weight = uint32(n%7 + 1)
	w.Hash[0]++
	f.w.f.Workloads[i] = &w
}

func (f *fleet) editRule(i, n int) {
	dr := *f.w.f.DestinationRules[i]
	spec := &networking.DestinationRule{}
	f.w.decode(fmt.Sprintf(`{"host":"%s","trafficPolicy":{"connectionPool":{"http":{"maxRequestsPerConnection":%d}}},"subsets":[{"name":"v0","labels":{"version":"v0"}},{"name":"v1","labels":{"version":"v1"}}]}`,
		dr.Spec.GetHost(), n+1), spec)
	dr.Spec = spec
	dr.Hash[0]++
	f.w.f.DestinationRules[i] = &dr
}

// BenchmarkFirstViews builds the views of a fleet from nothing.
func BenchmarkFirstViews(b *testing.B) {
	for _, c := range []struct{ services, proxies int }{{100, 10}, {1000, 10}, {1000, 1000}} {
		b.Run(fmt.Sprintf("services_%d/proxies_%d", c.services, c.proxies), func(b *testing.B) {
			f := newFleet(b, c.services, c.proxies)
			b.ReportAllocs()
			for b.Loop() {
				clear(f.views)
				f.rebuildViews(NewIndex(f.s))
			}
		})
	}
}

// BenchmarkChange changes one thing in a mesh of a thousand services, and rebuilds the view
// of one proxy in each of ten namespaces: the cost of a push in this package, without the
// other proxies.
func BenchmarkChange(b *testing.B) {
	const services = 1000
	for _, c := range []struct {
		name string
		do   func(f *fleet, n int)
	}{
		{"routes", func(f *fleet, n int) { f.editRoutes(7, n) }},
		{"endpoint", func(f *fleet, n int) { f.editWorkload(7, n) }},
		{"rule", func(f *fleet, n int) { f.editRule(7, n) }},
		{"service_added", func(f *fleet, n int) { f.addService(services + n) }},
		{"fifth_of_routes", func(f *fleet, n int) {
			for i := range services / 10 {
				f.editRoutes(i*5, n)
			}
		}},
		{"nothing", func(*fleet, int) {}},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := newFleet(b, services, 10)
			x := NewIndex(f.s)
			f.rebuildViews(x)
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				b.StopTimer()
				c.do(f, n)
				s := f.next()
				b.StartTimer()
				x = x.Next(s)
				f.rebuildViews(x)
			}
		})
	}
}

// BenchmarkUnaffectedProxy rebuilds the views of many proxies after a change that affects
// none of them.
func BenchmarkUnaffectedProxy(b *testing.B) {
	f := newFleet(b, 1000, 1000)
	x := NewIndex(f.s)
	f.rebuildViews(x)
	n, i := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		if i = (i + 1) % len(f.proxies); i == 0 {
			b.StopTimer()
			n++
			f.w.service("elsewhere", fmt.Sprintf("hidden%d", n), 80).ExportTo = mesh.Exports{"elsewhere"}
			x = x.Next(f.next())
			b.StartTimer()
		}
		if f.views[i] != x.Rebuild(f.views[i], f.proxies[i]) {
			b.Fatal("another view")
		}
	}
}

// BenchmarkAffectedProxy rebuilds the views of many proxies after a change of something
// that all of them share.
func BenchmarkAffectedProxy(b *testing.B) {
	f := newFleet(b, 1000, 1000)
	x := NewIndex(f.s)
	f.rebuildViews(x)
	n, i := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		if i = (i + 1) % len(f.proxies); i == 0 {
			n++
			b.StopTimer()
			f.editRoutes(7, n)
			x = x.Next(f.next())
			b.StartTimer()
		}
		f.views[i] = x.Rebuild(f.views[i], f.proxies[i])
	}
}
