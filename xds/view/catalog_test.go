package view

import (
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestCatalogGivesWay: a namespace that sees a service which somebody wrote down
// for a host gets that and its endpoints alone, and another one the catalog's and
// its own alone.
func TestCatalogGivesWay(t *testing.T) {
	t.Parallel()
	const host = "web.service.consul"
	for i, home := range []string{"shop", "other", "other"} { // where the written one lies
		w := newWorld(t)
		derived := w.service("shop", host, 80)
		derived.Name, derived.Catalog = "consul/web", true
		derived.Inline[0].Address = "10.0.0.1"
		mine := w.service(home, host, 80)
		mine.Name, mine.ExportTo = "mine", mesh.Exports{home}
		if i == 2 { // for those at the catalog's home, whom only routes lead to it
			mine.ExportTo = mesh.Exports{"other", "shop"}
			w.sidecar("istio-system", "default", `{"egress":[{"hosts":["*/lead.example"]}]}`)
		}
		mine.Inline[0].Address = "10.0.0.2"
		w.routes("shop", "lead", `{"hosts":["lead.example"],"http":[{"route":[{"destination":{"host":"web.service.consul"}}]}]}`)
		w.routes("third", "lead", `{"hosts":["lead.example"],"http":[{"route":[{"destination":{"host":"web.service.consul"}}]}]}`)
		x := NewIndex(w.snapshot())
		for _, ns := range []string{"shop", "other", "third"} {
			want := "10.0.0.1"
			if mine.ExportTo.To(ns) {
				want = "10.0.0.2"
			}
			v := x.Build(proxyIn(ns, nil))
			var got []string
			for p := range v.Parts() {
				if e, ok := p.(*Endpoints); ok && e.Ref.Host == host {
					for _, l := range e.Localities {
						for _, ep := range l.Endpoints {
							got = append(got, ep.Address)
						}
					}
				}
			}
			if len(got) != 1 || got[0] != want {
				t.Errorf("written in %s: %s gets %v, want %s", home, ns, got, want)
			}
		}
	}
}
