package view

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestRefusedRoutesOfDelegates: at a gateway that may not follow a route of a delegate, the route answers 503, whatever
// the match of the route that includes it; all others follow it.
func TestRefusedRoutesOfDelegates(t *testing.T) {
	t.Parallel()
	const to = `"route": [{"destination": {"host": "bank.bank.internal"}}]`
	object := func(ns, name, spec string) *mesh.VirtualService {
		vs := &mesh.VirtualService{
			Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindVirtualService, Namespace: ns, Name: name}}, Spec: &networking.VirtualService{},
		}
		if err := protojson.Unmarshal([]byte(spec), vs.Spec); err != nil {
			t.Fatal(err)
		}
		return vs
	}
	w := newMeshFixture(t)
	bank := &mesh.Service{
		Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "bank", Name: "bank"}}, Hostname: "bank.bank.internal", ExportTo: mesh.Exports{"edge"},
	}
	for name, c := range map[string]struct {
		root, part string
		// open are the places at which the route leads to the bank.
		open []string
	}{
		"without_matches": {root: `{}`, part: `{}`, open: []string{"front/c", "mesh"}},
		"root_ignores_case": {
			root: `{"match": [{"uri": {"prefix": "/a"}, "ignoreUriCase": true, "sourceNamespace": "x"}]}`, part: `{}`, open: []string{"front/c", "mesh"},
		},
		"both_match": {
			root: `{"match": [{"uri": {"prefix": "/a"}, "gateways": ["edge/a", "front/c"]}, {"uri": {"prefix": "/b"}}]}`,
			part: `{"match": [{"headers": {"h": {"exact": "1"}}}, {"gateways": ["edge/a"]}]}`, open: []string{"front/c", "mesh"},
		},
		"root_of_one_gateway": {root: `{"match": [{"gateways": ["edge/b"]}]}`, part: `{}`},
		"part_of_others":      {root: `{}`, part: `{"match": [{"gateways": ["mesh"]}]}`, open: []string{"mesh"}},
	} {
		withDelegate, withRoute := `{"delegate": {"name": "part", "namespace": "shop"}}`, `{`+to+`}`
		if c.root != `{}` {
			withDelegate = c.root[:len(c.root)-1] + `, "delegate": {"name": "part", "namespace": "shop"}}`
		}
		if c.part != `{}` {
			withRoute = c.part[:len(c.part)-1] + `, ` + to + `}`
		}
		part := object("shop", "part", `{"http": [{"match": [{"uri": {"prefix": "/own"}}], "directResponse": {"status": 200}}, `+withRoute+`]}`)
		root := object("corp", "root", `{"hosts": ["a.test"], "gateways": ["edge/a", "edge/b", "front/c", "mesh"], "http": [`+withDelegate+`]}`)
		merged := NewIndex(mesh.Merge(mesh.Input{
			Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{{VirtualServices: []*mesh.VirtualService{root}}, {VirtualServices: []*mesh.VirtualService{part}}, {Services: []*mesh.Service{bank}}},
			Bindings: []*mesh.Binding{nil, {Namespaces: []string{"shop"}, RoutesOnly: true}, {Namespaces: []string{"bank"}, Hosts: []mesh.Hostname{"*.bank.internal"}}},
		})).virtualServices
		if len(merged) != 1 {
			t.Fatalf("%s: %d VirtualServices", name, len(merged))
		}
		var open []string
		for _, at := range []string{"edge/a", "edge/b", "front/c", "mesh"} {
			closed := map[string]bool{} // by the match without its gateways
			for _, r := range merged[0].http {
				matches := r.GetMatch()
				if len(matches) == 0 {
					matches = []*networking.HTTPMatchRequest{{}}
				}
				for _, m := range matches {
					if len(m.GetGateways()) > 0 && !slices.Contains(m.GetGateways(), at) {
						continue
					}
					key := fmt.Sprint(m.GetUri(), m.GetHeaders(), m.GetIgnoreUriCase(), m.GetSourceNamespace())
					switch {
					case r.GetDirectResponse().GetStatus() == 503:
						closed[key] = true
					case len(r.GetRoute()) > 0 && !closed[key] && (len(open) == 0 || open[len(open)-1] != at):
						open = append(open, at)
					}
				}
			}
		}
		if fmt.Sprint(open) != fmt.Sprint(c.open) {
			t.Errorf("%s: the route leads to the bank at %v, want %v:\n%v", name, open, c.open, merged[0].http)
		}
	}
}
