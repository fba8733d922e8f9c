package xds

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/stream"
)

// smallMesh is a mesh of three namespaces, with two services of two workloads in each.
type smallMesh struct {
	smallmesh.Objects

	health  []*mesh.HealthReport
	catalog mesh.Fragment
	config  *mesh.MeshConfig // or nil: as it was
}

func in(ns string, m mesh.Meta) mesh.Meta {
	m.Namespace = ns
	m.Hash = sha256.Sum256(append(m.Hash[:], ns...))
	return m
}

func newSmallMesh() *smallMesh {
	t := &smallMesh{}
	for i, ns := range []string{"a", "b", "c"} {
		for j := range 2 {
			name := fmt.Sprintf("%s%d", ns, j)
			t.Services = append(t.Services, smallMeshService(ns, name))
			for k := range 2 {
				t.Workloads = append(t.Workloads, smallMeshWorkload(ns, name, k, fmt.Sprintf("10.%d.%d.%d", i, j, k+1)))
			}
		}
	}
	return t
}

func smallMeshService(ns, name string) *mesh.Service {
	return &mesh.Service{
		Meta: in(ns, smallmesh.Meta(mesh.KindServiceEntry, name, "service")), Hostname: mesh.Hostname(name + ".mesh"), Resolution: mesh.ResolutionStatic,
		Ports: []mesh.Port{{Name: "http", Number: 8080, Protocol: mesh.HTTP}}, Selector: map[string]string{"app": name},
	}
}

func smallMeshWorkload(ns, app string, k int, address string) *mesh.Workload {
	w := &mesh.Workload{
		Meta: in(ns, smallmesh.Meta(mesh.KindWorkloadEntry, fmt.Sprintf("%s-%d", app, k), address)), Address: address, ServiceAccount: app,
	}
	w.Labels = map[string]string{"app": app}
	return w
}

// relabel gives the last workload other labels.
func (o *smallMesh) relabel(labels map[string]string) {
	w := *o.Workloads[len(o.Workloads)-1]
	w.Labels, w.Hash = labels, sha256.Sum256(fmt.Append(nil, labels))
	o.Workloads[len(o.Workloads)-1] = &w
}

// inlineService has inline endpoints.
func inlineService(addresses ...string) *mesh.Service {
	s := smallMeshService("b", "b7")
	s.Selector, s.Hash = nil, sha256.Sum256(fmt.Append(nil, addresses))
	for _, a := range addresses {
		s.Inline = append(s.Inline, &mesh.Workload{Meta: in("b", smallmesh.Meta(mesh.KindWorkloadEntry, "", a)), Address: a})
	}
	return s
}

func (o *smallMesh) build(prev *mesh.Snapshot) *mesh.Snapshot {
	base := o.Snapshot(nil)
	files, agents, consul := smallmesh.Clone(&o.Fragment), &mesh.Fragment{Source: "agents", Health: o.health}, smallmesh.Clone(&o.catalog)
	files.Source, consul.Source = "files", "consul"
	return mesh.NewSnapshot(prev, cmp.Or(o.config, meshConfigOf(base, prev)), []*mesh.Fragment{files, agents, consul})
}

// addCatalogService adds a service with one instance to a catalog.
func (o *smallMesh) addCatalogService() {
	o.catalog.Services = []*mesh.Service{{
		Meta: in("c", smallmesh.Meta(mesh.KindServiceEntry, "consul/web")), Hostname: "web.service.consul", Catalog: true, Resolution: mesh.ResolutionStatic,
		Ports: []mesh.Port{{Name: "http", Number: 8080, Protocol: mesh.HTTP}}, Selector: map[string]string{mesh.LabelConsulService: "web"},
	}}
	o.instance("10.8.0.1", mesh.Healthy)
}

// instance sets, or replaces, the catalog's instance at an address.
func (o *smallMesh) instance(address string, health mesh.Health) {
	w := &mesh.Workload{
		Meta: in("c", smallmesh.Meta(mesh.KindWorkloadEntry, "consul/dc1/n1/web-"+address, health)), Address: address, ServiceAccount: "web", Health: health,
	}
	w.Labels = map[string]string{mesh.LabelConsulService: "web"}
	o.catalog.Workloads = append(slices.DeleteFunc(slices.Clone(o.catalog.Workloads), func(x *mesh.Workload) bool { return x.Address == address }), w)
}

// meshConfigOf is one MeshConfig for all snapshots, like that of a source that did not
// change.
func meshConfigOf(base, prev *mesh.Snapshot) *mesh.MeshConfig {
	if prev != nil {
		return prev.MeshConfig
	}
	return base.MeshConfig
}

func (o *smallMesh) route(host, prefix string) { o.routeFrom(host[:1], host, prefix) }

// routeFrom routes requests for a host by a VirtualService of a namespace.
func (o *smallMesh) routeFrom(ns, host, prefix string) {
	o.VirtualServices = slices.DeleteFunc(slices.Clone(o.VirtualServices), func(v *mesh.VirtualService) bool { return v.Name == host })
	o.VirtualServices = append(o.VirtualServices, &mesh.VirtualService{
		Meta: in(ns, smallmesh.Meta(mesh.KindVirtualService, host, prefix)),
		Spec: &networking.VirtualService{Hosts: []string{host}, Http: []*networking.HTTPRoute{{
			Match: []*networking.HTTPMatchRequest{{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: prefix}}}},
			Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}},
		}}},
	})
}

// rule sets, or replaces, a DestinationRule.
func (o *smallMesh) rule(timeout time.Duration, exportTo ...string) {
	const host, ns = "a0.mesh", "a"
	o.DestinationRules = slices.DeleteFunc(slices.Clone(o.DestinationRules), func(v *mesh.DestinationRule) bool { return v.Name == host })
	r := &mesh.DestinationRule{
		Meta: in(ns, smallmesh.Meta(mesh.KindDestinationRule, host, timeout, exportTo)),
		Spec: &networking.DestinationRule{Host: host, TrafficPolicy: &networking.TrafficPolicy{ConnectionPool: &networking.ConnectionPoolSettings{
			Tcp: &networking.ConnectionPoolSettings_TCPSettings{ConnectTimeout: durationpb.New(timeout)},
		}}},
	}
	r.ExportTo = mesh.Exports(exportTo)
	o.DestinationRules = append(o.DestinationRules, r)
}

// unhealthy reports a workload of a0 as unhealthy.
func (o *smallMesh) unhealthy() {
	o.health = []*mesh.HealthReport{{
		ServiceAccount: mesh.ServiceAccount{Namespace: "a", Name: "a0"}, Address: "10.0.0.1", Health: mesh.Unhealthy, Own: true,
	}}
}

// strict requires mTLS for the proxies of namespace b.
func (o *smallMesh) strict() {
	o.PeerAuthentications = []*mesh.PeerAuthentication{{
		Meta: in("b", smallmesh.Meta(mesh.KindPeerAuthentication, "default")),
		Spec: &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{Mode: security.PeerAuthentication_MutualTLS_STRICT}},
	}}
}

// scope limits what the proxies of namespace b see.
func (o *smallMesh) scope(hosts ...string) {
	o.Sidecars = []*mesh.Sidecar{{
		Meta: in("b", smallmesh.Meta(mesh.KindSidecar, "default", hosts)),
		Spec: &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: hosts}}},
	}}
}

// connectTimeout changes the connect timeout of all clusters.
func (o *smallMesh) connectTimeout(d time.Duration) {
	base := o.Snapshot(nil).MeshConfig
	spec, ok := proto.Clone(base.Spec).(*meshconfig.MeshConfig)
	if !ok {
		panic("a clone of another type")
	}
	spec.ConnectTimeout = durationpb.New(d)
	o.config = &mesh.MeshConfig{Spec: spec}
}

// expectation is the work of a change: numbers of views built and kept, and of resources
// built and sent, by type.
type expectation struct {
	built, kept uint64
	resources   map[stream.TypeURL]uint64
	sent        map[stream.TypeURL]uint64
}

// TestWorkOfChange pins what each kind of change costs in a mesh of twelve proxies:
// affected resources are built once, and sent to the proxies that see them.
func TestWorkOfChange(t *testing.T) {
	t.Parallel()
	type amounts = map[stream.TypeURL]uint64
	for name, c := range map[string]struct {
		before, change func(*smallMesh)
		want           expectation
	}{
		"virtual-service-edited": {
			before: func(o *smallMesh) { o.route("a0.mesh", "/v1") },
			change: func(o *smallMesh) { o.route("a0.mesh", "/v2") },
			want:   expectation{12, 0, amounts{stream.VirtualHostType: 1}, amounts{stream.VirtualHostType: 12}},
		},
		"destination-rule-edited": {
			before: func(o *smallMesh) { o.rule(time.Second) },
			change: func(o *smallMesh) { o.rule(2 * time.Second) },
			// The two proxies of the service follow the rule inbound, too. Endpoints
			// follow their cluster, as Envoy waits for them.
			want: expectation{12, 0, amounts{stream.ClusterType: 2}, amounts{stream.ClusterType: 14, stream.EndpointType: 12}},
		},
		"destination-rule-of-one-namespace-edited": {
			before: func(o *smallMesh) { o.rule(time.Second, "a") },
			change: func(o *smallMesh) { o.rule(2*time.Second, "a") },
			want:   expectation{4, 8, amounts{stream.ClusterType: 2}, amounts{stream.ClusterType: 6, stream.EndpointType: 4}},
		},
		"destination-rule-added": {
			change: func(o *smallMesh) { o.rule(time.Second) },
			want:   expectation{12, 0, amounts{stream.ClusterType: 2}, amounts{stream.ClusterType: 14, stream.EndpointType: 12}},
		},
		"endpoint-added": {
			change: func(o *smallMesh) { o.Workloads = append(o.Workloads, smallMeshWorkload("a", "a0", 7, "10.9.9.1")) },
			want:   expectation{12, 0, amounts{stream.EndpointType: 1}, amounts{stream.EndpointType: 12}},
		},
		"endpoint-relabelled": {
			before: func(o *smallMesh) { o.Workloads = append(o.Workloads, smallMeshWorkload("a", "a0", 7, "10.9.9.1")) },
			change: func(o *smallMesh) { o.relabel(map[string]string{"app": "a0", "team": "x"}) },
			want:   expectation{kept: 12}, // nothing asks for that label
		},
		"endpoint-of-another-service": {
			before: func(o *smallMesh) { o.Workloads = append(o.Workloads, smallMeshWorkload("a", "a0", 7, "10.9.9.1")) },
			change: func(o *smallMesh) { o.relabel(map[string]string{"app": "a1"}) },
			// Its account is another than those of the service that it serves now.
			want: expectation{
				12, 0,
				amounts{stream.ClusterType: 1, stream.EndpointType: 2},
				amounts{stream.ClusterType: 12, stream.EndpointType: 24},
			},
		},
		"inline-endpoint-replaced": {
			before: func(o *smallMesh) { o.Services = append(o.Services, inlineService("10.9.9.1", "10.9.9.2")) },
			change: func(o *smallMesh) { o.Services[len(o.Services)-1] = inlineService("10.9.9.1", "10.9.9.3") },
			want:   expectation{12, 0, amounts{stream.EndpointType: 1}, amounts{stream.EndpointType: 12}},
		},
		"port-changed": {
			before: func(o *smallMesh) { o.Services = append(o.Services, inlineService("10.9.9.1")) },
			change: func(o *smallMesh) {
				s := inlineService("10.9.9.1")
				s.Ports[0].Number, s.Hash[0] = 8081, s.Hash[0]+1
				o.Services[len(o.Services)-1] = s
			},
			// That port is new: a listener and a route configuration of its own for it, with the
			// host and with what is for all others.
			want: expectation{
				12, 0,
				amounts{stream.ClusterType: 1, stream.EndpointType: 1, stream.ListenerType: 1, stream.RouteType: 1, stream.VirtualHostType: 2},
				amounts{stream.ClusterType: 12, stream.EndpointType: 12, stream.ListenerType: 12, stream.RouteType: 12, stream.VirtualHostType: 24},
			},
		},
		"endpoint-replaced": {
			before: func(o *smallMesh) { o.Workloads = append(o.Workloads, smallMeshWorkload("a", "a0", 7, "10.9.9.1")) },
			change: func(o *smallMesh) { o.Workloads[len(o.Workloads)-1] = smallMeshWorkload("a", "a0", 7, "10.9.9.2") },
			want:   expectation{12, 0, amounts{stream.EndpointType: 1}, amounts{stream.EndpointType: 12}},
		},
		"endpoint-removed": {
			before: func(o *smallMesh) { o.Workloads = append(o.Workloads, smallMeshWorkload("a", "a0", 7, "10.9.9.1")) },
			change: func(o *smallMesh) { o.Workloads = o.Workloads[:len(o.Workloads)-1] },
			want:   expectation{12, 0, amounts{stream.EndpointType: 1}, amounts{stream.EndpointType: 12}},
		},
		"virtual-service-added": {
			change: func(o *smallMesh) { o.route("b1.mesh", "/v1") },
			want:   expectation{12, 0, amounts{stream.VirtualHostType: 1}, amounts{stream.VirtualHostType: 12}},
		},
		"virtual-service-removed": {
			before: func(o *smallMesh) { o.route("a0.mesh", "/v1") },
			change: func(o *smallMesh) { o.VirtualServices = nil },
			want:   expectation{12, 0, amounts{stream.VirtualHostType: 1}, amounts{stream.VirtualHostType: 12}},
		},
		"destination-rule-removed": {
			before: func(o *smallMesh) { o.rule(time.Second) },
			change: func(o *smallMesh) { o.DestinationRules = nil },
			// The inbound one is again that of the other services.
			want: expectation{12, 0, amounts{stream.ClusterType: 1}, amounts{stream.ClusterType: 14, stream.EndpointType: 12}},
		},
		"peer-authentication-removed": {
			before: (*smallMesh).strict,
			change: func(o *smallMesh) { o.PeerAuthentications = nil },
			want:   expectation{4, 8, amounts{stream.ListenerType: 2}, amounts{stream.ListenerType: 4}},
		},
		"sidecar-removed": {
			before: func(o *smallMesh) { o.scope("./*", "a/*") },
			change: func(o *smallMesh) { o.Sidecars = nil },
			// Others see those services already: nothing is made.
			want: expectation{4, 8, nil, amounts{stream.ClusterType: 8, stream.EndpointType: 8, stream.VirtualHostType: 8}},
		},
		"instance-of-a-catalog-turns-critical": {
			before: (*smallMesh).addCatalogService,
			change: func(o *smallMesh) { o.instance("10.8.0.1", mesh.Unhealthy) },
			want:   expectation{12, 0, amounts{stream.EndpointType: 1}, amounts{stream.EndpointType: 12}},
		},
		"instance-of-a-catalog-registered": {
			before: (*smallMesh).addCatalogService,
			change: func(o *smallMesh) { o.instance("10.8.0.2", mesh.HealthUnknown) },
			want:   expectation{12, 0, amounts{stream.EndpointType: 1}, amounts{stream.EndpointType: 12}},
		},
		"service-of-a-catalog-deregistered": {
			before: (*smallMesh).addCatalogService,
			change: func(o *smallMesh) { o.catalog.Services, o.catalog.Workloads = nil, nil },
			want:   expectation{built: 12}, // names alone are sent
		},
		"health-changed": {
			change: (*smallMesh).unhealthy,
			want:   expectation{12, 0, amounts{stream.EndpointType: 1}, amounts{stream.EndpointType: 12}},
		},
		"health-changed-back": {
			before: (*smallMesh).unhealthy,
			change: func(o *smallMesh) { o.health = nil },
			want:   expectation{12, 0, amounts{stream.EndpointType: 1}, amounts{stream.EndpointType: 12}},
		},
		"service-removed": {
			before: func(o *smallMesh) { o.Services = append(o.Services, smallMeshService("b", "b7")) },
			change: func(o *smallMesh) { o.Services = o.Services[:len(o.Services)-1] },
			want:   expectation{built: 12}, // names alone are sent
		},
		"peer-authentication-added": {
			change: (*smallMesh).strict,
			// One listener a service takes what is sent to its workloads.
			want: expectation{4, 8, amounts{stream.ListenerType: 2}, amounts{stream.ListenerType: 4}},
		},
		"sidecar-added": {
			change: func(o *smallMesh) { o.scope("./*", "a/*") },
			want:   expectation{built: 4, kept: 8}, // names alone are sent
		},
		"sidecar-edited": {
			before: func(o *smallMesh) { o.scope("./*", "a/*") },
			change: func(o *smallMesh) { o.scope("./*", "a/*", "c/c0.mesh") },
			// Others see that service already: nothing is made.
			want: expectation{4, 8, nil, amounts{stream.ClusterType: 4, stream.EndpointType: 4, stream.VirtualHostType: 4}},
		},
		"mesh-config-edited": {
			change: func(o *smallMesh) { o.connectTimeout(3 * time.Second) },
			// Six services, and four clusters for what is none, and for the application.
			want: expectation{12, 0, amounts{stream.ClusterType: 10}, amounts{stream.ClusterType: 120, stream.EndpointType: 72}},
		},
		"service-added": {
			change: func(o *smallMesh) { o.Services = append(o.Services, smallMeshService("b", "b7")) },
			want: expectation{
				12, 0,
				amounts{stream.ClusterType: 1, stream.EndpointType: 1, stream.VirtualHostType: 1},
				amounts{stream.ClusterType: 12, stream.EndpointType: 12, stream.VirtualHostType: 12},
			},
		},
		"comment-only": {
			before: func(o *smallMesh) { o.route("a0.mesh", "/v1") },
			change: func(o *smallMesh) {
				v := *o.VirtualServices[0]
				v.Origin = &mesh.Origin{Source: "files", Path: "a0.yaml", Line: 7, Column: 1}
				o.VirtualServices[0] = &v
			},
			want: expectation{built: 0, kept: 12},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newSmallMesh()
			if c.before != nil {
				c.before(o)
			}
			c.want.of(t, o, c.change)
		})
	}
}

// of applies a change to a mesh whose proxies have everything, and counts the work.
func (e *expectation) of(t *testing.T, o *smallMesh, change func(*smallMesh)) {
	t.Helper()
	r := newRig(t, nil, admitAll(&o.Objects))
	r.mesh.publish(o.build(nil))
	all := o.fleet(t, r)
	was, sizes := r.server.Work(), r.sizes()
	change(o)
	next := o.build(r.mesh.Snapshot())
	r.mesh.publish(next)
	eventually(t, "all have answered", func() bool {
		x, ok := r.server.Convergence(next.Generation)
		return ok && !x.Done.IsZero()
	})
	for _, p := range all {
		p.waitConverged(r)
	}
	did := r.server.Work().since(was)
	e.check(t, did)
	encodedOnce(t, sizes, r.sizes(), did)
}

// fleet connects relays, one a workload, and waits until all have everything.
func (o *smallMesh) fleet(t *testing.T, r *rig) []*proxy {
	t.Helper()
	var all []*proxy
	for _, w := range newSmallMesh().Workloads {
		p := newProxy(t, relay, &bootstrap.Node{
			Type: bootstrap.TypeSidecar, Address: netip.MustParseAddr(w.Address), Name: w.Name, Namespace: w.Namespace, Domain: "svc.local",
			ServiceAccount: w.ServiceAccount, Interception: "REDIRECT", WorkloadName: w.Name,
		})
		p.open(r)
		all = append(all, p)
	}
	for _, p := range all {
		p.waitConverged(r)
	}
	eventually(t, "all is answered", func() bool { return r.server.convergedProxies() == len(all) })
	return all
}

func (e *expectation) check(t *testing.T, got Work) {
	t.Helper()
	if got.ViewsBuilt != e.built || got.ViewsKept != e.kept {
		t.Errorf("%d views built and %d kept, want %d and %d", got.ViewsBuilt, got.ViewsKept, e.built, e.kept)
	}
	built, sent := map[stream.TypeURL]uint64{}, map[stream.TypeURL]uint64{}
	for url, a := range got.Built {
		built[url] = a.Resources
	}
	for url, a := range got.Sent {
		if a.Resources > 0 { // else it was names, of what is gone
			sent[url] = a.Resources
		}
	}
	if !maps.Equal(built, e.resources) {
		t.Errorf("built %v, want %v", built, e.resources)
	}
	if !maps.Equal(sent, e.sent) {
		t.Errorf("sent %v, want %v", sent, e.sent)
	}
}

// sizes are the resources in force, with their bytes.
func (r *rig) sizes() map[stream.TypeURL]map[string]int {
	out := map[stream.TypeURL]map[string]int{}
	for _, c := range r.server.connections() {
		for _, url := range cache.Types() {
			for res := range c.current.Load().Resources.Generation.All(url) {
				if out[url] == nil {
					out[url] = map[string]int{}
				}
				out[url][res.Name+" "+res.Version] = len(res.Body)
			}
		}
	}
	return out
}

// encodedOnce compares the bytes that were encoded with the new resources: each counts
// once.
func encodedOnce(t *testing.T, was, now map[stream.TypeURL]map[string]int, got Work) {
	t.Helper()
	for url, of := range now {
		fresh := 0
		for name, size := range of {
			if _, old := was[url][name]; !old {
				fresh += size
			}
		}
		if n := int(got.Built[url].Bytes); n != fresh {
			t.Errorf("%d bytes of %s were encoded, and %d are new", n, url.Short(), fresh)
		}
	}
}
