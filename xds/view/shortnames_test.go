package view

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestTenantsShortNames: routes and the names that are answered leave out the same short forms of a tenant's host.
func TestTenantsShortNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host    string
		pattern mesh.Hostname // of another source
		lacks   string        // a domain; empty if nothing lacks
	}{
		{"x.corp.svc.cluster.local", "*.corp", "x.corp"},
		{"vault.shop.svc.cluster.local", "secrets.example", "vault.shop"},
		{"own.mallory.svc.cluster.local", "*.mallory", "own.mallory"},
		{"own.mallory.svc.cluster.local", "secrets.example", ""},
	} {
		w := newMeshFixture(t)
		svc := w.service("mallory", c.host, 80)
		svc.Addresses = []string{"10.96.0.5"}
		s := mesh.Merge(mesh.Input{
			Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{&w.f, {}},
			Bindings: []*mesh.Binding{{Namespaces: []string{"mallory"}, Hosts: []mesh.Hostname{"10.96.0.5"}}, {Namespaces: []string{"corp"}, Hosts: []mesh.Hostname{c.pattern}}},
		})
		p := proxyIn("mallory", nil)
		p.Names = true
		v := NewIndex(s).Build(p)
		r := findPart(t, v, func(r *RouteConfiguration) bool { return r.Name == "80" })
		var domains []string
		for _, vh := range r.VirtualHosts {
			domains = append(domains, vh.Domains...)
		}
		if !slices.Contains(domains, c.host) || c.lacks != "" && slices.Contains(domains, c.lacks) || c.lacks == "" && !slices.Contains(domains, "own.mallory") {
			t.Errorf("%s beside %s: domains %q", c.host, c.pattern, domains)
		}
		n := findPart(t, v, func(n *Name) bool { return string(n.Host) == c.host })
		if n.Whole != (c.lacks != "") {
			t.Errorf("%s beside %s is answered by its whole name only: %v", c.host, c.pattern, n.Whole)
		}
	}
}
