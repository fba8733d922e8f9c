package view

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestDelegatesAreLimited includes long delegates of another namespace again and again: a VirtualService that would
// have more matches than it may has none of these routes, nor has one by which its namespace would have too many. Other
// routes and namespaces stay as they are.
func TestDelegatesAreLimited(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80)
	repeat := func(n int, text string) string { return strings.Repeat(text+",", n-1) + text }
	const to = `"route":[{"destination":{"host":"a.mesh"}}]`
	// One route of 250 matches the prefix of those that include it.
	w.routes("team", "d", `{"http":[{"match":[{"uri":{"exact":"/a/x"}}],`+to+`},`+repeat(249, `{"match":[{"uri":{"exact":"/b"}}],`+to+`}`)+`]}`)
	root := func(ns, name string, n int) {
		w.routes(ns, name, `{"hosts":["`+name+`.mesh"],"http":[`+repeat(n, `{"match":[{"uri":{"prefix":"/a"}}],"delegate":{"name":"d","namespace":"team"}}`)+`,{`+to+`}]}`)
	}
	for i := range 11 {
		root("full", fmt.Sprintf("r%02d", i), 400)
	}
	root("shop", "over", 401)
	root("shop", "within", 400)
	w.routes("shop", "one-route", `{"hosts":["one-route.mesh"],"http":[{"match":[`+repeat(401, `{"uri":{"prefix":"/a"}}`)+`],"delegate":{"name":"d","namespace":"team"}},{`+to+`}]}`)
	want := map[string]int{"over": 1, "within": 401, "one-route": 1, "r10": 1}
	for i := range 10 {
		want[fmt.Sprintf("r%02d", i)] = 401
	}
	list := NewIndex(w.snapshot()).virtualServices
	if len(list) != len(want) {
		t.Errorf("%d VirtualServices with hosts, want %d", len(list), len(want))
	}
	for _, vs := range list {
		if len(vs.http) != want[vs.Name] {
			t.Errorf("%s has %d routes, want %d", vs.Name, len(vs.http), want[vs.Name])
		}
	}
}

// TestTenantsLeaveThemselvesOut: where the delegate of a tenant has many matches, what an operator's VirtualService
// includes of others stays as it was, in it and in the other ones of its namespace; the delegate is left out, and each proxy that
// has the VirtualService says so.
func TestTenantsLeaveThemselvesOut(t *testing.T) {
	t.Parallel()
	const to = `"route":[{"destination":{"host":"a.mesh"}}]`
	repeat := func(n int, text string) string { return strings.Repeat(text+",", n-1) + text }
	part := func(matches int) string {
		return `{"http":[{"match":[{"uri":{"exact":"/a/x"}}],` + to + `},` + repeat(matches-1, `{"match":[{"uri":{"exact":"/b"}}],`+to+`}`) + `]}`
	}
	include := func(n int, ns string) string {
		return repeat(n, `{"match":[{"uri":{"prefix":"/a"}}],"delegate":{"name":"part","namespace":"`+ns+`"}}`)
	}
	for name, c := range map[string]struct {
		evil int // matches of the tenant's delegate
		// roots is how many such VirtualServices there are, and routes what each has.
		roots, routes int
		found         int
	}{
		"fits":                     {evil: 300, roots: 1, routes: 100 + 5 + 100 + 1},
		"too_much_for_one":         {evil: 600, roots: 1, routes: 100 + 5 + 1, found: 1},
		"too_much_for_a_namespace": {evil: 400, roots: 12, routes: 100 + 5 + 100 + 1, found: 3},
	} {
		w := newMeshFixture(t)
		w.service("ops", "a.mesh", 80)
		for i := range c.roots {
			w.routes("ops", fmt.Sprintf("r%02d", i), `{"hosts":["a.mesh"],"gateways":["mesh","ops/edge"],"http":[`+include(100, "evil")+`,`+include(100, "ops")+`,`+include(5, "shop")+`,{`+to+`}]}`)
		}
		w.routes("ops", "part", part(500))
		w.gateway("edge", `{"selector":{"istio":"edge"},"servers":[{"hosts":["*"],"port":{"number":80,"name":"http","protocol":"HTTP"}}]}`).Meta = w.meta(mesh.KindGateway, "ops", "edge")
		operators := w.f
		w.f.Services, w.f.Gateways, w.f.VirtualServices = nil, nil, nil
		w.routes("evil", "part", part(c.evil))
		evil := w.f.VirtualServices
		w.f.VirtualServices = nil
		w.routes("shop", "part", part(10))
		s := mesh.Merge(mesh.Input{
			Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{&operators, {VirtualServices: evil}, {VirtualServices: w.f.VirtualServices}},
			Bindings: []*mesh.Binding{nil, {Namespaces: []string{"evil"}}, {Namespaces: []string{"shop"}}},
		})
		x := NewIndex(s)
		whole := 0
		for _, vs := range x.virtualServices {
			switch len(vs.http) {
			case c.routes:
				whole++
			case 100 + 5 + 1:
			default:
				t.Errorf("%s: %s has %d routes", name, vs.Name, len(vs.http))
			}
		}
		if left := x.LeftOutDelegates(); len(left) != c.found || c.roots > 1 && whole != c.roots-c.found {
			t.Errorf("%s: %d whole, left out: %v", name, whole, left)
		}
		for kind, proxy := range map[string]Proxy{
			"sidecar": {Addresses: []string{"10.9.9.9"}, ServiceAccount: mesh.ServiceAccount{Namespace: "ops", Name: "x"}},
			"gateway": {Type: Router, Addresses: []string{"10.9.9.8"}, Labels: map[string]string{"istio": "edge"}, ServiceAccount: mesh.ServiceAccount{Namespace: "ops", Name: "edge"}},
		} {
			n := 0
			for _, f := range x.Build(proxy).Findings.All() {
				if f.Kind != LeftOutDelegate {
					continue
				}
				n++
				if e := f.Explain(s); f.Object.Namespace != "ops" || f.Other.Namespace != "evil" || e.Key != f.Object || e.Origin == nil ||
					!strings.Contains(e.Text, "does not include VirtualService evil/part") || !strings.Contains(e.Text, fmt.Sprintf("has %d matches", c.evil)) || e.Action == "" {
					t.Errorf("%s, %s: %+v: %+v", name, kind, f, e)
				}
			}
			if n != c.found {
				t.Errorf("%s, %s: %d findings, want %d", name, kind, n, c.found)
			}
		}
	}
}
