package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
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
		{"*.mallory.svc.cluster.local", "secrets.example", "*.mallory"},
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

// TestLostShortNamesAreAnsweredByTheirOwner: agents of earlier releases look for short forms before they look for
// wildcards. So a lost short form that somebody's wildcard covers is a name of its own, with the addresses of the
// narrowest wildcard, until somebody declares it. Agents complete no short form of such a host: so those that it keeps
// are names of their own, with its addresses; and names that are not lost are as before.
func TestLostShortNamesAreAnsweredByTheirOwner(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		host    string   // the tenant's
		others  []string // hosts of another source, whose addresses are 10.97.0.1, 10.97.0.2, …
		answers map[string]string
	}{
		{"wildcard", "vault.mallory.svc.cluster.local", []string{"*.mallory"}, map[string]string{"vault.mallory": "10.97.0.1", "vault": "10.96.0.5"}},
		{"narrowest", "vault.mallory.svc.cluster.local", []string{"*.mallory", "*.svc", "*.mallory.svc"}, map[string]string{"vault.mallory": "10.97.0.1", "vault.mallory.svc": "10.97.0.3", "vault": "10.96.0.5"}},
		{"declared", "vault.mallory.svc.cluster.local", []string{"*.mallory", "vault.mallory"}, map[string]string{"vault.mallory": "10.97.0.2", "vault": "10.96.0.5"}},
		{"bare_name", "vault.mallory.svc.cluster.local", []string{"vault"}, map[string]string{"vault": "10.97.0.1", "vault.mallory": "10.96.0.5", "vault.mallory.svc": "10.96.0.5"}},
		{"nobody", "vault.mallory.svc.cluster.local", []string{"*.mallory.example"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			w.service("mallory", c.host, 80).Addresses = []string{"10.96.0.5"}
			o := newMeshFixture(t)
			for i, host := range c.others {
				o.service("corp", host, 80).Addresses = []string{fmt.Sprintf("10.97.0.%d", i+1)}
			}
			s := mesh.Merge(mesh.Input{
				Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{&w.f, &o.f},
				Bindings: []*mesh.Binding{{Namespaces: []string{"mallory"}, Hosts: []mesh.Hostname{"10.96.0.5"}}, nil},
			})
			p := proxyIn("mallory", nil)
			p.Names = true
			got := map[string]string{}
			for part := range NewIndex(s).Build(p).Parts() {
				n, is := part.(*Name)
				if !is {
					continue
				}
				if host := string(n.Host); strings.HasPrefix(host, "vault") && host != c.host {
					got[host] += strings.Join(n.Addresses, " ")
				}
			}
			if !maps.Equal(got, c.answers) {
				t.Errorf("short forms are answered as %v, want %v", got, c.answers)
			}
		})
	}
}
