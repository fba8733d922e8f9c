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
