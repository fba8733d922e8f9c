package mesh

import (
	"fmt"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

func addressed(namespace, name string, addresses ...string) *Service {
	svc := testService(namespace, name, "")
	svc.Addresses = addresses
	return svc
}

func withEndpoint(namespace, name string) *Service {
	svc := testService(namespace, name, "")
	svc.Inline = []*Workload{{Address: "10.96.0.5"}}
	return svc
}

func matching(namespace, subnet string) *VirtualService {
	vs := testVirtualService(namespace, "subnet", subnet)
	vs.Spec = &networking.VirtualService{
		Gateways: []string{"mesh"}, Hosts: []string{"own." + namespace + ".example"},
		Tcp: []*networking.TCPRoute{{Match: []*networking.L4MatchAttributes{{DestinationSubnets: []string{subnet}}}}},
	}
	return vs
}

func routing(namespace, host string) *VirtualService {
	vs := testVirtualService(namespace, "routes", host)
	vs.Spec = &networking.VirtualService{Gateways: []string{"mesh"}, Hosts: []string{host}}
	return vs
}

// seenFrom are the namespaces of what clients in a namespace see of a snapshot.
func seenFrom(s *Snapshot, namespace string) []string {
	var out []string
	for _, svc := range s.ServicesVisibleTo(namespace) {
		out = append(out, svc.Namespace)
	}
	for _, vs := range s.VirtualServices {
		if s.VirtualServiceVisibleTo(vs, namespace) {
			out = append(out, vs.Namespace)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestAddressesKeepTheirOwners has a tenant take the address of another namespace in
// every way there is to name one. Whoever comes first by name, and whether the owner is
// a tenant or not, the clients of a third namespace get nothing of it, and those of the
// tenant's own all.
func TestAddressesKeepTheirOwners(t *testing.T) {
	t.Parallel()
	workload := testWorkload("shop", "vm", "10.96.0.5", "orders")
	owners := map[string]*Fragment{
		"address":  {Services: []*Service{addressed("shop", "orders", "10.96.0.5")}},
		"range":    {Services: []*Service{addressed("shop", "orders", "10.96.0.4/31")}},
		"workload": {Services: []*Service{testService("shop", "orders", "orders")}, Workloads: []*Workload{workload}},
		"endpoint": {Services: []*Service{withEndpoint("shop", "orders")}},
	}
	attacks := map[string]func(ns string) *Fragment{
		"routes": func(ns string) *Fragment {
			return &Fragment{VirtualServices: []*VirtualService{routing(ns, "10.96.0.5")}}
		},
		"subnet": func(ns string) *Fragment {
			return &Fragment{VirtualServices: []*VirtualService{matching(ns, "10.96.0.0/16")}}
		},
		"subnet1": func(ns string) *Fragment {
			return &Fragment{VirtualServices: []*VirtualService{matching(ns, "10.96.0.5")}}
		},
		"host": func(ns string) *Fragment {
			svc := testService(ns, "a", "")
			svc.Hostname = "10.96.0.5"
			return &Fragment{Services: []*Service{svc}}
		},
	}
	for _, a := range []string{"10.96.0.5", "10.96.0.5/32", "::ffff:10.96.0.5", "10.96.0.0/16", "::ffff:10.96.0.0/112", "10.0.0.0/8", "0.0.0.0/0", "0.0.0.0/1", "::", "::ffff:0.0.0.0"} {
		attacks[a] = func(ns string) *Fragment {
			return &Fragment{Services: []*Service{addressed(ns, "a", "203.0.113.9", a)}}
		}
	}
	for owner, theirs := range owners {
		for attack, of := range attacks {
			for _, ns := range []string{"evil", "tenant"} {
				for _, binding := range []*Binding{patterns("shop", "*.shop.example", "10.96.0.4/31"), nil} {
					t.Run(fmt.Sprintf("%s-%s-%s-%t", owner, attack, ns, binding != nil), func(t *testing.T) {
						t.Parallel()
						in := Input{
							Fallback: testMeshConfig(), Bindings: []*Binding{patterns(ns, Hostname("*."+ns+".example")), binding}, Fragments: []*Fragment{{}, theirs},
						}
						in.Prev = Merge(in)
						in.Fragments = []*Fragment{of(ns), theirs}
						s := Merge(in)
						if got := seenFrom(s, "third"); !slices.Equal(got, []string{"shop"}) {
							t.Errorf("others see what is of %v; conflicts: %v", got, s.Conflicts)
						}
						if got := seenFrom(s, ns); !slices.Contains(got, ns) {
							t.Errorf("its own clients see what is of %v", got)
						}
						if len(s.Conflicts) != 1 || !s.Conflicts[0].Foreign || s.Conflicts[0].Key.Namespace != ns {
							t.Errorf("conflicts: %v", s.Conflicts)
						}
						in.Prev = nil
						if again := Merge(in); !slices.Equal(seenFrom(again, "third"), []string{"shop"}) {
							t.Errorf("after a restart others see what is of %v", seenFrom(again, "third"))
						}
					})
				}
			}
		}
	}
}

// patterns is the binding to a namespace with hosts.
func patterns(ns string, hosts ...Hostname) *Binding {
	return &Binding{Namespaces: []string{ns}, Hosts: hosts}
}

// TestEndpointDoesNotTakeAddress has a tenant name the address of another namespace's
// service as an endpoint of its own: that takes nothing from anybody, loses nothing
// to nobody, and needs no pattern.
func TestEndpointDoesNotTakeAddress(t *testing.T) {
	t.Parallel()
	s := Merge(Input{
		Fallback: testMeshConfig(), Bindings: []*Binding{patterns("evil", "*.evil.example"), patterns("shop", "*.shop.example", "10.96.0.0/16")},
		Fragments: []*Fragment{
			{Services: []*Service{withEndpoint("evil", "a")}, Workloads: []*Workload{testWorkload("evil", "w", "10.96.0.5", "a")}},
			{Services: []*Service{addressed("shop", "orders", "10.96.0.5")}},
		},
	})
	if len(s.Conflicts) > 0 || !slices.Equal(seenFrom(s, "third"), []string{"evil", "shop"}) {
		t.Errorf("conflicts: %v", s.Conflicts)
	}
}

// TestPrivateAddresses has a namespace use an address by itself: what a tenant declares
// for it reaches everybody but that namespace.
func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	for what, private := range map[string]*Service{"address": addressed("shop", "db", "10.96.0.5"), "endpoint": withEndpoint("shop", "db")} {
		for _, binding := range []*Binding{nil, {Namespaces: []string{"shop"}}} {
			private.ExportTo = Exports{"shop"}
			s := Merge(Input{
				Fallback: testMeshConfig(), Bindings: []*Binding{patterns("evil", "*.evil.example"), binding},
				Grants: NewGrants([]Grant{{Name: "10.96.0.4/30", Namespace: "evil"}}),
				Fragments: []*Fragment{
					{Services: []*Service{addressed("evil", "a", "10.96.0.5")}, VirtualServices: []*VirtualService{matching("evil", "10.96.0.4/30")}},
					{Services: []*Service{private}},
				},
			})
			for ns, want := range map[string][]string{"shop": {"shop"}, "third": {"evil"}, "evil": {"evil"}} {
				if got := seenFrom(s, ns); !slices.Equal(got, want) {
					t.Errorf("%s: %s sees what is of %v, conflicts %v", what, ns, got, s.Conflicts)
				}
			}
		}
	}
}

// TestPrivateAddressTakesNone: a service has an address by a grant, and the only namespace that it is for has the address
// to itself. So nobody else sees the service; the address stays its source's, also for routes of another of its
// namespaces. An endpoint of an unbound source there takes it from neither, and without the grant nobody gets the routes.
func TestPrivateAddressTakesNone(t *testing.T) {
	t.Parallel()
	private, service := withEndpoint("shop", "db"), addressed("ns2", "a", "10.96.0.5")
	private.ExportTo, service.ExportTo = Exports{"shop"}, Exports{"shop"}
	granted := NewGrants([]Grant{{Name: "10.96.0.5", Namespace: "ns2"}})
	for _, c := range []struct {
		grants  *Grants
		private []*Service
		want    map[string][]string
	}{
		{granted, []*Service{private}, map[string][]string{"shop": nil, "ns2": {"ns1"}, "third": {"ns1"}}},
		{granted, nil, map[string][]string{"shop": {"ns1"}, "ns2": {"ns1"}, "third": {"ns1"}}},
		{nil, []*Service{private}, map[string][]string{"shop": nil, "ns2": nil, "third": nil}},
	} {
		s := Merge(Input{
			Fallback: testMeshConfig(), Grants: c.grants,
			Bindings: []*Binding{{Namespaces: []string{"ns1", "ns2"}, Hosts: []Hostname{"own.ns1.example", "*.ns2.example"}}, {Namespaces: []string{"shop"}}, nil},
			Fragments: []*Fragment{
				{Services: []*Service{service}, VirtualServices: []*VirtualService{matching("ns1", "10.96.0.5")}},
				{Services: c.private},
				{Services: []*Service{withEndpoint("ns2", "b")}},
			},
		})
		for ns, want := range c.want {
			if got := routesSeenFrom(s, ns); !slices.Equal(got, want) {
				t.Errorf("granted %v, private %v: %s sees routes of %v, want %v; conflicts %v", c.grants != nil, len(c.private), ns, got, want, s.Conflicts)
			}
		}
	}
}

// TestAddressPatterns: a pattern says whose addresses are, whoever else has one, and nobody else has any.
func TestAddressPatterns(t *testing.T) {
	t.Parallel()
	in := Input{
		Fallback: testMeshConfig(),
		Bindings: []*Binding{patterns("evil", "*.evil.example"), patterns("shop", "*.shop.example", "10.96.0.0/16")},
		Fragments: []*Fragment{
			{Services: []*Service{addressed("evil", "a", "10.96.0.5")}, Workloads: []*Workload{testWorkload("evil", "w", "10.96.0.6", "a")}},
			{Services: []*Service{addressed("shop", "b", "10.96.0.5"), addressed("shop", "c", "10.96.0.0/24")}},
		},
	}
	for _, grants := range []*Grants{nil, NewGrants([]Grant{{Name: "10.96.0.5", Namespace: "evil"}})} { // settings come first
		in.Grants = grants
		if got := seenFrom(Merge(in), "third"); !slices.Equal(got, []string{"shop"}) {
			t.Errorf("others see what is of %v", got)
		}
	}
	in.Fragments[1], in.Bindings[1] = &Fragment{}, patterns("shop")
	for _, grants := range []*Grants{nil, NewGrants([]Grant{{Name: "10.96.0.0/24", Namespace: "evil"}})} {
		in.Grants = grants
		if got := seenFrom(Merge(in), "third"); (len(got) > 0) != (grants != nil) {
			t.Errorf("without a pattern of addresses others see what is of %v", got)
		}
	}
	for _, s := range []string{"10.96.0.5", "10.96.0.0/16", "fd00::/8", "FD00::1"} {
		if h, err := ParseHostPattern(s); err != nil || !isAddress(h) {
			t.Errorf("pattern %q: %q, %v", s, h, err)
		}
	}
}
