package mesh

import (
	"slices"
	"testing"
)

// TestRestrictedObjectsStopNoRoutes has a tenant name a host below a wildcard that is
// granted to another namespace, by a service, by routes, and by a wildcard of its own:
// others see none of it, and the routes for the wildcard go on to hold for everybody.
func TestRestrictedObjectsStopNoRoutes(t *testing.T) {
	t.Parallel()
	named := func(namespace, host string) *Service {
		svc := testService(namespace, "s", "")
		svc.Hostname = Hostname(host)
		return svc
	}
	shops := map[string]*Fragment{
		"service": {Services: []*Service{named("shop", "*.shop.internal")}, VirtualServices: []*VirtualService{routing("shop", "*.shop.internal")}},
		"below":   {Services: []*Service{named("shop", "*.shop.internal")}, VirtualServices: []*VirtualService{routing("shop", "*.y.shop.internal")}},
		"host":    {Services: []*Service{named("shop", "*.shop.internal")}, VirtualServices: []*VirtualService{routing("shop", "x.y.shop.internal")}},
	}
	attacks := map[string]*Fragment{
		"service":          {Services: []*Service{named("evil", "x.y.shop.internal")}},
		"routes":           {VirtualServices: []*VirtualService{routing("evil", "x.y.shop.internal")}},
		"wildcard":         {Services: []*Service{named("evil", "*.y.shop.internal")}},
		"wildcard-routes":  {VirtualServices: []*VirtualService{routing("evil", "*.y.shop.internal")}},
		"narrow-wildcard":  {Services: []*Service{named("evil", "*.x.y.shop.internal")}},
		"wide-wildcard":    {Services: []*Service{named("evil", "*.internal")}},
		"narrow-wildcards": {VirtualServices: []*VirtualService{routing("evil", "*.x.y.shop.internal")}},
	}
	for what, shop := range shops {
		for how, evil := range attacks {
			t.Run(what+"-"+how, func(t *testing.T) {
				t.Parallel()
				in := Input{
					Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"evil"}}, {Namespaces: []string{"shop"}}},
					Grants:    NewGrants([]Grant{{Name: "*.shop.internal", Namespace: "shop"}}),
					Fragments: []*Fragment{{}, shop},
				}
				in.Prev = Merge(in)
				in.Fragments = []*Fragment{evil, shop}
				for range 2 {
					s := Merge(in)
					if got := routesSeenFrom(s, "third"); !slices.Equal(got, []string{"shop"}) {
						t.Errorf("others see the routes of %v: %v", got, s.Conflicts)
					}
					in.Prev = nil
				}
			})
		}
	}
}

// TestRoutesForAWildcardPassWhoHasAHostBelow: a namespace whose service is for nobody else,
// as the host is below another's wildcard, gets no routes for that wildcard.
func TestRoutesForAWildcardPassWhoHasAHostBelow(t *testing.T) {
	t.Parallel()
	wild, below := testService("evil", "s", ""), testService("shop", "s", "")
	wild.Hostname, below.Hostname = "*.corp.internal", "x.corp.internal"
	s := Merge(Input{
		Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"evil"}}, {Namespaces: []string{"shop"}}},
		Grants: NewGrants([]Grant{{Name: "*.corp.internal", Namespace: "evil"}}),
		Fragments: []*Fragment{
			{Services: []*Service{wild}, VirtualServices: []*VirtualService{routing("evil", "*.corp.internal")}}, {Services: []*Service{below}},
		},
	})
	if got := routesSeenFrom(s, "third"); !slices.Equal(got, []string{"evil"}) {
		t.Errorf("others see the routes of %v", got)
	}
	if got := routesSeenFrom(s, "shop"); len(got) > 0 {
		t.Errorf("the namespace with the host sees the routes of %v", got)
	}
}
