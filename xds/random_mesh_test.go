package xds

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typebeta "istio.io/api/type/v1beta1"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// randomMesh is a mesh of three namespaces in which anything may change: objects in files,
// a catalog, health, and settings.
type randomMesh struct {
	rnd            *rand.Rand
	n              int // changes so far
	files, catalog mesh.Fragment
	health         []*mesh.HealthReport
	config         *mesh.MeshConfig
	missing        []string // sources that have delivered nothing
	// proxies are the workloads that proxies have: they stay.
	proxies []*mesh.Workload
}

// fewServices and manyServices are such that the route configuration of their port is
// small enough for inline delivery at times.
const fewServices, manyServices = 14, 34

func newRandomMesh(seed uint64) *randomMesh {
	c := &randomMesh{rnd: rand.New(rand.NewPCG(seed, 5)), config: &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{
		TrustDomain: "cluster.local", RootNamespace: "istio-system", EnableAutoMtls: wrapperspb.Bool(true),
		ConnectTimeout: durationpb.New(10 * time.Second), DnsRefreshRate: durationpb.New(time.Minute),
	}}}
	for i := range 24 {
		c.files.Services = append(c.files.Services, c.service(i))
	}
	for i := range 12 {
		w := c.workload(c.namespace(i), fmt.Sprintf("home%02d", i), fmt.Sprintf("10.1.0.%d", i+1), hostName(i))
		c.proxies = append(c.proxies, w)
	}
	c.files.Workloads = slices.Clone(c.proxies)
	for i := range 3 {
		c.catalog.Services = append(c.catalog.Services, c.derived(i))
		home := c.instance(i, "home", fmt.Sprintf("10.2.0.%d", i+1))
		c.proxies = append(c.proxies, home)
		c.catalog.Workloads = append(c.catalog.Workloads, home)
	}
	return c
}

func hostName(i int) string { return fmt.Sprintf("s%02d", i) }

func (*randomMesh) namespace(i int) string { return string(rune('a' + i%3)) }

// meta is the metadata of an object that is written or registered again.
func (c *randomMesh) meta(kind mesh.Kind, ns, name string) mesh.Meta {
	c.n++
	return in(ns, smallmesh.Meta(kind, name, ns, c.n))
}

func (c *randomMesh) service(i int) *mesh.Service {
	s := &mesh.Service{
		Meta: c.meta(mesh.KindServiceEntry, c.namespace(i), hostName(i)), Hostname: mesh.Hostname(hostName(i) + ".mesh"), Resolution: mesh.ResolutionStatic,
		Ports: []mesh.Port{{Name: "http", Number: 8080, Protocol: mesh.HTTP}}, Selector: map[string]string{"app": hostName(i)},
	}
	if i%4 == 1 {
		s.Ports = append(s.Ports, mesh.Port{Name: "more", Number: 8081, Protocol: mesh.HTTP})
	}
	if i%5 == 0 {
		s.Ports = append(s.Ports, mesh.Port{Name: "tcp", Number: 9000, Protocol: mesh.TCP})
		s.Addresses = []string{fmt.Sprintf("240.0.0.%d", i+1)}
	}
	return s
}

func (c *randomMesh) workload(ns, name, address, app string) *mesh.Workload {
	w := &mesh.Workload{
		Meta: c.meta(mesh.KindWorkloadEntry, ns, name), Address: address, ServiceAccount: app,
		Locality: mesh.ParseLocality([]string{"", "eu/a", "eu/b"}[c.rnd.IntN(3)]), Weight: uint32(c.rnd.IntN(3)),
	}
	w.Labels = map[string]string{"app": app, "version": fmt.Sprint("v", 1+c.rnd.IntN(2))}
	return w
}

// derived is a service as the source of a catalog makes it.
func (c *randomMesh) derived(i int) *mesh.Service {
	name := fmt.Sprint("web", i)
	return &mesh.Service{
		Meta: c.meta(mesh.KindServiceEntry, "c", "consul/"+name), Hostname: mesh.Hostname(name + ".service.consul"), Catalog: true,
		Resolution: mesh.ResolutionStatic, Ports: []mesh.Port{{Name: "http", Number: 8080, Protocol: mesh.HTTP}},
		Selector: map[string]string{mesh.LabelConsulService: name},
	}
}

func (c *randomMesh) instance(i int, id, address string) *mesh.Workload {
	name := fmt.Sprint("web", i)
	w := c.workload("c", "consul/dc1/n1/"+name+"-"+id, address, name)
	w.Labels = map[string]string{mesh.LabelConsulService: name, "version": w.Labels["version"]}
	return w
}

// snapshot is the mesh as it is now.
func (c *randomMesh) snapshot(prev *mesh.Snapshot) *mesh.Snapshot {
	files, catalog := c.files, c.catalog
	files.Source, catalog.Source = "files", "consul"
	return mesh.Merge(mesh.Input{Prev: prev, Fallback: c.config, Missing: c.missing, Fragments: []*mesh.Fragment{
		files.Sorted(), catalog.Sorted(), (&mesh.Fragment{Source: "agents", Health: c.health}).Sorted(), nil,
	}})
}

// change makes one change of any kind.
func (c *randomMesh) change() {
	f := &c.files
	switch c.rnd.IntN(16) {
	case 0, 1:
		c.changeServices()
	case 2, 3, 4:
		c.changeEndpoints(&f.Workloads, func(n int) *mesh.Workload {
			i := c.rnd.IntN(24)
			return c.workload(c.namespace(i), fmt.Sprint("more", n), fmt.Sprintf("10.3.%d.%d", n/250, n%250), hostName(i))
		})
	case 5, 6, 7:
		i := c.rnd.IntN(manyServices)
		f.VirtualServices = replaced(f.VirtualServices, func(o *mesh.VirtualService) mesh.Key { return o.Key }, &mesh.VirtualService{
			Meta: c.meta(mesh.KindVirtualService, c.namespace(i), hostName(i)), Spec: c.routes(i),
		}, c.rnd.IntN(4) == 0)
	case 8:
		i := c.rnd.IntN(6)
		r := &mesh.DestinationRule{Meta: c.meta(mesh.KindDestinationRule, c.namespace(i), hostName(i)), Spec: c.rule(i)}
		r.ExportTo = mesh.Exports(c.pick(nil, nil, []string{"a"}, []string{"*"}))
		f.DestinationRules = replaced(f.DestinationRules, func(o *mesh.DestinationRule) mesh.Key { return o.Key }, r, c.rnd.IntN(4) == 0)
	case 9:
		mode := security.PeerAuthentication_MutualTLS_Mode(c.rnd.IntN(4))
		spec := &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{Mode: mode}}
		name := "default"
		if c.rnd.IntN(2) == 0 {
			name, spec.Selector = "some", &typebeta.WorkloadSelector{MatchLabels: map[string]string{"version": "v1"}}
		}
		f.PeerAuthentications = replaced(f.PeerAuthentications, func(o *mesh.PeerAuthentication) mesh.Key { return o.Key }, &mesh.PeerAuthentication{
			Meta: c.meta(mesh.KindPeerAuthentication, c.pickWord("a", "c", "istio-system"), name), Spec: spec,
		}, c.rnd.IntN(2) == 0)
	case 10:
		f.Sidecars = replaced(f.Sidecars, func(o *mesh.Sidecar) mesh.Key { return o.Key }, &mesh.Sidecar{
			Meta: c.meta(mesh.KindSidecar, "b", "default"),
			Spec: &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: c.pick([]string{"./*"}, []string{"./*", "a/*"}, []string{"*/*"})}}},
		}, c.rnd.IntN(2) == 0)
	case 11, 12:
		c.changeHealth()
	case 13, 14:
		c.changeCatalog()
	default:
		c.changeSettings()
	}
}

func (c *randomMesh) pick(list ...[]string) []string { return list[c.rnd.IntN(len(list))] }
func (c *randomMesh) pickWord(list ...string) string { return list[c.rnd.IntN(len(list))] }

// replaced sets an object, or removes the one that has its name.
func replaced[T any](list []*T, keyOf func(*T) mesh.Key, x *T, remove bool) []*T {
	out := slices.DeleteFunc(slices.Clone(list), func(o *T) bool { return keyOf(o) == keyOf(x) })
	if remove {
		return out
	}
	return append(out, x)
}

// changeServices adds or removes some services.
func (c *randomMesh) changeServices() {
	have := map[mesh.Hostname]bool{}
	for _, s := range c.files.Services {
		have[s.Hostname] = true
	}
	fewer := c.rnd.IntN(2) == 0
	for range 1 + c.rnd.IntN(8) {
		i := c.rnd.IntN(manyServices)
		s := c.service(i)
		switch {
		case fewer && have[s.Hostname] && len(c.files.Services) > fewServices:
			c.files.Services = slices.DeleteFunc(slices.Clone(c.files.Services), func(o *mesh.Service) bool { return o.Hostname == s.Hostname })
			delete(have, s.Hostname)
		case !fewer && !have[s.Hostname]:
			c.files.Services = append(slices.Clone(c.files.Services), s)
			have[s.Hostname] = true
		}
	}
}

// changeEndpoints adds, removes or changes an endpoint.
func (c *randomMesh) changeEndpoints(list *[]*mesh.Workload, more func(n int) *mesh.Workload) {
	all := slices.Clone(*list)
	i := c.rnd.IntN(len(all))
	switch home := slices.Contains(c.proxies, all[i]); {
	case c.rnd.IntN(3) == 0 || home:
		all = append(all, more(c.n))
	case c.rnd.IntN(2) == 0:
		all = slices.Delete(all, i, i+1)
	default:
		w := *all[i]
		w.Meta = c.meta(w.Kind, w.Namespace, w.Name)
		w.Labels, w.Weight = all[i].Labels, uint32(c.rnd.IntN(5))
		w.Health = mesh.Health(c.rnd.IntN(3))
		all[i] = &w
	}
	*list = all
}

func (c *randomMesh) routes(i int) *networking.VirtualService {
	host := hostName(i) + ".mesh"
	to := &networking.HTTPRouteDestination{Destination: &networking.Destination{Host: hostName(c.rnd.IntN(24)) + ".mesh"}}
	if c.rnd.IntN(2) == 0 {
		to.Destination.Subset = fmt.Sprint("v", 1+c.rnd.IntN(2))
	}
	match := &networking.HTTPMatchRequest{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: fmt.Sprint("/", c.n)}}}
	if c.rnd.IntN(4) == 0 {
		match.SourceLabels = map[string]string{"version": "v1"}
	}
	return &networking.VirtualService{Hosts: []string{host}, Http: []*networking.HTTPRoute{
		{Match: []*networking.HTTPMatchRequest{match}, Route: []*networking.HTTPRouteDestination{to}},
		{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}}},
	}}
}

func (c *randomMesh) rule(i int) *networking.DestinationRule {
	spec := &networking.DestinationRule{Host: hostName(i) + ".mesh", TrafficPolicy: &networking.TrafficPolicy{}}
	spec.TrafficPolicy.ConnectionPool = &networking.ConnectionPoolSettings{Tcp: &networking.ConnectionPoolSettings_TCPSettings{
		ConnectTimeout: durationpb.New(time.Duration(1+c.rnd.IntN(3)) * time.Second),
	}}
	if c.rnd.IntN(3) == 0 { // then the place of a proxy makes a difference
		spec.TrafficPolicy.OutlierDetection = &networking.OutlierDetection{Consecutive_5XxErrors: wrapperspb.UInt32(5)}
	}
	for v := range c.rnd.IntN(3) {
		spec.Subsets = append(spec.Subsets, &networking.Subset{Name: fmt.Sprint("v", v+1), Labels: map[string]string{"version": fmt.Sprint("v", v+1)}})
	}
	return spec
}

// changeHealth changes the health of one workload.
func (c *randomMesh) changeHealth() {
	w := c.proxies[c.rnd.IntN(len(c.proxies))]
	r := &mesh.HealthReport{
		ServiceAccount: mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount}, Address: w.Address,
		Health: mesh.Health(c.rnd.IntN(3)), Own: true,
	}
	c.health = append(slices.DeleteFunc(slices.Clone(c.health), func(o *mesh.HealthReport) bool { return o.Address == r.Address }), r)
}

// changeCatalog changes the catalog, or adds a ServiceEntry for one of its hosts.
func (c *randomMesh) changeCatalog() {
	i := c.rnd.IntN(6)
	s := c.derived(i)
	same := func(o *mesh.Service) bool { return o.Hostname == s.Hostname }
	switch c.rnd.IntN(4) {
	case 0: // it has the service, or not any more
		with := slices.DeleteFunc(slices.Clone(c.catalog.Services), same)
		if len(with) == len(c.catalog.Services) {
			with = append(with, s)
		}
		c.catalog.Services = with
	case 1: // a ServiceEntry for it is added or removed
		with := slices.DeleteFunc(slices.Clone(c.files.Services), same)
		if len(with) == len(c.files.Services) {
			s.Meta, s.Catalog = c.meta(mesh.KindServiceEntry, "a", fmt.Sprint("web", i)), false
			s.Selector = map[string]string{"app": hostName(i)}
			s.ExportTo = mesh.Exports(c.pick(nil, []string{"a"}, []string{"b", "c"}))
			with = append(with, s)
		}
		c.files.Services = with
	default:
		c.changeEndpoints(&c.catalog.Workloads, func(n int) *mesh.Workload {
			return c.instance(i, strconv.Itoa(n), fmt.Sprintf("10.4.%d.%d", n/250, n%250))
		})
	}
}

// changeSettings changes what affects all proxies.
func (c *randomMesh) changeSettings() {
	if c.rnd.IntN(2) == 0 {
		if c.missing = []string{"other"}; c.rnd.IntN(2) == 0 {
			c.missing = nil
		}
		return
	}
	spec := proto.CloneOf(c.config.Spec)
	spec.ConnectTimeout = durationpb.New(time.Duration(1+c.rnd.IntN(3)) * time.Second)
	spec.OutboundTrafficPolicy = &meshconfig.MeshConfig_OutboundTrafficPolicy{Mode: meshconfig.MeshConfig_OutboundTrafficPolicy_Mode(c.rnd.IntN(2))}
	c.config = &mesh.MeshConfig{Spec: spec}
}

// peer is entitled to all of the mesh's proxies.
func (c *randomMesh) peer() *Peer {
	p := &Peer{Host: "all"}
	for _, w := range c.proxies {
		p.Pairs = append(p.Pairs, mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount})
	}
	return p
}
