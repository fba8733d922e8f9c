package view

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// change changes one thing in the mesh.
func (g *randomMesh) change() {
	f := &g.w.f
	switch g.rnd.IntN(21) {
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
			g.note("rule edited")
			next := *f.DestinationRules[i]
			next.Spec = g.ruleSpec()
			next.Spec.Host = f.DestinationRules[i].Spec.GetHost()
			g.stamp(&next.Meta)
			f.DestinationRules[i] = &next
		}
	case 16:
		if f.PeerAuthentications = drop(g, f.PeerAuthentications); g.rnd.IntN(2) == 0 {
			g.note("peer authentication")
			g.w.peer(pick(g, "shop", "other", "istio-system"), g.name(), pick(g, `{"mtls":{"mode":"STRICT"}}`, `{"mtls":{"mode":"DISABLE"}}`,
				`{"selector":{"matchLabels":{"app":"a"}},"mtls":{"mode":"DISABLE"},"portLevelMtls":{"80":{"mode":"STRICT"}}}`))
		}
	case 17:
		if f.Sidecars = drop(g, f.Sidecars); g.rnd.IntN(2) == 0 {
			g.sidecar()
		}
	case 18:
		if f.Unenforced = drop(g, f.Unenforced); g.rnd.IntN(2) == 0 {
			g.note("unenforced")
			f.Unenforced = append(f.Unenforced, &mesh.Unenforced{
				Meta:     g.w.meta(mesh.KindAuthorizationPolicy, pick(g, "shop", "istio-system"), g.name()),
				Selector: pick(g, nil, map[string]string{"app": "a"}),
			})
		}
	case 19:
		g.moved()
	case 20:
		if f.AuthorizationPolicies = drop(g, f.AuthorizationPolicies); g.rnd.IntN(4) > 0 {
			g.note("authorization policy")
			g.w.authorize(pick(g, "shop", "other", "istio-system"), g.name(), pick(g, `{}`, `{"action":"DENY","rules":[{}]}`,
				`{"selector":{"matchLabels":{"app":"a"}},"action":"AUDIT","rules":[{}]}`,
				`{"selector":{"matchLabels":{"app":"b","tier":"one"}},"rules":[{"to":[{"operation":{"paths":["/a"]}}]}]}`))
		}
	}
}

func (g *randomMesh) note(format string, args ...any) {
	g.log = append(g.log, fmt.Sprintf(format, args...))
}

func (g *randomMesh) name() string { return fmt.Sprintf("n%d", g.w.n) }

// stamp sets another hash, after a change.
func (g *randomMesh) stamp(m *mesh.Meta) {
	g.w.n++
	m.Hash = mesh.Hash{byte(g.w.n), byte(g.w.n >> 8), 1}
}

func drop[T any](g *randomMesh, list []*T) []*T {
	if len(list) == 0 {
		return list
	}
	i := g.rnd.IntN(len(list))
	g.note("%T dropped", list[i])
	return slices.Concat(list[:i], list[i+1:])
}

func (g *randomMesh) labels() map[string]string {
	return pick(g, nil, map[string]string{"app": "a"}, map[string]string{"app": "b", "tier": "one"}, map[string]string{"sidecar": "narrow"})
}

func (g *randomMesh) host() string {
	return pick(g, "a.shop.svc.cluster.local", "b.other.svc.cluster.local", "a.other.svc.cluster.local", "c.mesh", "d.mesh", "x.w.mesh", "*.w.mesh", "e.mesh")
}

// isolatedHost is a host that no route names. It may be the short name of another one.
func (g *randomMesh) isolatedHost() string {
	return pick(g, "a", "b.other", "l.shop.svc.cluster.local", "l.other.svc.cluster.local", "l", "l.shop.svc", "m.example", "n.example", "o.example")
}

func (g *randomMesh) exports() mesh.Exports {
	return pick(g, nil, nil, nil, mesh.Exports{"*"}, mesh.Exports{"shop"}, mesh.Exports{"other"}, mesh.Exports{"~"})
}

func (g *randomMesh) service() {
	s := g.w.service(pick(g, "shop", "other"), pick(g, g.host(), g.isolatedHost()))
	s.Name = g.name()
	s.ExportTo = g.exports()
	s.Catalog = g.more.IntN(3) == 0
	g.fillService(s)
	g.note("service %s in %s", s.Hostname, s.Namespace)
}

func (g *randomMesh) fillService(s *mesh.Service) {
	s.Ports = nil
	for _, p := range g.rnd.Perm(4)[:1+g.rnd.IntN(2)] {
		s.Ports = append(s.Ports, []mesh.Port{
			{Name: "http", Number: 80, Protocol: mesh.HTTP},
			{Name: "tcp", Number: 9000, Protocol: mesh.TCP},
			{Name: "tls", Number: 443, Protocol: mesh.TLS},
			{Name: "any", Number: 81},
		}[p])
	}
	s.Addresses = pick(g, nil, []string{"10.1.1.1"}, []string{"10.1.1.2", "10.2.0.0/16"})
	s.Resolution = pick(g, mesh.ResolutionStatic, mesh.ResolutionStatic, mesh.ResolutionNone, mesh.ResolutionDNS, mesh.ResolutionDNSRoundRobin, mesh.ResolutionDynamicDNS)
	s.Selector = pick(g, nil, nil, map[string]string{"app": "a"}, map[string]string{})
	g.inline(s)
}

func (g *randomMesh) inline(s *mesh.Service) {
	s.Inline = nil
	for range g.rnd.IntN(3) {
		s.Inline = append(s.Inline, &mesh.Workload{
			Meta:    mesh.Meta{Key: mesh.Key{Namespace: s.Namespace}, Origin: s.Origin, Labels: g.labels()},
			Address: fmt.Sprintf("10.0.0.%d", 1+g.rnd.IntN(5)), ServiceAccount: pick(g, "", "one", "two"),
			Locality: mesh.ParseLocality(pick(g, "", "eu/a", "us/a")),
		})
	}
}

func (g *randomMesh) editService() {
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
	if g.more.IntN(10) == 0 {
		next.Catalog = !next.Catalog
	}
	if g.more.IntN(10) == 0 {
		next.External = !next.External
	}
	g.note("service %s edited", next.Hostname)
	f.Services[i] = &next
}

func (g *randomMesh) workload() {
	w := &mesh.Workload{
		Meta:    g.w.meta(mesh.KindWorkloadEntry, pick(g, "shop", "other"), g.name()),
		Address: fmt.Sprintf("10.0.0.%d", 1+g.rnd.IntN(5)), ServiceAccount: pick(g, "", "one"),
		Locality: mesh.ParseLocality(pick(g, "", "eu/a", "us/a")),
	}
	w.Labels = g.labels()
	g.note("workload %s in %s", w.Address, w.Namespace)
	g.w.f.Workloads = append(g.w.f.Workloads, w)
	slices.SortFunc(g.w.f.Workloads, byKey)
}

func (g *randomMesh) editWorkload() {
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
		next.Health = pick(g, mesh.Healthy, mesh.Unhealthy, mesh.Silent)
	case 2:
		next.Weight = uint32(g.rnd.IntN(3))
	}
	g.note("workload %s edited", next.Address)
	f.Workloads[i] = &next
}

func (g *randomMesh) routes() {
	ns, name := pick(g, "shop", "other"), g.name()
	g.w.routes(ns, name, `{}`, g.exports()...)
	vs := g.w.f.VirtualServices[len(g.w.f.VirtualServices)-1]
	vs.Spec = g.routesSpec()
	g.note("routes %s/%s for %v", ns, name, vs.Spec.GetHosts())
}

func (g *randomMesh) editRoutes() {
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
	g.note("routes %s edited: %v", next.Name, next.Spec)
	f.VirtualServices[i] = &next
}

func (g *randomMesh) routesSpec() *networking.VirtualService {
	to := func() string {
		return `{"destination":{"host":"` + strings.TrimPrefix(g.host(), "*.") + `"` + pick(g, "", `,"subset":"v1"`, `,"port":{"number":80}`, `,"port":{"number":81}`, `,"port":{"number":81},"subset":"v1"`) + `}` + pick(g, "", `,"weight":50`) + `}`
	}
	match := pick(g, "", "", `"match":[{"uri":{"prefix":"/a"}}],`, `"match":[{"sourceLabels":{"app":"a"}}],`, `"match":[{"sourceNamespace":"shop"}],`, `"match":[{"port":80,"uri":{"exact":"/b"}}],`)
	delegate := pick(g, "", "", "", `{"match":[{"uri":{"prefix":"/d"}}],"delegate":{"name":"n1`+strconv.Itoa(g.rnd.IntN(10))+`"}},`)
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

func (g *randomMesh) rule() {
	g.w.rule(pick(g, "shop", "other", "istio-system"), g.name(), `{}`, g.exports()...)
	dr := g.w.f.DestinationRules[len(g.w.f.DestinationRules)-1]
	dr.Spec = g.ruleSpec()
	g.note("rule for %s in %s", dr.Spec.GetHost(), dr.Namespace)
}

func (g *randomMesh) ruleSpec() *networking.DestinationRule {
	spec := &networking.DestinationRule{}
	g.w.decode(`{"host":"`+pick(g, g.host(), g.host(), g.host(), "*.mesh")+`"`+pick(g, "", "", `,"workloadSelector":{"matchLabels":{"app":"a"}}`)+
		pick(g, "", `,"subsets":[{"name":"v1","labels":{"app":"a"}}]`, `,"subsets":[{"name":"v1","trafficPolicy":{"loadBalancer":{"simple":"RANDOM"}}},{"name":"v2"}]`,
			`,"subsets":[{"name":"v1","trafficPolicy":{"tls":{"mode":"SIMPLE"}}}]`)+
		pick(g, "", `,"trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":1}}`, `,"trafficPolicy":{"loadBalancer":{"consistentHash":{"useSourceIp":true}}}`,
			`,"trafficPolicy":{"connectionPool":{"tcp":{"maxConnections":1,"idleTimeout":"1s"}}}`, `,"trafficPolicy":{"tls":{"mode":"ISTIO_MUTUAL"}}`, `,"trafficPolicy":{"tls":{"mode":"SIMPLE"}}`,
			`,"trafficPolicy":{"portLevelSettings":[{"port":{"number":81},"tls":{"mode":"SIMPLE"}}]}`)+`}`, spec)
	return spec
}

func (g *randomMesh) sidecar() {
	g.note("sidecar")
	g.w.sidecar(pick(g, "shop", "other", "istio-system"), g.name(), `{`+
		pick(g, "", `"workloadSelector":{"labels":{"sidecar":"narrow"}},`, `"workloadSelector":{"labels":{"app":"a"}},`)+
		pick(g, `"outboundTrafficPolicy":{"mode":"REGISTRY_ONLY"},`, "", "")+
		pick(g, "", `"ingress":[{"port":{"number":8080,"protocol":"HTTP","name":"h"},"defaultEndpoint":"127.0.0.1:9090"}],`)+
		`"egress":[`+pick(g, `{"hosts":["./*"]}`, `{"hosts":["*/*"],"bind":"127.0.0.5"}`, `{"hosts":["*/c.mesh","other/*"]}`,
		`{"port":{"number":81,"protocol":"HTTP","name":"h"},"hosts":["*/c.mesh"]},{"hosts":["*/*","~other/*"]}`,
		`{"port":{"number":7000,"protocol":"HTTP_PROXY","name":"p"},"bind":"127.0.0.1","hosts":["*/*"]}`)+`]}`)
}

// moved moves objects in their files, or changes MeshConfig; the specs do not change.
func (g *randomMesh) moved() {
	f := &g.w.f
	if g.rnd.IntN(5) == 0 {
		g.note("mesh config")
		g.w.mc = proto.CloneOf(g.w.mc)
		g.w.mc.ProxyListenPort = int32(15001 + 2*g.rnd.IntN(2))
		return
	}
	g.note("origins moved")
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
