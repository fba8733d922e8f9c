package view

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/internal/meshgen"
	"github.com/fairlead/fairlead/registry/mesh"
)

// A mesh of a dozen objects, each of which is absent or one of a few variants, changes one
// to three objects at a time. After each step the views that are updated equal those that
// are built from nothing. So few objects meet in most ways in which objects can meet:
// [FuzzIncremental] has more of them, which meet less.
func TestFewObjectsInAllVariants(t *testing.T) {
	t.Parallel()
	for _, seed := range meshgen.Seeds(t, 6, 60) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 21))
			objects := variants(t)
			state := make([]int, len(objects)) // 0 is absent
			g := &randomMesh{w: newMeshFixture(t), rnd: rnd}
			for _, ns := range []string{"shop", "other"} {
				for _, mode := range []Interception{InterceptRedirect, InterceptNone} {
					p := proxyIn(ns, map[string]string{"app": "a"})
					p.Interception = mode
					g.proxies = append(g.proxies, p)
				}
			}
			g.proxies[0].Locality = mesh.ParseLocality("eu/a")
			g.views = make([]*View, len(g.proxies))
			for step := range 400 {
				var log []string
				for range 1 + rnd.IntN(3)*rnd.IntN(2) {
					i := rnd.IntN(len(objects))
					state[i] = rnd.IntN(1 + len(objects[i]))
					log = append(log, fmt.Sprintf("object %d is variant %d", i, state[i]))
				}
				g.w.f = mesh.Fragment{Source: "test"}
				for i, variant := range state {
					if variant > 0 {
						objects[i][variant-1](&g.w.f)
					}
				}
				g.w.f = *g.w.f.Sorted()
				g.snapshot()
				g.x = g.x.Next(g.s)
				for i, p := range g.proxies {
					if rnd.IntN(5) == 0 {
						continue // this one is late
					}
					g.views[i] = g.x.Rebuild(g.views[i], p)
					if d := differenceOf(NewIndex(g.s).Build(p), g.views[i]); d != "" {
						t.Fatalf("FAIRLEAD_NETS_SEED=%d, step %d, proxy %d: %s\nafter %s, of %v", seed, step, i, d, strings.Join(log, ", "), state)
					}
				}
			}
		})
	}
}

// variants are the objects of the mesh: each is a list of functions that put one variant of
// it into a fragment.
func variants(tb testing.TB) [][]func(*mesh.Fragment) {
	tb.Helper()
	var out [][]func(*mesh.Fragment)
	meta := func(kind mesh.Kind, ns string, variant int) mesh.Meta {
		n := len(out) // of the object
		k := mesh.Key{Kind: kind, Namespace: ns, Name: fmt.Sprint("o", n)}
		return mesh.Meta{
			Key: k, Created: time.Unix(int64(n), 0), Hash: mesh.Hash{byte(n), byte(variant), 1},
			Origin: &mesh.Origin{Source: "test", Path: k.Name + ".yaml", Line: 1 + variant, Column: 1},
		}
	}
	decode := func(text string, m proto.Message) {
		if err := protojson.Unmarshal([]byte(text), m); err != nil {
			tb.Fatalf("reading %s: %v", text, err)
		}
	}
	service := func(ns, host string, edits ...func(*mesh.Service)) {
		var list []func(*mesh.Fragment)
		for i, edit := range edits {
			svc := &mesh.Service{
				Meta: meta(mesh.KindServiceEntry, ns, i), Hostname: mesh.Hostname(host), Resolution: mesh.ResolutionStatic,
				Ports: []mesh.Port{{Name: "http", Number: 80, Protocol: mesh.HTTP}},
			}
			svc.Inline = []*mesh.Workload{{Meta: mesh.Meta{Key: mesh.Key{Namespace: ns}, Origin: svc.Origin}, Address: "10.0.0.9", ServiceAccount: host}}
			edit(svc)
			list = append(list, func(f *mesh.Fragment) { f.Services = append(f.Services, svc) })
		}
		out = append(out, list)
	}
	plain := func(*mesh.Service) {}
	moved := func(s *mesh.Service) { s.Inline[0].Address = "10.0.0.1" }
	tcp := func(s *mesh.Service) { s.Ports[0].Protocol = mesh.TCP }
	other := func(s *mesh.Service) { s.Ports[0].Number = 81 }
	both := func(s *mesh.Service) {
		s.Ports = append(s.Ports, mesh.Port{Name: "more", Number: 81, Protocol: mesh.HTTP})
	}
	private := func(s *mesh.Service) { s.ExportTo = mesh.Exports{s.Namespace} }
	undeclared := func(s *mesh.Service) { s.Ports[0].Protocol = mesh.Undeclared }
	external := func(s *mesh.Service) { undeclared(s); s.External = true }
	vip := func(s *mesh.Service) { s.Addresses = []string{"192.0.2.1"}; s.Ports[0].Protocol = mesh.TCP }
	service("shop", "a.mesh", plain, moved, tcp, other, both, private, vip, undeclared, external)
	service("other", "b.mesh", plain, moved, tcp, other, both, private, vip, undeclared, external)
	service("other", "a.mesh", plain, tcp, private)
	service("shop", "*.mesh", plain, tcp, both)
	service("shop", "c", plain, tcp)
	catalog := func(s *mesh.Service) { s.Catalog = true }
	service("shop", "a.mesh", catalog, func(s *mesh.Service) { catalog(s); other(s) })

	routes := func(ns string, specs ...string) {
		var list []func(*mesh.Fragment)
		for i, text := range specs {
			vs := &mesh.VirtualService{Meta: meta(mesh.KindVirtualService, ns, i), Spec: &networking.VirtualService{}}
			decode(text, vs.Spec)
			vs.ExportTo = vs.Spec.GetExportTo()
			list = append(list, func(f *mesh.Fragment) { f.VirtualServices = append(f.VirtualServices, vs) })
		}
		out = append(out, list)
	}
	http := func(hosts, prefix, to string) string {
		return `{"hosts":["` + hosts + `"],"http":[{"match":[{"uri":{"prefix":"` + prefix + `"}}],"route":[{"destination":{` + to + `}}]}]}`
	}
	layer4 := func(hosts, kind, match, to string) string {
		return `{"hosts":["` + hosts + `"],"` + kind + `":[{"match":[{` + match + `}],"route":[{"destination":{` + to + `}}]}]}`
	}
	all := func(hosts string) []string {
		return []string{
			http(hosts, "/one", `"host":"a.mesh"`),
			http(hosts, "/two", `"host":"a.mesh"`),
			http(hosts, "/one", `"host":"b.mesh","port":{"number":80}`),
			http(hosts, "/one", `"host":"b.mesh","port":{"number":81}`),
			http(hosts, "/one", `"host":"a.mesh","subset":"v1"`),
			http(hosts, "/one", `"host":"nowhere.mesh"`),
			layer4(hosts, "tcp", `"port":80`, `"host":"a.mesh","port":{"number":80}`),
			layer4(hosts, "tcp", `"port":80`, `"host":"b.mesh","port":{"number":80}`),
			layer4(hosts, "tls", `"sniHosts":["`+hosts+`"],"port":80`, `"host":"b.mesh"`),
			strings.Replace(http(hosts, "/three", `"host":"b.mesh"`), `{"hosts"`, `{"exportTo":["."],"hosts"`, 1),
		}
	}
	routes("shop", append(all("a.mesh"), all("*.mesh")[:3]...)...)
	routes("other", append(all("b.mesh"), all("c.shop.svc.cluster.local")[:3]...)...)

	delegate := fmt.Sprint("o", len(out))
	routes("shop",
		`{"http":[{"route":[{"destination":{"host":"a.mesh"}}]}]}`,
		`{"http":[{"match":[{"uri":{"prefix":"/d/more"}}],"route":[{"destination":{"host":"b.mesh"}}]}]}`,
		`{"http":[{"match":[{"uri":{"prefix":"/elsewhere"}}],"route":[{"destination":{"host":"b.mesh"}}]}]}`)
	routes("shop",
		`{"hosts":["a.mesh"],"http":[{"match":[{"uri":{"prefix":"/d"}}],"delegate":{"name":"`+delegate+`"}}]}`,
		`{"hosts":["b.mesh"],"http":[{"delegate":{"name":"`+delegate+`"}},{"route":[{"destination":{"host":"b.mesh"}}]}]}`)

	rules := func(ns, host string, specs ...string) {
		var list []func(*mesh.Fragment)
		for i, text := range specs {
			dr := &mesh.DestinationRule{Meta: meta(mesh.KindDestinationRule, ns, i), Spec: &networking.DestinationRule{}}
			decode(`{"host":"`+host+`"`+text+`}`, dr.Spec)
			list = append(list, func(f *mesh.Fragment) { f.DestinationRules = append(f.DestinationRules, dr) })
		}
		out = append(out, list)
	}
	settings := []string{
		`,"subsets":[{"name":"v1"}]`,
		`,"trafficPolicy":{"loadBalancer":{"consistentHash":{"httpHeaderName":"x"}}}`,
		`,"trafficPolicy":{"loadBalancer":{"consistentHash":{"httpHeaderName":"y"}}}`,
		`,"trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":1}}`,
		`,"trafficPolicy":{"connectionPool":{"tcp":{"idleTimeout":"5s"}}}`,
		`,"trafficPolicy":{"tls":{"mode":"SIMPLE"}}`,
		`,"subsets":[{"name":"v1","trafficPolicy":{"tls":{"mode":"SIMPLE"}}}]`,
		`,"trafficPolicy":{"portLevelSettings":[{"port":{"number":80},"tls":{"mode":"SIMPLE"}}]}`,
	}
	rules("shop", "a.mesh", settings...)
	rules("other", "*.mesh", settings...)

	sidecars := func(ns string, specs ...string) {
		var list []func(*mesh.Fragment)
		for i, text := range specs {
			sc := &mesh.Sidecar{Meta: meta(mesh.KindSidecar, ns, i), Spec: &networking.Sidecar{}}
			decode(text, sc.Spec)
			list = append(list, func(f *mesh.Fragment) { f.Sidecars = append(f.Sidecars, sc) })
		}
		out = append(out, list)
	}
	sidecars("shop",
		`{"egress":[{"hosts":["*/*"]}]}`,
		`{"egress":[{"hosts":["./*"]},{"hosts":["other/*"]}]}`,
		`{"egress":[{"hosts":["*/b.mesh"]}]}`,
		`{"egress":[{"hosts":["shop/a.mesh"]}]}`,
		`{"egress":[{"port":{"number":80,"protocol":"HTTP","name":"http"},"hosts":["*/*"]}]}`,
		`{"egress":[{"port":{"number":80,"protocol":"TCP","name":"tcp"},"hosts":["*/b.mesh"]},{"hosts":["*/*"]}]}`,
		`{"egress":[{"port":{"number":7000,"protocol":"HTTP","name":"http"},"hosts":["*/b.mesh"]},{"hosts":["*/*"]}]}`,
		`{"egress":[{"bind":"127.0.0.2","hosts":["*/*"]}]}`,
		`{"outboundTrafficPolicy":{"mode":"REGISTRY_ONLY"}}`)

	policies := func(ns string, specs ...string) {
		var list []func(*mesh.Fragment)
		for i, text := range specs {
			pa := &mesh.PeerAuthentication{Meta: meta(mesh.KindPeerAuthentication, ns, i), Spec: &security.PeerAuthentication{}}
			decode(text, pa.Spec)
			list = append(list, func(f *mesh.Fragment) { f.PeerAuthentications = append(f.PeerAuthentications, pa) })
		}
		out = append(out, list)
	}
	policies("other", `{"mtls":{"mode":"STRICT"}}`, `{"mtls":{"mode":"DISABLE"}}`)
	policies("istio-system", `{"mtls":{"mode":"STRICT"}}`, `{"mtls":{"mode":"DISABLE"}}`)
	return out
}
