package view

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/mesh"
)

// threeNamespaces is a mesh of three namespaces with four services each, and a proxy on
// each of them. Services a, b and c have HTTP; d has TCP and an address of its own. a has
// routes, and a rule with a subset.
func threeNamespaces(tb testing.TB) *fleet {
	tb.Helper()
	f := &fleet{w: newMeshFixture(tb)}
	f.mc = &mesh.MeshConfig{Spec: f.w.mc}
	for i, ns := range []string{"ns0", "ns1", "ns2"} {
		for j, name := range []string{"a", "b", "c", "d"} {
			host := name + "." + ns + ".svc.cluster.local"
			s := f.w.service(ns, host, 8080)
			s.Inline, s.Selector = nil, map[string]string{"app": name}
			if name == "d" {
				s.Ports = []mesh.Port{{Name: "tcp", Number: 9000, Protocol: mesh.TCP}}
				s.Addresses = []string{fmt.Sprintf("172.16.0.%d", i+1)}
			}
			if name == "a" {
				f.w.rule(ns, name, `{"host":"`+host+`","subsets":[{"name":"v1","labels":{"version":"v1"}}]}`)
				f.w.routes(ns, name, `{"hosts":["`+host+`"],"http":[{"timeout":"1s","route":[{"destination":{"host":"`+host+`"}}]}]}`)
			}
			f.addWorkload(ns, name, fmt.Sprintf("10.%d.%d.1", i, j))
			f.addWorkload(ns, name, fmt.Sprintf("10.%d.%d.2", i, j))
			f.proxies = append(f.proxies, Proxy{
				ID: fmt.Sprintf("sidecar~10.%d.%d.1~%s.%s~%s.svc.cluster.local", i, j, name, ns, ns), Type: Sidecar,
				ServiceAccount: mesh.ServiceAccount{Namespace: ns, Name: name}, Addresses: []string{fmt.Sprintf("10.%d.%d.1", i, j)},
				Labels: map[string]string{"app": name, "id": strconv.Itoa(i)}, Interception: InterceptRedirect,
			})
		}
	}
	slices.SortFunc(f.w.f.Workloads, byKey)
	f.views = make([]*View, len(f.proxies))
	return f
}

// TestStatsOfEachChange checks what each kind of change costs, by the number of parts that
// are computed.
func TestStatsOfEachChange(t *testing.T) {
	t.Parallel()
	edit := func(do func(*mesh.Service)) func(*fleet) {
		return func(f *fleet) {
			next := *f.w.f.Services[1] // b of ns0
			do(&next)
			next.Hash[0]++
			f.w.f.Services[1] = &next
		}
	}
	for _, c := range []struct {
		name string
		do   func(f *fleet)
		want Stats
	}{
		// No change.
		{"nothing", func(*fleet) {}, Stats{ViewsKept: 12}},
		{"origin_moved", func(f *fleet) {
			f.editRoutes(0, 0)
			f.w.f.VirtualServices[0].Spec.Http[0].Timeout = nil
			f.editRoutes(0, 0)
			f.w.f.VirtualServices[0].Origin = &mesh.Origin{Path: "elsewhere.yaml"}
		}, Stats{ViewsKept: 12}},
		// One virtual host, and with it the route configuration, in each of three namespaces.
		{"routes", func(f *fleet) { f.editRoutes(0, 5) }, Stats{ViewsBuilt: 12, LayersBuilt: 3, VirtualHosts: 3, RouteConfigurations: 3, Judged: 3}},
		// The endpoints and those of one subset, for all proxies. The clusters have the
		// identities, so they are built too, and are equal.
		{"endpoint", func(f *fleet) { f.editWorkload(0, 5) }, Stats{ViewsBuilt: 12, LayersBuilt: 1, Clusters: 2, Endpoints: 2}},
		{"health", func(f *fleet) {
			w := *f.w.f.Workloads[2]
			w.Health = mesh.Unhealthy
			f.w.f.Workloads[2] = &w
		}, Stats{ViewsBuilt: 12, LayersBuilt: 1, Clusters: 1, Endpoints: 1}},
		{"endpoint_added", func(f *fleet) {
			f.addWorkload("ns0", "b", "10.9.9.9")
			slices.SortFunc(f.w.f.Workloads, byKey)
		}, Stats{ViewsBuilt: 12, LayersBuilt: 1, Clusters: 1, Endpoints: 1}},
		{"endpoint_removed", func(f *fleet) { // the second one of b
			f.w.f.Workloads = slices.Delete(f.w.f.Workloads, 3, 4)
		}, Stats{ViewsBuilt: 12, LayersBuilt: 1, Clusters: 1, Endpoints: 1}},
		// Which routes lead to it is looked at in each namespace. Its own proxies serve nothing.
		{"last_endpoint_removed", func(f *fleet) {
			f.w.f.Workloads = slices.Delete(f.w.f.Workloads, 2, 4)
		}, Stats{ViewsBuilt: 12, LayersBuilt: 1 + 2, Clusters: 1, Endpoints: 1, Listeners: 1, Judged: 3 * (9 + 5)}},
		{"endpoint_relabelled", func(f *fleet) {
			w := *f.w.f.Workloads[3]
			w.Labels = map[string]string{"app": "b", "team": "x"}
			w.Hash[0]++
			f.w.f.Workloads[3] = &w
		}, Stats{ViewsKept: 12, Clusters: 1, Endpoints: 1}}, // looked at, and the same
		{"endpoint_moved", func(f *fleet) { // from b to c
			w := *f.w.f.Workloads[3]
			w.Labels = map[string]string{"app": "c"}
			w.Hash[0]++
			f.w.f.Workloads[3] = &w
		}, Stats{ViewsBuilt: 12, LayersBuilt: 2, Clusters: 2, Endpoints: 2}},
		// A cluster with its endpoints. In each namespace, a virtual host is added for the
		// new port, and one is removed for the old one. The listeners of all ports are built
		// once for the three namespaces, and are equal except that of the new port. Inbound,
		// a listener and the application's cluster.
		{"port_changed", edit(func(s *mesh.Service) { s.Ports = []mesh.Port{{Name: "http", Number: 8081, Protocol: mesh.HTTP}} }), Stats{
			ViewsBuilt: 12, LayersBuilt: 9, Clusters: 1 + 1, Endpoints: 1, Listeners: 6 + 1, VirtualHosts: 3, RouteConfigurations: 3 + 3, Judged: 3 + 3,
		}},
		{"inline_endpoint", edit(func(s *mesh.Service) {
			s.Selector, s.Inline = nil, []*mesh.Workload{{Meta: mesh.Meta{Origin: &mesh.Origin{}}, Address: "10.9.9.7"}}
		}), Stats{ViewsBuilt: 12, LayersBuilt: 2 + 1, Clusters: 1, Endpoints: 1, Listeners: 1}}, // who served it does no longer
		// The cluster and those of two subsets, for all proxies; and the inbound cluster of
		// the proxies that serve it.
		{"rule", func(f *fleet) { f.editRule(0, 5) }, Stats{ViewsBuilt: 12, LayersBuilt: 2, Clusters: 3 + 1, Endpoints: 3, Listeners: 1}},
		// A cluster, its endpoints, and in each namespace a virtual host. The port has a
		// listener already.
		{"service_added", func(f *fleet) {
			s := f.w.service("ns0", "e.ns0.svc.cluster.local", 8080)
			s.Inline[0].Address = "10.9.9.8"
		}, Stats{ViewsBuilt: 12, LayersBuilt: 2 + 3, Clusters: 1, Endpoints: 1, VirtualHosts: 3, RouteConfigurations: 3, Judged: 3}},
		// Route configurations without it; and its proxies have no inbound port for it.
		{
			"service_removed", func(f *fleet) { f.w.f.Services = slices.Delete(f.w.f.Services, 1, 2) },
			Stats{ViewsBuilt: 12, LayersBuilt: 2 + 3 + 1, Listeners: 1, RouteConfigurations: 3},
		},
		// It is removed for the other namespaces.
		{
			"service_hidden", edit(func(s *mesh.Service) { s.ExportTo = mesh.Exports{"ns0"} }),
			Stats{ViewsBuilt: 8, ViewsKept: 4, LayersBuilt: 2 + 2, Clusters: 1, Endpoints: 1, RouteConfigurations: 2},
		},
		{"names_accepted", edit(func(s *mesh.Service) { s.SubjectAltNames = []string{"spiffe://x"} }), Stats{ViewsBuilt: 12, LayersBuilt: 1, Clusters: 1, Endpoints: 1}},
		// Clients in the mesh use mTLS anyway: the parts of the namespace's services are
		// built, and are equal. The inbound layers of its four workloads differ.
		{
			"peers", func(f *fleet) { f.w.peer("ns0", "strict", `{"mtls":{"mode":"STRICT"}}`) },
			Stats{ViewsBuilt: 4, ViewsKept: 8, LayersBuilt: 4, Clusters: 5 + 4, Endpoints: 5, Listeners: 4},
		},
		// Clients must not use mTLS with it: its cluster and its endpoints change.
		{"peers_selected", func(f *fleet) {
			f.w.peer("ns0", "b", `{"selector":{"matchLabels":{"app":"b"}},"mtls":{"mode":"DISABLE"}}`)
		}, Stats{ViewsBuilt: 12, LayersBuilt: 2 + 1, Clusters: 5 + 1, Endpoints: 5, Listeners: 1}},
		// One proxy sees fewer of the existing services.
		{"sidecar", func(f *fleet) {
			f.w.sidecar("ns0", "b", `{"workloadSelector":{"labels":{"app":"b"}},"egress":[{"hosts":["./*"]}]}`)
		}, Stats{ViewsBuilt: 1, ViewsKept: 11, LayersBuilt: 4, Listeners: 3, VirtualHosts: 3, RouteConfigurations: 1, Judged: 6}},
		{"mesh_config", func(f *fleet) {
			f.mc = &mesh.MeshConfig{Spec: f.w.mc}
		}, Stats{ViewsKept: 12, Clusters: 15 + 12 + 3, Endpoints: 15, Listeners: 15 + 12, VirtualHosts: 27, RouteConfigurations: 3, Judged: 42}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := threeNamespaces(t)
			if c.name == "origin_moved" || c.name == "rule" { // so that the specs are as the edits write them
				f.editRoutes(0, 0)
				f.editRule(0, 0)
			}
			x := NewIndex(f.next())
			f.rebuildViews(x)
			before := x.Stats()
			c.do(f)
			x = x.Next(f.next())
			f.rebuildViews(x)
			if d := cmp.Diff(c.want, x.Stats().Minus(before)); d != "" {
				t.Errorf("work (-want +got):\n%s", d)
			}
			for i, p := range f.proxies {
				if d := differenceOf(NewIndex(f.s).Build(p), f.views[i]); d != "" {
					t.Errorf("%s: %s", p.ID, d)
				}
			}
		})
	}
}

// TestLocalityPartsAreReused: parts that depend on the locality of a proxy are not built
// again when another service changes, whatever was garbage-collected in the meantime.
func TestLocalityPartsAreReused(t *testing.T) {
	t.Parallel()
	f := threeNamespaces(t)
	for i, name := range []string{"b", "c"} {
		for _, ns := range []string{"ns0", "ns1", "ns2"} {
			f.w.rule(ns, name, `{"host":"`+name+"."+ns+`.svc.cluster.local","trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":1}}}`)
			f.proxies[i].Locality = mesh.ParseLocality("eu/a")
		}
	}
	x := NewIndex(f.next())
	f.rebuildViews(x)
	for n := range 3 {
		runtime.GC()
		runtime.GC()
		before := x.Stats()
		f.editWorkload(0, n+5) // of a in ns0, which has no place
		x = x.Next(f.next())
		f.rebuildViews(x)
		if got, want := x.Stats().Minus(before), (Stats{ViewsBuilt: 12, LayersBuilt: 2, Clusters: 2, Endpoints: 2}); got != want {
			t.Errorf("after change %d: %+v, want %+v", n, got, want)
		}
	}
	// The same if the proxies of that locality missed some snapshots.
	for n := range 3 {
		f.editWorkload(0, n+1)
		x = x.Next(f.next())
		f.views[2] = x.Rebuild(f.views[2], f.proxies[2])
		runtime.GC()
	}
	before := x.Stats()
	f.views[0] = x.Rebuild(f.views[0], f.proxies[0])
	if got, want := x.Stats().Minus(before), (Stats{ViewsBuilt: 1, LayersBuilt: 1}); got != want {
		t.Errorf("after three changes: %+v, want %+v", got, want)
	}
}

// TestEndpointChangeCostPerLocality has proxies in three localities, and failover for half
// of the services. The cost of an endpoint change does not depend on the garbage collector.
func TestEndpointChangeCostPerLocality(t *testing.T) {
	t.Parallel()
	f := threeNamespaces(t)
	for i := range f.proxies {
		f.proxies[i].Locality = mesh.ParseLocality([]string{"eu/a", "eu/b", "us/a"}[i%3])
	}
	for _, s := range f.w.f.Services {
		f.w.rule(s.Namespace, "failover-"+s.Name, `{"host":"`+string(s.Hostname)+`","trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":1}}}`)
	}
	x := NewIndex(f.next())
	f.rebuildViews(x)
	for i := range 3 {
		runtime.GC()
		before := x.Stats()
		w := *f.w.f.Workloads[2] // of b
		w.Weight = uint32(i + 2)
		f.w.f.Workloads[2] = &w
		x = x.Next(f.next())
		f.rebuildViews(x)
		// For the zero locality, and for each of the three.
		want := Stats{ViewsBuilt: 12, LayersBuilt: 3, Clusters: 4, Endpoints: 4}
		if d := cmp.Diff(want, x.Stats().Minus(before)); d != "" {
			t.Errorf("work (-want +got):\n%s", d)
		}
		for i, p := range f.proxies {
			if d := differenceOf(NewIndex(f.s).Build(p), f.views[i]); d != "" {
				t.Errorf("%s: %s", p.ID, d)
			}
		}
	}
}

// TestManyRouteEdits edits the routes of all services at once. It makes each virtual host
// once for each namespace.
func TestManyRouteEdits(t *testing.T) {
	t.Parallel()
	const services, proxies = 60, 10
	f := newFleet(t, services, proxies)
	x := NewIndex(f.s)
	f.rebuildViews(x)
	for n := range 3 {
		before := x.Stats()
		for i := range f.w.f.VirtualServices {
			f.editRoutes(i, n)
		}
		if n == 2 { // one of them takes no requests any more
			f.w.f.VirtualServices[5].Spec.Http = nil
		}
		x = x.Next(f.next())
		f.rebuildViews(x)
		made := x.Stats().Minus(before)
		if want := uint64(proxies * services / 2); n < 2 && (made.VirtualHosts != want || made.RouteConfigurations != proxies) {
			t.Errorf("%d virtual hosts and %d tables made, want %d and %d", made.VirtualHosts, made.RouteConfigurations, want, proxies)
		}
		for i, p := range f.proxies {
			if d := differenceOf(NewIndex(f.s).Build(p), f.views[i]); d != "" {
				t.Fatalf("edit %d, %s: %s", n, p.ID, d)
			}
		}
	}
}
