package cache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/meshgen"
	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// builtProxy is what Envoy has of a proxy, as far as it decides where requests go.
type builtProxy struct {
	tb        testing.TB
	endpoints map[string]int // by the name of a cluster; -1 if it needs none
	assigned  map[string]int // the endpoints of clusters with EDS
	// routed are the clusters that get requests by an object, by that object's NAMESPACE/NAME; those of
	// connections are by "".
	routed map[string]map[string]bool
	// weighted are those of connections that are shared among several, which only an object does.
	weighted map[string]bool
	// elsewhere are those of connections to what is not the service itself. Only an object does that.
	elsewhere map[string]bool
	// maybe are an object and a cluster, as in routed, and those of virtual hosts that nobody calls. A proxy may have
	// no cluster for a service of which it knows no endpoint, so that it is not clear which these are.
	maybe map[[2]string]bool
	// inherited are those of hosts that no service has: their port may be that of the request.
	inherited map[string]bool
}

func builtOf(tb testing.TB, s *mesh.Snapshot, v *view.View, router bool) *builtProxy {
	tb.Helper()
	b := &builtProxy{
		tb: tb, endpoints: map[string]int{}, assigned: map[string]int{}, routed: map[string]map[string]bool{},
		weighted: map[string]bool{}, elsewhere: map[string]bool{}, inherited: map[string]bool{}, maybe: map[[2]string]bool{},
	}
	var hosts []*routev3.VirtualHost
	for part := range v.Parts() {
		resources, _ := envoy.Build(part)
		for _, r := range resources {
			m, err := envoy.Decode(r)
			if err != nil {
				tb.Fatal(err)
			}
			switch m := m.(type) {
			case *clusterv3.Cluster:
				b.cluster(m)
			case *endpointv3.ClusterLoadAssignment:
				b.assigned[m.GetClusterName()] = count(m)
			case *routev3.RouteConfiguration:
				for _, vh := range m.GetVirtualHosts() {
					if vh.GetRequireTls() == routev3.VirtualHost_NONE {
						hosts = append(hosts, vh)
					}
				}
			case *listenerv3.Listener:
				for _, c := range append(slices.Clone(m.GetFilterChains()), m.GetDefaultFilterChain()) {
					b.chain(s, m, c)
				}
			}
		}
	}
	for name, n := range b.assigned {
		if b.endpoints[name] == 0 {
			b.endpoints[name] = n
		}
	}
	for _, vh := range hosts {
		declared, has := b.called(s, vh.GetName())
		b.host(vh, router || has || !declared, !router && !declared)
	}
	return b
}

func count(m *endpointv3.ClusterLoadAssignment) (n int) {
	for _, l := range m.GetEndpoints() {
		n += len(l.GetLbEndpoints())
	}
	return n
}

func (b *builtProxy) cluster(c *clusterv3.Cluster) {
	n := count(c.GetLoadAssignment())
	if c.GetClusterType() != nil || c.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		n = -1
	}
	b.endpoints[c.GetName()] = n
}

// called reports whether some service has the host of a virtual host of a sidecar, and whether the proxy has a
// cluster for its port: it has none for a port that the service does not have, or for a service that it does not see.
func (b *builtProxy) called(s *mesh.Snapshot, name string) (declared, has bool) {
	i := strings.LastIndexByte(name, ':')
	if i < 0 { // allow_any
		return false, false
	}
	host, port := mesh.Hostname(strings.Trim(name[:i], "[]")), name[i+1:]
	declared = slices.ContainsFunc(s.Services, func(svc *mesh.Service) bool {
		return svc.Hostname.Covers(host) || host.IsWildcard() && svc.Hostname.Overlaps(host)
	})
	_, has = b.endpoints["outbound|"+port+"||"+string(host)]
	return declared, has
}

// otherPort reports whether a cluster is of a port that its host does not have, and that no object may name.
func (b *builtProxy) otherPort(s *mesh.Snapshot, cluster string) bool {
	parts := strings.Split(cluster, "|")
	port, host := parts[1], parts[3]
	if _, there := b.endpoints[cluster]; there || !b.inherited[cluster] {
		return false
	}
	if slices.ContainsFunc(slices.Collect(maps.Keys(b.endpoints)), func(c string) bool { return strings.HasSuffix(c, "|"+host) }) {
		return true
	}
	services := s.ServicesOn(mesh.Hostname(host))
	return len(services) > 0 && !slices.ContainsFunc(services, func(svc *mesh.Service) bool {
		return slices.ContainsFunc(svc.Ports, func(p mesh.Port) bool { return strconv.FormatUint(uint64(p.Number), 10) == port })
	})
}

// aborts reports whether a route answers each request by itself.
func aborts(tb testing.TB, r *routev3.Route) bool {
	tb.Helper()
	packed := r.GetTypedPerFilterConfig()["envoy.filters.http.fault"]
	if packed == nil {
		return false
	}
	f := &faultv3.HTTPFault{}
	if err := packed.UnmarshalTo(f); err != nil {
		tb.Fatal(err)
	}
	return f.GetAbort() != nil && f.GetAbort().GetPercentage().GetNumerator() >= 1_000_000
}

// objectOf is the object that a route or virtual host says it comes from.
func objectOf(m *corev3.Metadata) string {
	path := m.GetFilterMetadata()["istio"].GetFields()["config"].GetStringValue()
	rest, _ := strings.CutPrefix(path, "/apis/networking.istio.io/v1/namespaces/")
	ns, name, _ := strings.Cut(rest, "/virtual-service/")
	return ns + "/" + name
}

func (b *builtProxy) to(object, cluster string) {
	if b.routed[object] == nil {
		b.routed[object] = map[string]bool{}
	}
	b.routed[object][cluster] = true
}

func (b *builtProxy) host(vh *routev3.VirtualHost, called, inherits bool) {
	to := func(object, cluster string) {
		b.maybe[[2]string{object, cluster}] = true
		if called {
			b.to(object, cluster)
		}
		b.inherited[cluster] = b.inherited[cluster] || inherits
	}
	for _, r := range vh.GetRoutes() {
		m := vh.GetMetadata()
		if r.GetMetadata() != nil {
			m = r.GetMetadata()
		}
		object := objectOf(m)
		switch {
		case aborts(b.tb, r):
			continue
		case m != nil:
		case vh.GetName() == "allow_any": // of a Sidecar, if it is no passthrough
			object = ""
		default: // the route that a service has without an object
			continue
		}
		if c := r.GetRoute().GetCluster(); c != "" {
			to(object, c)
		}
		for _, c := range r.GetRoute().GetWeightedClusters().GetClusters() {
			if c.GetWeight().GetValue() > 0 {
				to(object, c.GetName())
			}
		}
	}
}

// leadsElsewhere reports whether a chain is for connections to another service than that of its cluster, as far
// as addresses and server names show it.
func leadsElsewhere(s *mesh.Snapshot, l *listenerv3.Listener, c *listenerv3.FilterChain, cluster string) bool {
	host := strings.Split(cluster, "|")[3]
	if names := c.GetFilterChainMatch().GetServerNames(); len(names) > 0 {
		return !slices.Contains(names, host)
	}
	at := []string{l.GetAddress().GetSocketAddress().GetAddress()}
	for _, r := range c.GetFilterChainMatch().GetPrefixRanges() {
		at = append(at, r.GetAddressPrefix())
	}
	its, others := false, false
	for _, svc := range s.Services {
		for _, a := range svc.Addresses {
			there := slices.ContainsFunc(at, func(x string) bool { return strings.HasPrefix(a+"/", x+"/") })
			its, others = its || there && string(svc.Hostname) == host, others || there && string(svc.Hostname) != host
		}
	}
	return others && !its
}

func (b *builtProxy) chain(s *mesh.Snapshot, l *listenerv3.Listener, c *listenerv3.FilterChain) {
	for _, f := range c.GetFilters() {
		t := &tcpv3.TcpProxy{}
		if !f.GetTypedConfig().MessageIs(t) {
			continue
		}
		if err := f.GetTypedConfig().UnmarshalTo(t); err != nil {
			b.tb.Fatal(err)
		}
		if name := t.GetCluster(); name != "" {
			b.to("", name)
			if strings.HasPrefix(name, "outbound|") && leadsElsewhere(s, l, c, name) {
				b.elsewhere[name] = true
			}
		}
		for _, w := range t.GetWeightedClusters().GetClusters() {
			if w.GetWeight() > 0 {
				b.to("", w.GetName())
				b.weighted[w.GetName()] = true
			}
		}
	}
}

// fails reports whether what Envoy sends to a cluster fails.
func (b *builtProxy) fails(cluster string) bool {
	n, there := b.endpoints[cluster]
	return strings.HasPrefix(cluster, "outbound|") && (!there || n == 0)
}

// covers reports whether a finding is about a cluster.
func covers(f view.Finding, cluster string) bool {
	parts := strings.Split(cluster, "|")
	if len(parts) != 4 || parts[3] != string(f.Host) {
		return false
	}
	anything := f.Kind == view.NoDestination && f.Port == 0 && f.Subset == "" // the host
	return anything || parts[2] == f.Subset && (f.Port == 0 || parts[1] == strconv.FormatUint(uint64(f.Port), 10))
}

// knownMembers reports whether the mesh knows a workload that a cluster may have: one that is not healthy,
// or that is not for this proxy.
func knownMembers(s *mesh.Snapshot, cluster string) bool {
	parts := strings.Split(cluster, "|")
	var labels []map[string]string
	for _, dr := range s.DestinationRules {
		for _, x := range dr.Spec.GetSubsets() {
			if x.GetName() == parts[2] {
				labels = append(labels, x.GetLabels())
			}
		}
	}
	if parts[2] == "" {
		labels = append(labels, nil)
	}
	for _, svc := range s.ServicesOn(mesh.Hostname(parts[3])) {
		for _, w := range s.EndpointsOf(svc) {
			if slices.ContainsFunc(labels, func(l map[string]string) bool { return mesh.Selects(l, w.Labels) }) {
				return true
			}
		}
	}
	return false
}

// forwards reports whether some VirtualService forwards connections to the host of a cluster.
func forwards(s *mesh.Snapshot, cluster string) bool {
	host := strings.Split(cluster, "|")[3]
	for _, vs := range s.VirtualServices {
		for _, r := range vs.Spec.GetTcp() {
			for _, d := range r.GetRoute() {
				if strings.EqualFold(d.GetDestination().GetHost(), host) {
					return true
				}
			}
		}
		for _, r := range vs.Spec.GetTls() {
			for _, d := range r.GetRoute() {
				if strings.EqualFold(d.GetDestination().GetHost(), host) {
					return true
				}
			}
		}
	}
	return false
}

// differenceOfFindings compares the findings of a proxy with what is built for it; empty if they agree.
func differenceOfFindings(tb testing.TB, s *mesh.Snapshot, v *view.View, router bool) string {
	tb.Helper()
	b := builtOf(tb, s, v, router)
	for object, clusters := range b.routed {
		for _, c := range slices.Sorted(maps.Keys(clusters)) {
			if !b.fails(c) {
				continue
			}
			found := slices.ContainsFunc(v.Findings.All(), func(f view.Finding) bool {
				return covers(f, c) && (object == "" || f.Object.Namespace+"/"+f.Object.Name == object)
			})
			_, there := b.endpoints[c]
			_, eds := b.assigned[c]
			switch {
			case found, b.otherPort(s, c):
			case (!there || eds || b.endpoints[c] == 0) && knownMembers(s, c): // none is for this proxy, or none is healthy
			case object == "" && !b.weighted[c] && (!b.elsewhere[c] || !forwards(s, c)): // the service itself, scaled to zero
			default:
				return fmt.Sprintf("%q sends requests to %q, which fails (there: %v), and there is no finding", object, c, there)
			}
		}
	}
	for _, f := range v.Findings.All() {
		if f.Kind == view.LeftOutServer {
			continue
		}
		object := f.Object.Namespace + "/" + f.Object.Name
		ok := false
		for _, from := range []string{object, ""} {
			for c := range b.routed[from] {
				ok = ok || covers(f, c) && b.fails(c)
			}
			for to := range b.maybe {
				ok = ok || to[0] == from && covers(f, to[1]) && b.fails(to[1])
			}
		}
		if !ok {
			return fmt.Sprintf("the finding %+v is about nothing that is built and fails", f)
		}
	}
	return ""
}

// randomRoutes are VirtualServices that lead from hosts of a mesh to others: few of those that meshes have at
// random do.
func randomRoutes(rng *rand.Rand, s *mesh.Snapshot) *mesh.Fragment {
	out := &mesh.Fragment{Source: "routes"}
	if s == nil || len(s.Services) == 0 {
		return out
	}
	hosts, subsets := []string{"gone.mesh"}, []string{"", "", ""}
	for _, svc := range s.Services {
		hosts = append(hosts, string(svc.Hostname))
	}
	for _, dr := range s.DestinationRules {
		for _, x := range dr.Spec.GetSubsets() {
			subsets = append(subsets, x.GetName())
		}
	}
	gateways := []string{"mesh"}
	for _, g := range s.Gateways {
		gateways = append(gateways, g.Namespace+"/"+g.Name)
	}
	for i := range 5 {
		name := fmt.Sprintf("routes-%d", i)
		vs := &networking.VirtualService{Hosts: []string{hosts[rng.IntN(len(hosts))]}, Gateways: gateways}
		to := func() *networking.Destination {
			d := &networking.Destination{Host: hosts[rng.IntN(len(hosts))], Subset: subsets[rng.IntN(len(subsets))]}
			if rng.IntN(4) == 0 {
				d.Port = &networking.PortSelector{Number: []uint32{80, 443, 9999}[rng.IntN(3)]}
			}
			return d
		}
		http, tcp := &networking.HTTPRoute{}, &networking.TCPRoute{}
		for range 1 + rng.IntN(2) {
			http.Route = append(http.Route, &networking.HTTPRouteDestination{Destination: to(), Weight: int32(rng.IntN(3))})
			tcp.Route = append(tcp.Route, &networking.RouteDestination{Destination: to(), Weight: int32(rng.IntN(3))})
		}
		vs.Http, vs.Tcp = []*networking.HTTPRoute{http}, []*networking.TCPRoute{tcp}
		out.VirtualServices = append(out.VirtualServices, &mesh.VirtualService{Meta: smallmesh.Meta(mesh.KindVirtualService, name, vs.String()), Spec: vs})
	}
	return out
}

// TestFindingsAreWhatIsBuilt walks what is built for proxies of random meshes: each cluster that gets requests
// by an object, and that is not built or has no endpoint, is a finding, and nothing else is one. No list says
// which objects and fields lead to one.
func TestFindingsAreWhatIsBuilt(t *testing.T) {
	t.Parallel()
	found := map[view.FindingKind]int{}
	for _, seed := range meshgen.Seeds(t, 3, 20) {
		for _, edge := range []bool{false, true} {
			g := meshgen.New(seed, meshgen.NewCoverage())
			if edge {
				g = meshgen.NewEdge(seed, meshgen.NewCoverage())
			}
			c := New(view.Settings{})
			var s *mesh.Snapshot
			var proxies []*netProxy
			for range 8 {
				p := newNetProxy(g)
				if edge {
					p.Type = view.Router
				}
				proxies = append(proxies, p)
			}
			for range 12 {
				in := g.Input(s)
				in.Fragments, in.Bindings = append(in.Fragments, randomRoutes(g.Rand(), s)), append(in.Bindings, nil)
				s = mesh.Merge(in)
				e := c.At(s)
				for _, p := range proxies {
					p.had = mustGet(t, c, e, p, p.had)
					if d := differenceOfFindings(t, s, p.had.View, edge); d != "" {
						t.Errorf("seed %d: %s\nproxy %+v", seed, d, p.Proxy)
						return
					}
					for _, f := range p.had.View.Findings.All() {
						found[f.Kind]++
						if x := f.Explain(s); x.Origin == nil || x.Text == "" || x.Action == "" {
							t.Errorf("seed %d: %+v is explained by %+v", seed, f, x)
						}
					}
				}
				g.Step(1 + g.Rand().IntN(4))
			}
		}
	}
	t.Logf("found %v", found)
	for _, kind := range view.FindingKinds() {
		// No random mesh includes 100,000 matches; view.TestTenantsLeaveThemselvesOut does.
		if found[kind] == 0 && !race.Enabled && kind != view.LeftOutDelegate { // few meshes
			t.Errorf("no mesh has a finding of kind %s", kind)
		}
	}
}
