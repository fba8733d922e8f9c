package mesh

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestFirstOfTwoBoundSourcesWithOneKey: two sources are bound to one namespace, and both have
// routes with one key, for a host of somebody else. Those of the first source are in force, and
// so restricted; nothing is told of the others'.
func TestFirstOfTwoBoundSourcesWithOneKey(t *testing.T) {
	t.Parallel()
	hosted := testService("shop", "hosted", "")
	hosted.Hostname = "hosted.example"
	routes := func(path string) *VirtualService {
		vs := testVirtualService("ns2", "routes", path)
		vs.Origin = &Origin{Path: path}
		vs.Spec = &networking.VirtualService{Hosts: []string{"hosted.example"}}
		return vs
	}
	s := Merge(Input{
		Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"ns2"}}, {Namespaces: []string{"ns2"}}, nil},
		Fragments: []*Fragment{{VirtualServices: []*VirtualService{routes("a.yaml")}}, {VirtualServices: []*VirtualService{routes("b.yaml")}}, {Services: []*Service{hosted}}},
	})
	if got := seenFrom(s, "third"); !slices.Equal(got, []string{"shop"}) {
		t.Errorf("others see what is of %v", got)
	}
	told := 0
	for _, c := range s.Conflicts {
		if c.Foreign {
			told++
			if c.Dropped.Path != "a.yaml" {
				t.Errorf("a conflict of what is not in force: %s", c.Reason)
			}
		}
	}
	if told != 1 {
		t.Errorf("%d conflicts of a host, want 1", told)
	}
}

// TestRoutesWithoutHostsOpenNoOthers: two sources are bound to one namespace. One has routes without a host, for a
// server name of somebody else, and the other has routes with the same key for a host of somebody else: the first are in
// force, so that nobody gets the others.
func TestRoutesWithoutHostsOpenNoOthers(t *testing.T) {
	t.Parallel()
	without := byServerName("ns2", "hosted.example", "mesh")
	without.Spec.Hosts = nil
	others := routing("ns2", "hosted.example")
	others.Name = without.Name
	for _, bindings := range [][]*Binding{{{Namespaces: []string{"ns2"}}, {Namespaces: []string{"ns2"}}, patterns("shop", "hosted.example")}, {{Namespaces: []string{"ns2"}}, {Namespaces: []string{"ns2"}}, nil}} {
		in := Input{
			Fallback: testMeshConfig(), Bindings: bindings,
			Fragments: []*Fragment{{VirtualServices: []*VirtualService{without}}, {VirtualServices: []*VirtualService{others}}, {Services: []*Service{hosting("shop", "hosted.example")}}},
		}
		s := Merge(in)
		if got := s.VirtualServices; len(got) != 1 || len(got[0].Spec.Hosts) > 0 {
			t.Errorf("routes in force: %v; conflicts: %v", got, s.Conflicts)
		}
		in.Fragments[0] = &Fragment{}
		if s := Merge(in); slices.Contains(routesSeenFrom(s, "third"), "ns2") || len(s.Conflicts) == 0 {
			t.Errorf("others have the routes of %v; conflicts: %v", routesSeenFrom(s, "third"), s.Conflicts)
		}
	}
}

// TestServerNamesOfPrivateServices: routes by server name, from a bound source, do not reach
// clients in a namespace that has a service with that name to itself, and that is told.
func TestServerNamesOfPrivateServices(t *testing.T) {
	t.Parallel()
	private := testService("ns3", "own", "")
	private.Hostname, private.ExportTo = "own.example", Exports{"ns3"}
	routes := testVirtualService("ns1", "routes", "")
	routes.Spec = &networking.VirtualService{
		Hosts: []string{"mine.example"},
		Tls:   []*networking.TLSRoute{{Match: []*networking.TLSMatchAttributes{{SniHosts: []string{"own.example"}}}}},
	}
	s := Merge(Input{
		Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"ns1"}}, nil}, Grants: NewGrants([]Grant{{Name: "mine.example", Namespace: "ns1"}, {Name: "own.example", Namespace: "ns1"}}),
		Fragments: []*Fragment{{VirtualServices: []*VirtualService{routes}}, {Services: []*Service{private}}},
	})
	for ns, want := range map[string]bool{"ns1": true, "ns2": true, "ns3": false} {
		if got := slices.Contains(seenFrom(s, ns), "ns1"); got != want {
			t.Errorf("clients in %s have the routes: %v", ns, got)
		}
	}
	if len(s.Conflicts) != 1 || s.Conflicts[0].Host != "own.example" || !s.Conflicts[0].Foreign {
		t.Errorf("conflicts %+v", s.Conflicts)
	}
}
