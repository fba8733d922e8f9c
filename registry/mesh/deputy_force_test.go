package mesh

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestDeputyOfAnotherSource: of a VirtualService that is not in force, because another source has one with its Key, no part
// is at gateways, and nothing is reported.
func TestDeputyOfAnotherSource(t *testing.T) {
	t.Parallel()
	routes := func(to string) *VirtualService {
		vs := testVirtualService("shop", "web", to)
		vs.Spec = &networking.VirtualService{
			Hosts: []string{"web.shop.internal"}, Gateways: []string{"mesh", "edge/shared"},
			Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: to}}}}},
		}
		return vs
	}
	bank := testService("bank", "bank", "")
	bank.Hostname = "bank.bank.internal"
	own := routes("web.shop.internal")
	in := Input{
		Fallback: testMeshConfig(),
		Fragments: []*Fragment{
			{VirtualServices: []*VirtualService{routes("bank.bank.internal")}}, {VirtualServices: []*VirtualService{own}}, {Services: []*Service{bank}},
		},
		Bindings: []*Binding{{Namespaces: []string{"shop"}, Hosts: []Hostname{"*.shop.internal"}, RoutesOnly: true}, nil, {Namespaces: []string{"bank"}, Hosts: []Hostname{"*.bank.internal"}}},
	}
	s := Merge(in)
	if !slices.Equal(s.VirtualServices, []*VirtualService{own}) {
		t.Errorf("there are %v, want the operator's alone", s.VirtualServices)
	}
	if i := slices.IndexFunc(s.Conflicts, func(c Conflict) bool { return c.Kind == ConflictRoute }); i >= 0 {
		t.Errorf("reported: %s", s.Conflicts[i].Reason)
	}
	in.Fragments, in.Bindings = in.Fragments[:1], in.Bindings[:1]
	in.Fragments, in.Bindings = append(in.Fragments, &Fragment{Services: []*Service{bank}}), append(in.Bindings, &Binding{Namespaces: []string{"bank"}, Hosts: []Hostname{"*.bank.internal"}})
	if s := Merge(in); len(s.VirtualServices) != 2 {
		t.Errorf("the tenant's own is not judged: %v", s.VirtualServices)
	}
}

// TestReplacedCatalogServiceIsATenants: where the ServiceEntry of a tenant is in force in the place of a service of the
// catalog, a route of another tenant leads to the tenant. The same holds for one of an operator that another object
// replaces.
func TestReplacedCatalogServiceIsATenants(t *testing.T) {
	t.Parallel()
	vs := testVirtualService("shop", "web", "")
	vs.Spec = &networking.VirtualService{
		Hosts: []string{"web.shop.internal"}, Gateways: []string{"edge/shared"},
		Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "bank.service.consul"}}}}},
	}
	catalog := testDerived("default", "bank", 80)
	for name, c := range map[string]struct {
		exports Exports // of the tenant's service
		third   bool
	}{
		"everywhere":        {nil, true},
		"at_the_gateways":   {Exports{"bank", "edge"}, true},
		"somewhere_else":    {Exports{"bank", "other"}, false},
		"names_the_gateway": {Exports{"edge", "shop"}, false},
	} {
		bank := testService("bank", "bank", "")
		bank.Hostname, bank.ExportTo = catalog.Hostname, c.exports
		s := Merge(Input{
			Fallback:  testMeshConfig(),
			Fragments: []*Fragment{{Services: []*Service{catalog}}, {VirtualServices: []*VirtualService{vs}}, {Services: []*Service{bank}}},
			Bindings: []*Binding{
				nil, {Namespaces: []string{"shop"}, Hosts: []Hostname{"*.shop.internal"}, RoutesOnly: true}, {Namespaces: []string{"bank"}, Hosts: []Hostname{catalog.Hostname}},
			},
		})
		refused := s.VirtualServices[0].Spec.GetHttp()[0].GetDirectResponse().GetStatus() == 503
		reported := slices.ContainsFunc(s.Conflicts, func(x Conflict) bool { return x.Kind == ConflictRoute && x.Refused })
		if refused != c.third || reported != c.third {
			t.Errorf("%s: refused %t, reported %t, want %t", name, refused, reported, c.third)
		}
	}
}
