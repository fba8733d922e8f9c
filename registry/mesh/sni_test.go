package mesh

import (
	"fmt"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestServerNamesKeepTheirOwners has a tenant match a server name by a host of its own that
// is written in the same short way, and resolved in its namespace: it takes no
// connections to who has that name, as a host or as a short form, whoever it is.
func TestServerNamesKeepTheirOwners(t *testing.T) {
	t.Parallel()
	named := func(namespace, host string) *Service {
		svc := testService(namespace, "orders", "")
		svc.Hostname, svc.Ports = Hostname(host), []Port{{Name: "tls", Number: 443, Protocol: TLS}}
		return svc
	}
	for _, sni := range []string{"orders", "ORDERS", "orders.", "*rders", "orders.shop"} {
		vs := testVirtualService("evil", "routes", "")
		vs.Spec = &networking.VirtualService{
			Gateways: []string{"mesh"}, Hosts: []string{"orders.evil.svc.cluster.local"},
			Tls: []*networking.TLSRoute{{Match: []*networking.TLSMatchAttributes{{SniHosts: []string{sni}}}}},
		}
		evil := &Fragment{VirtualServices: []*VirtualService{vs}, Services: []*Service{named("evil", "orders.evil.svc.cluster.local")}}
		for _, theirs := range []string{"orders", "orders.shop.svc.cluster.local"} {
			if sni == "orders.shop" && theirs == "orders" || sni == "*rders" && theirs != "orders" {
				continue
			}
			for _, binding := range []*Binding{nil, {Namespaces: []string{"shop"}}} {
				if sni == "*rders" && binding != nil {
					continue // "orders" is a short form of the tenant's own, and so for nobody else
				}
				t.Run(fmt.Sprintf("%s-%s-%t", sni, theirs, binding != nil), func(t *testing.T) {
					t.Parallel()
					in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"evil"}}, binding}}
					in.Fragments = []*Fragment{evil, {Services: []*Service{named("shop", theirs)}}}
					s := Merge(in)
					if got := routesSeenFrom(s, "third"); len(got) > 0 {
						t.Errorf("others see the routes of %v", got)
					}
					if got := routesSeenFrom(s, "evil"); !slices.Equal(got, []string{"evil"}) {
						t.Errorf("its own clients see the routes of %v", got)
					}
				})
			}
		}
	}
}

// routesSeenFrom are the namespaces of the VirtualServices that clients in a namespace
// see.
func routesSeenFrom(s *Snapshot, namespace string) []string {
	var out []string
	for _, vs := range s.VirtualServices {
		if s.VirtualServiceVisibleTo(vs, namespace) {
			out = append(out, vs.Namespace)
		}
	}
	return out
}
