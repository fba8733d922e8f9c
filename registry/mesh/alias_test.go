package mesh

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestAliasesBelongToOwnerOfHost has a tenant name a service of another namespace by
// every name that a client could write, in routes and in a service, with and
// without a record, and whichever comes first by name.
func TestAliasesBelongToOwnerOfHost(t *testing.T) {
	t.Parallel()
	theirs := testService("shop", "orders", "orders")
	theirs.Hostname, theirs.Addresses = "orders.shop.svc.cluster.local", []string{"10.96.0.5", "fd00::5"}
	names := append(aliasesOf(theirs), theirs.Hostname, "FD00::5")
	if len(names) < 7 {
		t.Fatalf("the names of a service are %v", names)
	}
	for _, name := range names {
		for _, dot := range []string{"", "."} {
			for _, ns := range []string{"evil", "tenant"} {
				t.Run(string(name)+dot+"-"+ns, func(t *testing.T) {
					t.Parallel()
					svc := testService(ns, "x", "x")
					svc.Hostname = name + Hostname(dot)
					vs := testVirtualService(ns, "x", "x")
					vs.Spec = &networking.VirtualService{Gateways: []string{"mesh"}, Hosts: []string{string(svc.Hostname)}}
					for what, f := range map[string]*Fragment{
						"service": {Services: []*Service{svc}}, "routes": {VirtualServices: []*VirtualService{vs}},
						"both": {Services: []*Service{svc}, VirtualServices: []*VirtualService{vs}},
					} {
						for _, binding := range []*Binding{patterns("shop", "10.96.0.5", "fd00::5"), nil} {
							in := Input{
								Fallback: testMeshConfig(), Fragments: []*Fragment{{Source: "shop", Services: []*Service{theirs}}, f},
								Bindings: []*Binding{binding, {Namespaces: []string{ns}}},
							}
							checkOwnNamespaceAlone(t, what, ns, Merge(in))
							// The other way round: the tenant was there first.
							in.Fragments = []*Fragment{{}, f}
							in.Prev = Merge(in)
							in.Fragments = []*Fragment{{Source: "shop", Services: []*Service{theirs}}, f}
							checkOwnNamespaceAlone(t, what+" first", ns, Merge(in))
						}
					}
				})
			}
		}
	}
}

func checkOwnNamespaceAlone(t *testing.T, what, ns string, s *Snapshot) {
	t.Helper()
	for _, svc := range s.Services {
		if all := slices.Equal(svc.ExportTo, Exports{ns}); all != (svc.Namespace == ns) {
			t.Errorf("%s: service %s of %s is exported to %v", what, svc.Hostname, svc.Namespace, svc.ExportTo)
		}
	}
	for _, vs := range s.VirtualServices {
		if !slices.Equal(vs.ExportTo, Exports{ns}) {
			t.Errorf("%s: routes of %v are exported to %v", what, vs.Spec.Hosts, vs.ExportTo)
		}
	}
}

// TestRoutesBelowTheOwnWildcard has a tenant route a host below another's wildcard:
// that takes no route from the wildcard's namespace, whichever comes first by name.
func TestRoutesBelowTheOwnWildcard(t *testing.T) {
	t.Parallel()
	for _, tenant := range []string{"evil", "tenant"} {
		wild := testService("shop", "wild", "wild")
		wild.Hostname = "*.wild.internal"
		routes := func(ns string) *VirtualService {
			vs := testVirtualService(ns, "pay", "pay")
			vs.Spec = &networking.VirtualService{Gateways: []string{"mesh"}, Hosts: []string{"pay.wild.internal"}}
			return vs
		}
		s := Merge(Input{
			Fallback: testMeshConfig(),
			Fragments: []*Fragment{
				{Services: []*Service{wild}, VirtualServices: []*VirtualService{routes("shop")}}, {VirtualServices: []*VirtualService{routes(tenant)}},
			},
			Bindings: []*Binding{patterns("shop", "*.wild.internal"), {Namespaces: []string{tenant}}},
		})
		for _, vs := range s.VirtualServices {
			if own := slices.Equal(vs.ExportTo, Exports{vs.Namespace}); own != (vs.Namespace == tenant) {
				t.Errorf("beside %s the routes of %s are exported to %v", tenant, vs.Namespace, vs.ExportTo)
			}
		}
	}
}
