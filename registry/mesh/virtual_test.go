package mesh

import (
	"slices"
	"testing"
)

// TestTenantHasNoRangeOfVirtualAddresses has a tenant name addresses that the control plane gives to
// hosts, in every way there is to name them: their connections would go to it, because Envoy compares
// ranges before everything else. Nobody has to have such a host: it may come later.
func TestTenantHasNoRangeOfVirtualAddresses(t *testing.T) {
	t.Parallel()
	ipv4, ipv6 := VirtualRanges()
	attacks := map[string]*Fragment{}
	for _, a := range []string{ipv4.String(), ipv6.String(), "240.0.0.0/8", "240.240.0.0/16", "240.240.1.4/30", "::ffff:240.240.0.0/112", "2001:2:0:8000::/49", "2001::/16"} {
		attacks["address "+a] = &Fragment{Services: []*Service{addressed("evil", "a", "203.0.113.9", a)}}
		attacks["subnet "+a] = &Fragment{VirtualServices: []*VirtualService{matching("evil", a)}}
	}
	for _, a := range []string{"240.240.1.5", "::ffff:240.240.1.5", "2001:2::5"} {
		own := addressed("evil", "a", a) // which the table of addresses refuses if another host has it
		attacks["subnet of its own "+a] = &Fragment{VirtualServices: []*VirtualService{matching("evil", a)}, Services: []*Service{own}}
		attacks["routes of its own "+a] = &Fragment{VirtualServices: []*VirtualService{routing("evil", a)}, Services: []*Service{own}}
		attacks["routes "+a] = &Fragment{VirtualServices: []*VirtualService{routing("evil", a)}}
	}
	for name, f := range attacks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{patterns("evil", "*.evil.example", "203.0.113.9")}, Fragments: []*Fragment{f}}
			for _, grants := range []*Grants{nil, NewGrants([]Grant{{Name: "240.0.0.0/4", Namespace: "evil"}, {Name: "2001::/16", Namespace: "evil"}})} {
				in.Grants = grants
				s := Merge(in)
				for _, vs := range s.VirtualServices {
					if s.VirtualServiceVisibleTo(vs, "third") {
						t.Errorf("others get its routes; conflicts: %v", s.Conflicts)
					}
				}
				if len(f.VirtualServices) == 0 && len(s.ServicesVisibleTo("third")) > 0 {
					t.Errorf("others see its service; conflicts: %v", s.Conflicts)
				}
				if len(s.Conflicts) == 0 || !s.Conflicts[0].Foreign {
					t.Errorf("conflicts: %v", s.Conflicts)
				}
				if got := seenFrom(s, "evil"); !slices.Contains(got, "evil") {
					t.Errorf("its own clients see what is of %v", got)
				}
			}
			in.Bindings[0] = &Binding{Namespaces: []string{"evil"}, Hosts: []Hostname{"*.evil.example", "0.0.0.0/0", "::/0"}}
			if s := Merge(in); len(s.Conflicts) > 0 || !slices.Equal(seenFrom(s, "third"), []string{"evil"}) {
				t.Errorf("a pattern does not give it the addresses: %v", s.Conflicts)
			}
		})
	}
}

// TestTenantRoutesNoVirtualAddressesOfItsNamespace: an unbound source declares a range in the tenant's namespace. The
// tenant routes it for everybody, and not the addresses in it that the control plane gives to hosts.
func TestTenantRoutesNoVirtualAddressesOfItsNamespace(t *testing.T) {
	t.Parallel()
	for subnet, want := range map[string]bool{"10.9.0.0/16": true, "0.0.0.0/0": false, "240.240.0.0/16": false, "::/0": false, "2001:2::/48": false} {
		vs := matching("tenant", subnet)
		in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{patterns("tenant", "*.tenant.example"), nil}, Fragments: []*Fragment{
			{VirtualServices: []*VirtualService{vs}}, {Services: []*Service{addressed("tenant", "ranges", subnet)}},
		}}
		in.Fragments[1].Services[0].ExportTo = Exports{"tenant", "third"}
		s := Merge(in)
		if got := routesSeenFrom(s, "third"); (len(got) > 0) != want || (len(s.Conflicts) == 0) != want {
			t.Errorf("%s: others see the routes of %v; conflicts: %v", subnet, got, s.Conflicts)
		}
		if got := routesSeenFrom(s, "tenant"); len(got) != 1 {
			t.Errorf("%s: its own clients see the routes of %v", subnet, got)
		}
		in.Bindings[0].Hosts = append(in.Bindings[0].Hosts, Hostname(subnet))
		if s := Merge(in); len(routesSeenFrom(s, "third")) != 1 || len(s.Conflicts) > 0 {
			t.Errorf("%s: a pattern does not give it the addresses: %v", subnet, s.Conflicts)
		}
	}
}
