package mesh

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"
)

// tenants are sources at random: one that speaks for all, some that are bound to
// namespaces, and a catalog.
type tenants struct {
	rng      *rand.Rand
	bindings []*Binding
	grants   *Grants
	// allocations are the addresses of hosts that have none of their own.
	allocations *Allocations
	objects     []map[Key]any
	shared      bool // they name each other's hosts
	// own is in how many of four times a host is nobody else's all the same, so that
	// addresses and ports decide.
	own int
	// machines is how many of eight objects are workloads.
	machines int
	rev      int
}

func newTenants(seed uint64, shared bool) *tenants {
	w := &tenants{rng: rand.New(rand.NewPCG(seed, 7)), shared: shared, bindings: []*Binding{
		{Namespaces: []string{"ns0"}},
		nil,
		{Namespaces: []string{"ns1", "ns2"}},
		{Namespaces: []string{"ns2"}},
		nil, // a catalog
	}}
	if shared {
		w.own, w.machines = int(seed%5), 1+2*int(seed%2)
		w.bindings = append(w.bindings,
			&Binding{Namespaces: []string{"ns3"}, Hosts: []Hostname{"*.p.example", "e0.x.example", "10.9.0.2"}, Credentials: []string{"c0"}},
			&Binding{Namespaces: []string{"ns4"}, Hosts: []Hostname{"e1.x.example", "fd00::/64"}})
	} else {
		w.bindings[3].Namespaces = []string{"ns3"}
	}
	for i, b := range w.bindings {
		if b != nil {
			b.Hosts = append(b.Hosts, Hostname(fmt.Sprintf("*.s%d.example", i)))
			b.RoutesOnly = shared && w.rng.IntN(2) == 0
		}
	}
	if shared {
		w.sharePatterns()
	}
	for range w.bindings {
		w.objects = append(w.objects, map[Key]any{})
	}
	return w
}

// sharePatterns gives patterns that overlap to sources that have a namespace in common.
func (w *tenants) sharePatterns() {
	add := func(i int, patterns ...Hostname) { w.bindings[i].Hosts = append(w.bindings[i].Hosts, patterns...) }
	switch w.rng.IntN(4) {
	case 0: // nobody has them
	case 1: // one pattern of two sources
		add(2, "*.q.example", "10.8.0.0/24")
		add(3, "*.q.example", "10.8.0.0/24")
	case 2: // one below that of the other
		add(2, "*.q.example", "10.8.0.1")
		add(3, "e0.q.example", "10.8.0.0/16")
	default: // the namespace of one is one of the other's
		w.bindings[6].Namespaces = []string{"ns3", "ns4"}
		add(6, "e0.p.example", "*.q.example", "10.9.0.0/24")
		add(5, "*.0.q.example", "e0.q.example")
	}
}

func (w *tenants) pick(list ...string) string { return list[w.rng.IntN(len(list))] }

// host is one of a few, so that they meet; or the source's own.
func (w *tenants) host(source int) string {
	host := w.pick("e0.x.example", "e1.x.example", "e2.x.example", "e0.p.example", "*.x.example", "*.p.example", "*.example", "e3.example", "*.0.x.example", "e.0.x.example",
		"e0.x.example.", "e0.ns0.svc.x.example", "e0.ns0.svc.cluster.local", "e0.ns2.svc.cluster.local", "*.ns2.svc.cluster.local", "e0.e1.ns2.svc.cluster.local",
		"e0.ns0", "e0.ns2.svc.", "*.ns2", "e0", "10.9.0.1",
		"e0.q.example", "e1.q.example", "*.q.example", "e.0.q.example")
	switch {
	case w.shared && w.rng.IntN(4) < w.own:
		return w.pick(fmt.Sprintf("e0.s%d.example", source), fmt.Sprintf("e1.s%d.example", source), fmt.Sprintf("*.s%d.example", source), "10.9.0.1", "10.9.0.2", "10.8.0.1", "fd00::1")
	case w.shared:
		return host
	}
	return fmt.Sprintf("%s.s%d.example", w.pick("e0", "e1", "*.e2", "*", "e3.e2"), source)
}

// address is one of a few, or a range.
func (w *tenants) address() string {
	return w.pick("10.9.0.1", "10.9.0.2", "10.9.0.0/24", "10.9.0.0/31", "10.8.0.1", "10.8.0.0/24", "10.9.0.0/16", "10.0.0.0/8", "0.0.0.0/0", "::ffff:10.9.0.1", "fd00::1", "fd00::/64", "fd00::/16")
}

// machine is an address of a workload or an endpoint. Most are in ranges that services have.
func (w *tenants) machine() string {
	return w.pick("10.9.0.1", "10.9.0.2", "fd00::1", fmt.Sprintf("10.9.7.%d", w.rng.IntN(8)))
}

func (w *tenants) step() {
	source := w.rng.IntN(len(w.bindings))
	w.rev++
	if w.rng.IntN(4) == 0 {
		if keys := slices.SortedFunc(maps.Keys(w.objects[source]), Key.Compare); len(keys) > 0 {
			delete(w.objects[source], keys[w.rng.IntN(len(keys))])
		}
		return
	}
	x := w.object(source, w.namespace(source))
	m := x.(object0).meta()
	if w.rng.IntN(2) == 0 {
		m.Created = time.Unix(int64(w.rng.IntN(5)), 0)
	}
	m.Hash = hashAs(m.Hash, strconv.Itoa(w.rev))
	m.Origin = &Origin{Source: strconv.Itoa(source), Path: m.Name, Line: w.rev}
	w.objects[source][m.Key] = x
}

// namespace is one that a source may write for.
func (w *tenants) namespace(source int) string {
	if b := w.bindings[source]; b != nil {
		return b.Namespaces[w.rng.IntN(len(b.Namespaces))]
	}
	return fmt.Sprintf("ns%d", w.rng.IntN(5))
}

type object0 interface{ meta() *Meta }

func (w *tenants) object(source int, ns string) any {
	name := fmt.Sprintf("n%d-%d", source, w.rng.IntN(4))
	if w.shared && w.rng.IntN(4) == 0 {
		name = fmt.Sprintf("n-%d", w.rng.IntN(4)) // of any source
	}
	exports := []Exports{nil, nil, nil, {"*"}, {ns}, {"ns0"}, {"ns0", "ns2"}, {"~"}, {"edge", "ns0"}, {"edge", "ns2", "ns3"}}[w.rng.IntN(10)]
	switch {
	case source == 4:
		svc := testDerived(ns, w.pick("e0", "e1"), 80)
		svc.Hostname = Hostname(w.host(source))
		if svc.Hostname.IsWildcard() {
			svc.Hostname = Hostname("e0" + string(svc.Hostname[1:]))
		}
		return svc
	case w.shared && w.rng.IntN(8) < w.machines:
		return testWorkload(ns, name, w.pick(w.address(), w.machine()), "x")
	case w.shared && w.rng.IntN(6) == 0:
		g := &Gateway{Meta: testMeta(KindGateway, ns, name, ""), Spec: &networking.Gateway{}}
		for range w.rng.IntN(3) {
			host := w.pick("ns0", "ns1", "ns2", ".", "*") + "/" + w.pick("e2.x.example", "*.x.example", "e3.example", "*.example", "*", "e0.ns0", "*.ns2", "e0.ns2.svc")
			g.Spec.Servers = append(g.Spec.Servers, &networking.Server{Hosts: []string{host}})
		}
		return g
	case w.rng.IntN(5) == 0:
		name := fmt.Sprintf("n%d-%d", w.rng.IntN(9), w.rng.IntN(4)) // no order by source
		switch n := w.rng.IntN(4); {
		case n < 2 && w.shared:
			return &Sidecar{Meta: testMeta(KindSidecar, ns, name, "")}
		case n < 3 && w.shared:
			return &PeerAuthentication{Meta: testMeta(KindPeerAuthentication, ns, name, "")}
		case source == 0 || w.shared:
			r := &DestinationRule{Meta: testMeta(KindDestinationRule, ns, name, "")}
			if w.shared && w.rng.IntN(2) == 0 {
				tls := &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_MUTUAL, CredentialName: w.pick("c0", "c1")}
				r.Spec = &networking.DestinationRule{Host: w.host(source), TrafficPolicy: &networking.TrafficPolicy{Tls: tls}}
			}
			return r
		}
		fallthrough
	case w.rng.IntN(2) == 0:
		svc := testService(ns, name, "")
		svc.Hostname, svc.ExportTo = Hostname(w.host(source)), exports
		if w.shared {
			w.fill(svc)
		}
		if w.rng.IntN(4) == 0 {
			svc.Selector = map[string]string{LabelConsulService: w.pick("e0", "e1")}
		}
		return svc
	default:
		vs := testVirtualService(ns, name, "")
		vs.ExportTo = exports
		vs.Spec = &networking.VirtualService{Gateways: strings.Fields(w.pick("mesh", "mesh", "mesh", "edge/gateway", "mesh edge/gateway"))}
		for range w.rng.IntN(4) {
			vs.Spec.Hosts = append(vs.Spec.Hosts, w.host(source))
		}
		if w.shared {
			w.route(vs, source)
		}
		if w.rng.IntN(4) == 0 {
			tls := &networking.TLSRoute{Route: []*networking.RouteDestination{{Destination: w.destination(source)}}}
			vs.Spec.Tls = []*networking.TLSRoute{tls}
			if w.shared && w.rng.IntN(2) == 0 {
				tls.Match = []*networking.TLSMatchAttributes{{SniHosts: []string{w.host(source)}, DestinationSubnets: []string{w.address()}}}
			}
		}
		if w.shared && w.rng.IntN(4) == 0 {
			vs.Spec.Tcp = []*networking.TCPRoute{{
				Match: []*networking.L4MatchAttributes{{DestinationSubnets: []string{w.address()}}},
				Route: []*networking.RouteDestination{{Destination: w.destination(source)}},
			}}
		}
		return vs
	}
}

// some is the name of an object of any source, if that has one of the right kind.
func some[T object0](w *tenants, name func(x T) string) string {
	source := w.rng.IntN(len(w.bindings))
	keys := slices.SortedFunc(maps.Keys(w.objects[source]), Key.Compare)
	for _, i := range w.rng.Perm(len(keys)) {
		if x, is := w.objects[source][keys[i]].(T); is {
			if text := name(x); text != "" {
				return text
			}
		}
	}
	return ""
}

// destination is a host of any source, or the source's own.
func (w *tenants) destination(source int) *networking.Destination {
	if w.shared {
		if w.rng.IntN(3) > 0 {
			if h := some(w, func(svc *Service) string { return string(svc.Hostname) }); h != "" {
				return &networking.Destination{Host: h}
			}
		}
		source = w.rng.IntN(len(w.bindings))
	}
	return &networking.Destination{Host: w.host(source)}
}

// route gives a VirtualService gateways of several namespaces, routes of HTTP and delegates. One without hosts is a
// delegate, with a name by which others find it.
func (w *tenants) route(vs *VirtualService, source int) {
	if w.rng.IntN(2) == 0 {
		vs.Spec.Gateways = strings.Fields(w.pick("edge/gateway", "edge/gateway mesh", "ns0/g mesh", "edge/gateway ns2/g", "ns3/g edge/gateway mesh", vs.Namespace+"/g edge/gateway"))
	}
	if isDelegate(vs) {
		vs.Name, vs.Spec.Gateways = w.delegate(source), nil
	}
	for range w.rng.IntN(3) {
		r := &networking.HTTPRoute{Name: "r"}
		switch n := w.rng.IntN(6); {
		case n < 2 && !isDelegate(vs):
			r.Delegate = &networking.Delegate{Name: w.delegate(source)}
			some(w, func(x *VirtualService) string {
				if !isDelegate(x) {
					return ""
				}
				r.Delegate.Name, r.Delegate.Namespace = x.Name, x.Namespace
				return x.Name
			})
		case n == 2:
			r.Mirrors = []*networking.HTTPMirrorPolicy{{Destination: w.destination(source)}}
			fallthrough
		default:
			for range 1 + w.rng.IntN(2) {
				r.Route = append(r.Route, &networking.HTTPRouteDestination{Destination: w.destination(source)})
			}
		}
		vs.Spec.Http = append(vs.Spec.Http, r)
	}
}

func (w *tenants) delegate(source int) string {
	return w.pick("d", fmt.Sprintf("d%d-%d", source, w.rng.IntN(2)), fmt.Sprintf("d%d-%d", source, w.rng.IntN(2)))
}

// fill gives a service what others may have, too: ports of all protocols, addresses and
// endpoints.
func (w *tenants) fill(svc *Service) {
	svc.Ports = nil
	for _, number := range []uint32{80, 443, 3306} {
		if w.rng.IntN(2) == 0 {
			protocols := []Protocol{HTTP, GRPC, GRPCWeb, HTTPProxy, HTTPS, TLS, TCP, MySQL, UDP, Undeclared}
			svc.Ports = append(svc.Ports, Port{Name: fmt.Sprint("p", number), Number: number, Protocol: protocols[w.rng.IntN(len(protocols))]})
		}
	}
	for range max(0, w.rng.IntN(5)-2) {
		svc.Addresses = append(svc.Addresses, w.address())
	}
	slices.Sort(svc.Addresses)
	svc.Addresses = slices.Compact(svc.Addresses)
	for range max(0, w.rng.IntN(6)-3) {
		svc.Resolution = ResolutionStatic
		svc.Inline = append(svc.Inline, &Workload{Address: w.machine()})
	}
}

func (w *tenants) input(prev *Snapshot, config *MeshConfig) Input {
	in := Input{Prev: prev, Fallback: config, Bindings: w.bindings, Grants: w.grants, Allocations: w.allocations}
	for i, objects := range w.objects {
		in.Fragments = append(in.Fragments, fragmentOf(strconv.Itoa(i), objects))
	}
	return in
}

// grant gives names at random to namespaces, some of them below others.
func (w *tenants) grant() {
	var list []Grant
	for range w.rng.IntN(5) {
		name := Hostname(w.pick("e2.x.example", "*.x.example", "*.0.x.example", "e3.example", "*.example", "e0", "e0.ns2", "10.9.0.1", "10.9.0.0/24", "10.0.0.0/8"))
		list = append(list, Grant{Name: name, Namespace: fmt.Sprintf("ns%d", w.rng.IntN(5)), Gateways: w.rng.IntN(4) == 0})
	}
	for range w.rng.IntN(4) {
		list = append(list, Grant{Name: Hostname(w.pick(":80", ":http:80", ":443", ":http:443", ":3306", ":http:3306")), Namespace: fmt.Sprintf("ns%d", w.rng.IntN(5))})
	}
	w.grants = NewGrants(list)
}
