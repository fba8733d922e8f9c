package view

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// FuzzIncremental changes a mesh at random, of every kind of object, and holds
// each proxy's view, as it was taken from one snapshot to the next, against one
// made from nothing. What is equal in two views in a row has to be one pointer.
func FuzzIncremental(f *testing.F) {
	for seed := range uint64(25) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		g := newGame(t, seed)
		for step := range 40 {
			g.step(t, step)
		}
	})
}

// game is a mesh that changes.
type game struct {
	rnd     *rand.Rand
	w       *world
	s       *mesh.Snapshot
	x       *Index
	before  *Index // an index of some time ago
	proxies []Proxy
	views   []*View
	log     []string
}

func newGame(tb testing.TB, seed uint64) *game {
	tb.Helper()
	g := &game{rnd: rand.New(rand.NewPCG(seed, 7)), w: newWorld(tb)}
	for range 8 {
		g.service()
		g.routes()
	}
	for range 4 {
		g.workload()
		g.rule()
	}
	for range 10 {
		p := proxyIn(pick(g, "shop", "other", "istio-system"), nil)
		p.Addresses = []string{pick(g, "10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.5")}
		p.Interception = pick(g, InterceptRedirect, InterceptRedirect, InterceptTPROXY, InterceptNone)
		p.Labels = g.labels()
		p.Locality = mesh.ParseLocality(pick(g, "", "eu/a", "us/a"))
		if g.rnd.IntN(8) == 0 {
			p.Type = Router
		}
		g.proxies = append(g.proxies, p)
	}
	g.views = make([]*View, len(g.proxies))
	return g
}

func pick[T any](g *game, list ...T) T { return list[g.rnd.IntN(len(list))] }

// step makes a few changes, and compares.
func (g *game) step(tb testing.TB, n int) {
	tb.Helper()
	g.log = nil
	for range 1 + g.rnd.IntN(2)*g.rnd.IntN(4) {
		g.change()
	}
	if g.rnd.IntN(4) == 0 { // nobody looks at every snapshot
		g.snapshot()
		g.change()
	}
	g.snapshot()
	g.x = g.x.Next(g.s)
	if g.before != nil && g.rnd.IntN(10) == 0 { // somebody is late
		g.x = g.before.Next(g.s)
	}
	if g.rnd.IntN(3) == 0 {
		g.before = g.x
	}
	for i := range g.proxies {
		if g.rnd.IntN(5) == 0 {
			continue // it is busy
		}
		if g.rnd.IntN(40) == 0 {
			g.proxies[i].Labels = g.labels()
		}
		prev := g.views[i]
		got, want := g.x.Rebuild(prev, g.proxies[i]), NewIndex(g.s).Build(g.proxies[i])
		if d := differenceOf(want, got); d != "" {
			tb.Fatalf("step %d, proxy %d %+v: %s\nafter %s", n, i, g.proxies[i], d, strings.Join(g.log, "\n"))
		}
		if d := notShared(prev, got); d != "" {
			tb.Fatalf("step %d, proxy %d %+v: %s\nafter %s", n, i, g.proxies[i], d, strings.Join(g.log, "\n"))
		}
		g.views[i] = got
	}
}

func (g *game) snapshot() {
	f := g.w.f // the lists are changed, and snapshots keep them
	f.Services, f.Workloads = slices.Clone(f.Services), slices.Clone(f.Workloads)
	f.VirtualServices, f.DestinationRules = slices.Clone(f.VirtualServices), slices.Clone(f.DestinationRules)
	f.Sidecars, f.PeerAuthentications = slices.Clone(f.Sidecars), slices.Clone(f.PeerAuthentications)
	f.Unenforced = slices.Clone(f.Unenforced)
	mc := &mesh.MeshConfig{Spec: g.w.mc}
	if g.s != nil && g.s.MeshConfig.Spec == g.w.mc {
		mc = g.s.MeshConfig
	}
	g.s = mesh.NewSnapshot(g.s, mc, []*mesh.Fragment{&f})
}

// differenceOf tells in what two views differ, or nothing.
func differenceOf(want, got *View) string {
	if len(want.Layers) != len(got.Layers) {
		return fmt.Sprintf("%d layers, want %d", len(got.Layers), len(want.Layers))
	}
	for i, w := range want.Layers {
		l := got.Layers[i]
		if l.Name != w.Name {
			return fmt.Sprintf("layer %d is %q, want %q", i, l.Name, w.Name)
		}
		for j, p := range l.Parts {
			if j >= len(w.Parts) || w.Parts[j].Hash() != p.Hash() {
				return fmt.Sprintf("%s: part %d is %s", l.Name, j, describe(p)+missing(w.Parts, j))
			}
			if h := rehash(p); h != p.Hash() {
				return fmt.Sprintf("%s: part %d was changed: %s", l.Name, j, describe(p))
			}
		}
		if len(l.Parts) != len(w.Parts) || l.Hash() != w.Hash() {
			return fmt.Sprintf("%s: %d parts, want %d", l.Name, len(l.Parts), len(w.Parts))
		}
	}
	if !slices.EqualFunc(want.Warnings, got.Warnings, sameWarning) {
		return fmt.Sprintf("warnings %v, want %v", got.Warnings, want.Warnings)
	}
	if want.Class != got.Class {
		return "another class"
	}
	return ""
}

func missing(list []Part, i int) string {
	if i >= len(list) {
		return ", and should not be"
	}
	return ", want " + describe(list[i])
}

func describe(p Part) string {
	switch p := p.(type) {
	case *RouteTable:
		var b strings.Builder
		for _, h := range p.Hosts {
			fmt.Fprintf(&b, "\n  %s %v", h.Name, h.Domains)
			for _, r := range h.Routes {
				fmt.Fprintf(&b, "\n    %v %v %v", r.Config, r.Match, r.Destinations)
			}
		}
		return fmt.Sprintf("%s %v%s\n", p.Name, p.CatchAll, b.String())
	case *Listener:
		var b strings.Builder
		for _, c := range append(slices.Clone(p.Chains), p.Default) {
			if c != nil {
				fmt.Fprintf(&b, "\n  %+v tcp %+v http %+v", c.Match, c.TCP, c.HTTP)
			}
		}
		return p.Name + b.String()
	default:
		return fmt.Sprintf("%+v", p)
	}
}

func rehash(p Part) mesh.Hash {
	switch p := p.(type) {
	case *Cluster:
		return contentHash("cluster", p)
	case *Endpoints:
		return contentHash("endpoints", p)
	case *Listener:
		return contentHash("listener", p)
	case *RouteTable:
		return p.content()
	default:
		panic("unknown part")
	}
}

// notShared tells what is equal in two views and two pointers all the same.
func notShared(prev, next *View) string {
	if prev == nil {
		return ""
	}
	if prev != next && prev.Class == next.Class && slices.EqualFunc(prev.Warnings, next.Warnings, sameWarning) {
		return "the same view is another pointer"
	}
	parts, layers, hosts := map[mesh.Hash]Part{}, map[layerKey]*Layer{}, map[mesh.Hash]*VirtualHost{}
	for _, l := range prev.Layers {
		layers[layerKey{l.Name, l.hash}] = l
		for _, p := range l.Parts {
			parts[p.Hash()] = p
			if t, ok := p.(*RouteTable); ok {
				for _, h := range t.Hosts {
					hosts[h.hash] = h
				}
			}
		}
	}
	for _, l := range next.Layers {
		if have := layers[layerKey{l.Name, l.hash}]; have != nil && have != l {
			return "layer " + l.Name + " is the same and another pointer"
		}
		for _, p := range l.Parts {
			if have := parts[p.Hash()]; have != nil && have != p {
				return "part is the same and another pointer: " + describe(p)
			}
			if t, ok := p.(*RouteTable); ok {
				for _, h := range t.Hosts {
					if have := hosts[h.hash]; have != nil && have != h {
						return "virtual host is the same and another pointer: " + h.Name
					}
				}
			}
		}
	}
	return ""
}

// change does one thing to the mesh.
func (g *game) change() {
	f := &g.w.f
	switch g.rnd.IntN(20) {
	case 0:
		g.service()
	case 1:
		f.Services = drop(g, f.Services)
	case 2, 3:
		g.editService()
	case 4, 5:
		g.workload()
	case 6:
		f.Workloads = drop(g, f.Workloads)
	case 7:
		g.editWorkload()
	case 8:
		g.routes()
	case 9:
		f.VirtualServices = drop(g, f.VirtualServices)
	case 10, 11, 12:
		g.editRoutes()
	case 13:
		g.rule()
	case 14:
		f.DestinationRules = drop(g, f.DestinationRules)
	case 15:
		if i := g.rnd.IntN(len(f.DestinationRules) + 1); i < len(f.DestinationRules) {
			g.say("rule edited")
			next := *f.DestinationRules[i]
			next.Spec = g.ruleSpec()
			next.Spec.Host = f.DestinationRules[i].Spec.GetHost()
			g.stamp(&next.Meta)
			f.DestinationRules[i] = &next
		}
	case 16:
		if f.PeerAuthentications = drop(g, f.PeerAuthentications); g.rnd.IntN(2) == 0 {
			g.say("peer authentication")
			g.w.peer(pick(g, "shop", "other", "istio-system"), g.name(), pick(g, `{"mtls":{"mode":"STRICT"}}`, `{"mtls":{"mode":"DISABLE"}}`,
				`{"selector":{"matchLabels":{"app":"a"}},"mtls":{"mode":"DISABLE"},"portLevelMtls":{"80":{"mode":"STRICT"}}}`))
		}
	case 17:
		if f.Sidecars = drop(g, f.Sidecars); g.rnd.IntN(2) == 0 {
			g.sidecar()
		}
	case 18:
		if f.Unenforced = drop(g, f.Unenforced); g.rnd.IntN(2) == 0 {
			g.say("unenforced")
			f.Unenforced = append(f.Unenforced, &mesh.Unenforced{
				Meta:     g.w.meta(mesh.KindAuthorizationPolicy, pick(g, "shop", "istio-system"), g.name()),
				Selector: pick(g, nil, map[string]string{"app": "a"}),
			})
		}
	case 19:
		g.moved()
	}
}

func (g *game) say(format string, args ...any) { g.log = append(g.log, fmt.Sprintf(format, args...)) }

func (g *game) name() string { return fmt.Sprintf("n%d", g.w.n) }

// stamp gives changed content another hash.
func (g *game) stamp(m *mesh.Meta) {
	g.w.n++
	m.Hash = mesh.Hash{byte(g.w.n), byte(g.w.n >> 8), 1}
}

func drop[T any](g *game, list []*T) []*T {
	if len(list) == 0 {
		return list
	}
	i := g.rnd.IntN(len(list))
	g.say("%T dropped", list[i])
	return slices.Concat(list[:i], list[i+1:])
}

func (g *game) labels() map[string]string {
	return pick(g, nil, map[string]string{"app": "a"}, map[string]string{"app": "b", "tier": "one"}, map[string]string{"sidecar": "narrow"})
}

func (g *game) host() string {
	return pick(g, "a.shop.svc.cluster.local", "b.other.svc.cluster.local", "a.other.svc.cluster.local", "c.mesh", "d.mesh", "x.w.mesh", "*.w.mesh", "e.mesh")
}

func (g *game) exports() mesh.Exports {
	return pick(g, nil, nil, nil, mesh.Exports{"*"}, mesh.Exports{"shop"}, mesh.Exports{"other"}, mesh.Exports{"~"})
}

func (g *game) service() {
	s := g.w.service(pick(g, "shop", "other"), g.host())
	s.Name = g.name()
	s.ExportTo = g.exports()
	g.fillService(s)
	g.say("service %s in %s", s.Hostname, s.Namespace)
}

func (g *game) fillService(s *mesh.Service) {
	s.Ports = nil
	for _, p := range g.rnd.Perm(4)[:1+g.rnd.IntN(2)] {
		s.Ports = append(s.Ports, []mesh.Port{
			{Name: "http", Number: 80, Protocol: mesh.HTTP}, {Name: "tcp", Number: 9000, Protocol: mesh.TCP},
			{Name: "tls", Number: 443, Protocol: mesh.TLS}, {Name: "any", Number: 81},
		}[p])
	}
	s.Addresses = pick(g, nil, []string{"10.1.1.1"}, []string{"10.1.1.2", "10.2.0.0/16"})
	s.Resolution = pick(g, mesh.ResolutionStatic, mesh.ResolutionStatic, mesh.ResolutionNone, mesh.ResolutionDNS, mesh.ResolutionDNSRoundRobin, mesh.ResolutionDynamicDNS)
	s.Selector = pick(g, nil, nil, map[string]string{"app": "a"}, map[string]string{})
	g.inline(s)
}

func (g *game) inline(s *mesh.Service) {
	s.Inline = nil
	for range g.rnd.IntN(3) {
		s.Inline = append(s.Inline, &mesh.Workload{
			Meta:    mesh.Meta{Key: mesh.Key{Namespace: s.Namespace}, Origin: s.Origin, Labels: g.labels()},
			Address: fmt.Sprintf("10.0.0.%d", 1+g.rnd.IntN(5)), ServiceAccount: pick(g, "", "one", "two"),
			Locality: mesh.ParseLocality(pick(g, "", "eu/a", "us/a")),
		})
	}
}

func (g *game) editService() {
	f := &g.w.f
	if len(f.Services) == 0 {
		return
	}
	i := g.rnd.IntN(len(f.Services))
	next := *f.Services[i]
	g.stamp(&next.Meta)
	other := next
	g.fillService(&other)
	switch g.rnd.IntN(10) {
	case 0:
		next = other
	case 1:
		next.ExportTo = g.exports()
	case 2:
		next.Addresses = other.Addresses
	case 3:
		next.Ports = other.Ports
	case 4:
		next.Resolution = other.Resolution
	case 5:
		next.Selector = other.Selector
	case 6:
		next.SubjectAltNames = pick(g, nil, []string{"spiffe://x"})
	default:
		g.inline(&next)
	}
	g.say("service %s edited", next.Hostname)
	f.Services[i] = &next
}

func (g *game) workload() {
	w := &mesh.Workload{
		Meta:    g.w.meta(mesh.KindWorkloadEntry, pick(g, "shop", "other"), g.name()),
		Address: fmt.Sprintf("10.0.0.%d", 1+g.rnd.IntN(5)), ServiceAccount: pick(g, "", "one"),
		Locality: mesh.ParseLocality(pick(g, "", "eu/a", "us/a")),
	}
	w.Labels = g.labels()
	g.say("workload %s in %s", w.Address, w.Namespace)
	g.w.f.Workloads = append(g.w.f.Workloads, w)
	slices.SortFunc(g.w.f.Workloads, byKey)
}

func (g *game) editWorkload() {
	f := &g.w.f
	if len(f.Workloads) == 0 {
		return
	}
	i := g.rnd.IntN(len(f.Workloads))
	next := *f.Workloads[i]
	g.stamp(&next.Meta)
	switch g.rnd.IntN(3) {
	case 0:
		next.Labels = g.labels()
	case 1:
		next.Health = pick(g, mesh.Healthy, mesh.Unhealthy)
	case 2:
		next.Weight = uint32(g.rnd.IntN(3))
	}
	g.say("workload %s edited", next.Address)
	f.Workloads[i] = &next
}

func (g *game) routes() {
	ns, name := pick(g, "shop", "other"), g.name()
	g.w.routes(ns, name, `{}`, g.exports()...)
	vs := g.w.f.VirtualServices[len(g.w.f.VirtualServices)-1]
	vs.Spec = g.routesSpec()
	g.say("routes %s/%s for %v", ns, name, vs.Spec.GetHosts())
}

func (g *game) editRoutes() {
	f := &g.w.f
	if len(f.VirtualServices) == 0 {
		return
	}
	i := g.rnd.IntN(len(f.VirtualServices))
	next := *f.VirtualServices[i]
	g.stamp(&next.Meta)
	was := next.Spec
	next.Spec = g.routesSpec()
	if g.rnd.IntN(4) > 0 { // only what becomes of requests
		next.Spec.Hosts, next.Spec.Gateways = was.GetHosts(), was.GetGateways()
		if g.rnd.IntN(2) == 0 {
			next.Spec.Tcp, next.Spec.Tls = was.GetTcp(), was.GetTls()
		}
	}
	g.say("routes %s edited: %v", next.Name, next.Spec)
	f.VirtualServices[i] = &next
}

func (g *game) routesSpec() *networking.VirtualService {
	to := func() string {
		return `{"destination":{"host":"` + strings.TrimPrefix(g.host(), "*.") + `"` + pick(g, "", `,"subset":"v1"`, `,"port":{"number":80}`) + `}` + pick(g, "", `,"weight":50`) + `}`
	}
	match := pick(g, "", "", `"match":[{"uri":{"prefix":"/a"}}],`, `"match":[{"sourceLabels":{"app":"a"}}],`, `"match":[{"sourceNamespace":"shop"}],`, `"match":[{"port":80,"uri":{"exact":"/b"}}],`)
	delegate := pick(g, "", "", "", `{"match":[{"uri":{"prefix":"/d"}}],"delegate":{"name":"n1`+fmt.Sprint(g.rnd.IntN(10))+`"}},`)
	parts := []string{`"hosts":["` + strings.Join(slices.Compact([]string{g.host(), pick(g, "c.mesh", "plain.example")}), `","`) + `"]`}
	if g.rnd.IntN(9) == 0 {
		parts = nil
	}
	if g.rnd.IntN(6) > 0 {
		parts = append(parts, `"http":[`+delegate+`{`+match+`"timeout":"`+pick(g, "1s", "2s")+`","route":[`+to()+`]}`+pick(g, "", `,{"route":[`+to()+`]}`)+`]`)
	}
	if g.rnd.IntN(6) == 0 {
		parts = append(parts, `"tcp":[{"route":[`+to()+`]}]`)
	}
	if g.rnd.IntN(6) == 0 {
		parts = append(parts, `"tls":[{"match":[{"sniHosts":["`+g.host()+`"]}],"route":[`+to()+`]}]`)
	}
	if g.rnd.IntN(10) == 0 {
		parts = append(parts, `"gateways":["edge"]`)
	}
	spec := &networking.VirtualService{}
	g.w.decode("{"+strings.Join(parts, ",")+"}", spec)
	return spec
}

func (g *game) rule() {
	g.w.rule(pick(g, "shop", "other", "istio-system"), g.name(), `{}`, g.exports()...)
	dr := g.w.f.DestinationRules[len(g.w.f.DestinationRules)-1]
	dr.Spec = g.ruleSpec()
	g.say("rule for %s in %s", dr.Spec.GetHost(), dr.Namespace)
}

func (g *game) ruleSpec() *networking.DestinationRule {
	spec := &networking.DestinationRule{}
	g.w.decode(`{"host":"`+pick(g, g.host(), g.host(), g.host(), "*.mesh")+`"`+pick(g, "", "", `,"workloadSelector":{"matchLabels":{"app":"a"}}`)+
		pick(g, "", `,"subsets":[{"name":"v1","labels":{"app":"a"}}]`, `,"subsets":[{"name":"v1","trafficPolicy":{"loadBalancer":{"simple":"RANDOM"}}},{"name":"v2"}]`)+
		pick(g, "", `,"trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":1}}`, `,"trafficPolicy":{"loadBalancer":{"consistentHash":{"useSourceIp":true}}}`,
			`,"trafficPolicy":{"connectionPool":{"tcp":{"maxConnections":1,"idleTimeout":"1s"}}}`, `,"trafficPolicy":{"tls":{"mode":"ISTIO_MUTUAL"}}`)+`}`, spec)
	return spec
}

func (g *game) sidecar() {
	g.say("sidecar")
	g.w.sidecar(pick(g, "shop", "other", "istio-system"), g.name(), `{`+
		pick(g, "", `"workloadSelector":{"labels":{"sidecar":"narrow"}},`, `"workloadSelector":{"labels":{"app":"a"}},`)+
		pick(g, `"outboundTrafficPolicy":{"mode":"REGISTRY_ONLY"},`, "", "")+
		pick(g, "", `"ingress":[{"port":{"number":8080,"protocol":"HTTP","name":"h"},"defaultEndpoint":"127.0.0.1:9090"}],`)+
		`"egress":[`+pick(g, `{"hosts":["./*"]}`, `{"hosts":["*/*"],"bind":"127.0.0.5"}`, `{"hosts":["*/c.mesh","other/*"]}`,
		`{"port":{"number":81,"protocol":"HTTP","name":"h"},"hosts":["*/c.mesh"]},{"hosts":["*/*","~other/*"]}`,
		`{"port":{"number":7000,"protocol":"HTTP_PROXY","name":"p"},"bind":"127.0.0.1","hosts":["*/*"]}`)+`]}`)
}

// moved moves an object in its file, or changes MeshConfig: of what is written
// nothing changes.
func (g *game) moved() {
	f := &g.w.f
	if g.rnd.IntN(5) == 0 {
		g.say("mesh config")
		g.w.mc = proto.CloneOf(g.w.mc)
		g.w.mc.ProxyListenPort = int32(15001 + 2*g.rnd.IntN(2))
		return
	}
	g.say("origins moved")
	for i, s := range f.Services {
		next := *s
		next.Origin = &mesh.Origin{Source: "test", Path: s.Origin.Path, Line: s.Origin.Line + 1}
		f.Services[i] = &next
	}
	for i, vs := range f.VirtualServices {
		next := *vs
		next.Origin = &mesh.Origin{Source: "test", Path: vs.Origin.Path, Line: vs.Origin.Line + 1}
		f.VirtualServices[i] = &next
	}
}
