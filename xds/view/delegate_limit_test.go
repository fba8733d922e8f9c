package view

import (
	"fmt"
	"strings"
	"testing"
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
