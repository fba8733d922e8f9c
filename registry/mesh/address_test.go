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
				for _, binding := range []*Binding{{Namespaces: []string{"shop"}}, nil} {
					t.Run(fmt.Sprintf("%s-%s-%s-%t", owner, attack, ns, binding != nil), func(t *testing.T) {
						t.Parallel()
						in := Input{
							Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{ns}}, binding}, Fragments: []*Fragment{{}, theirs},
						}
						in.Prev = Merge(in)
						in.Owners = (*Owners)(nil).With(recordOf(in.Prev, nil))
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
						in.Prev, in.Owners = nil, in.Owners.With(recordOf(s, in.Owners))
						if again := Merge(in); !slices.Equal(seenFrom(again, "third"), []string{"shop"}) {
							t.Errorf("after a restart others see what is of %v", seenFrom(again, "third"))
						}
					})
				}
			}
		}
	}
}

// TestEndpointDoesNotTakeAddress has a tenant name the address of another namespace's
// service as an endpoint of its own: that takes nothing from anybody, and loses nothing
// to nobody, on record or not.
func TestEndpointDoesNotTakeAddress(t *testing.T) {
	t.Parallel()
	for _, recorded := range []bool{false, true} {
		vip := addressed("shop", "orders", "10.96.0.5")
		in := Input{
			Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"evil"}}, {Namespaces: []string{"shop"}}},
			Fragments: []*Fragment{
				{Services: []*Service{withEndpoint("evil", "a")}, Workloads: []*Workload{testWorkload("evil", "w", "10.96.0.5", "a")}},
				{Services: []*Service{vip}},
			},
		}
		if recorded {
			in.Owners = (*Owners)(nil).With(map[Hostname]Owner{"10.96.0.5": {Namespace: "shop"}})
		}
		if s := Merge(in); len(s.Conflicts) > 0 || !slices.Equal(seenFrom(s, "third"), []string{"evil", "shop"}) {
			t.Errorf("recorded %t: %v", recorded, s.Conflicts)
		}
	}
}

// TestAddressOfAbsentWorkloadKeepsOwner: where a namespace had a workload, nobody else gets
// the address while it is away for a moment.
func TestAddressOfAbsentWorkloadKeepsOwner(t *testing.T) {
	t.Parallel()
	in := Input{
		Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"evil"}}, {Namespaces: []string{"shop"}}},
		Fragments: []*Fragment{{}, {Workloads: []*Workload{testWorkload("shop", "vm", "10.96.0.5", "orders")}}},
	}
	in.Prev = Merge(in)
	in.Owners = in.Owners.With(recordOf(in.Prev, in.Owners))
	in.Fragments = []*Fragment{{Services: []*Service{addressed("evil", "a", "10.96.0.5")}}, {}}
	if got := seenFrom(Merge(in), "third"); len(got) > 0 {
		t.Errorf("others see what is of %v", got)
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
				Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"evil"}}, binding},
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

// TestAddressPatterns: a pattern says whose addresses are, whoever was there first, and
// where bound sources have nothing else, they have no other addresses.
func TestAddressPatterns(t *testing.T) {
	t.Parallel()
	in := Input{
		Fallback: testMeshConfig(),
		Bindings: []*Binding{{Namespaces: []string{"evil"}}, {Namespaces: []string{"shop"}, Hosts: []Hostname{"10.96.0.0/16"}}},
		Fragments: []*Fragment{
			{Services: []*Service{addressed("evil", "a", "10.96.0.5")}, Workloads: []*Workload{testWorkload("evil", "w", "10.96.0.6", "a")}},
			{Services: []*Service{addressed("shop", "b", "10.96.0.5"), addressed("shop", "c", "10.96.0.0/24")}},
		},
		Owners: (*Owners)(nil).With(map[Hostname]Owner{"10.96.0.5": {Namespace: "evil"}}),
	}
	if got := seenFrom(Merge(in), "third"); !slices.Equal(got, []string{"shop"}) {
		t.Errorf("others see what is of %v", got)
	}
	in.Bindings = []*Binding{{Namespaces: []string{"evil"}, HostsOnly: true, Hosts: []Hostname{"*.evil.example"}}, {Namespaces: []string{"shop"}}}
	in.Fragments[1] = &Fragment{}
	if got := seenFrom(Merge(in), "third"); len(got) > 0 {
		t.Errorf("without a pattern of addresses others see what is of %v", got)
	}
	for _, s := range []string{"10.96.0.5", "10.96.0.0/16", "fd00::/8", "FD00::1"} {
		if h, err := ParseHostPattern(s); err != nil || !isAddress(h) {
			t.Errorf("pattern %q: %q, %v", s, h, err)
		}
	}
}

// TestOwnerOfAWildcardKeepsWhatIsBelow: who has a wildcard on record keeps the hosts
// below it, and a range the addresses, whoever comes later; what came before stays.
func TestOwnerOfAWildcardKeepsWhatIsBelow(t *testing.T) {
	t.Parallel()
	wild := testService("shop", "wild", "")
	wild.Hostname = "*.shop.internal"
	below := testService("evil", "x", "")
	below.Hostname = "x.shop.internal"
	narrower := testService("evil", "y", "")
	narrower.Hostname = "*.y.shop.internal"
	for _, c := range []struct {
		name          string
		first, second *Fragment
	}{
		{"host", &Fragment{Services: []*Service{wild}}, &Fragment{Services: []*Service{below}}},
		{"wildcard", &Fragment{Services: []*Service{wild}}, &Fragment{Services: []*Service{narrower}}},
		{"routes", &Fragment{Services: []*Service{wild}}, &Fragment{VirtualServices: []*VirtualService{routing("evil", "x.shop.internal")}}},
		{"address", &Fragment{Services: []*Service{addressed("shop", "net", "10.96.0.0/16")}}, &Fragment{Services: []*Service{addressed("evil", "a", "10.96.0.5")}}},
		{"workload", &Fragment{Services: []*Service{addressed("shop", "net", "10.96.0.0/16")}}, &Fragment{Workloads: []*Workload{testWorkload("evil", "w", "10.96.0.5", "x")}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := Input{
				Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"evil"}}, {Namespaces: []string{"shop"}}},
				Fragments: []*Fragment{{}, c.first},
			}
			in.Prev = Merge(in)
			in.Owners = in.Owners.With(recordOf(in.Prev, nil))
			in.Fragments = []*Fragment{c.second, c.first}
			for range 2 {
				s := Merge(in)
				if got := seenFrom(s, "third"); !slices.Equal(got, []string{"shop"}) {
					t.Errorf("others see what is of %v, conflicts %v", got, s.Conflicts)
				}
				in.Prev, in.Owners = nil, in.Owners.With(recordOf(s, in.Owners))
			}
			if c.name == "workload" {
				return
			}
			// The other way round: the narrower one was first, and stays.
			in.Prev, in.Owners = nil, nil
			in.Fragments = []*Fragment{c.second, {}}
			in.Prev = Merge(in)
			in.Owners = in.Owners.With(recordOf(in.Prev, nil))
			in.Fragments = []*Fragment{c.second, c.first}
			if got := seenFrom(Merge(in), "third"); !slices.Contains(got, "evil") || slices.Contains(got, "shop") && c.name != "routes" {
				t.Errorf("later, others see what is of %v", got)
			}
		})
	}
	// Of everything nobody keeps what is below, or the first to name it had the world.
	for _, h := range []Hostname{"*", "*.internal", "*internal"} {
		world := testService("evil", "world", "")
		world.Hostname = h
		in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"evil"}}}, Fragments: []*Fragment{{Services: []*Service{world}}}}
		if record := recordOf(Merge(in), nil); len(record) != 1 || record[":evil:80"].Namespace != "evil" {
			t.Errorf("on record: %v, want its HTTP alone", record)
		}
	}
}

// TestRangeOfEverythingBlocksNobody has a tenant declare a range that is nobody's: it
// keeps others from no routes.
func TestRangeOfEverythingBlocksNobody(t *testing.T) {
	t.Parallel()
	for _, wide := range []string{"0.0.0.0/0", "128.0.0.0/1", "192.0.0.0/7"} {
		for _, vs := range []*VirtualService{matching("shop", "198.51.100.0/24"), routing("shop", "198.51.100.7"), routing("shop", "192.0.2.7")} {
			s := Merge(Input{
				Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"evil"}}, {Namespaces: []string{"shop"}}},
				Fragments: []*Fragment{{Services: []*Service{addressed("evil", "a", wide)}}, {VirtualServices: []*VirtualService{vs}}},
			})
			if got := seenFrom(s, "third"); !slices.Equal(got, []string{"shop"}) {
				t.Errorf("%s: others see what is of %v, conflicts %v", wide, got, s.Conflicts)
			}
		}
	}
}
