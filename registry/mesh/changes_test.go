package mesh

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestRestrictedServiceOwnsNothing has a tenant, whose names come first, declare a service
// for another's host, with a port: nobody sees it, and so another
// namespace is the first at the port, also once the tenant's host is its own no more by an edit.
func TestRestrictedServiceOwnsNothing(t *testing.T) {
	t.Parallel()
	evil := testService("evil", "a", "")
	evil.Hostname, evil.Ports = "own.evil.example", []Port{{Name: "p", Number: 3306, Protocol: MySQL}, {Name: "h", Number: 80, Protocol: HTTP}}
	restricted := *evil
	restricted.Hostname, restricted.Hash = "orders.shop.example", Hash{1}
	db := testService("shop", "db", "")
	db.Ports = []Port{{Name: "p", Number: 3306, Protocol: MySQL}, {Name: "t", Number: 80, Protocol: TCP}}
	shop := &Fragment{Services: []*Service{testService("shop", "orders", ""), db}}
	shop.Services[0].Ports[0].Number = 8080
	in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{patterns("evil", "*.evil.example"), patterns("shop", "*.shop.example")}}
	check := func(when string, want []uint32) {
		t.Helper()
		s := Merge(in)
		if got := seenFrom(s, "third"); !slices.Equal(got, []string{"shop"}) && want == nil {
			t.Errorf("%s, others see what is of %v; conflicts: %v", when, got, s.Conflicts)
		}
		for _, svc := range s.Services {
			if svc.Name == "db" && !slices.Equal(svc.Yields, want) {
				t.Errorf("%s, the other's service yields at %v, want %v", when, svc.Yields, want)
			}
		}
		in.Prev = s
	}
	in.Fragments = []*Fragment{{Services: []*Service{&restricted}}, shop}
	check("at once", nil)
	in.Prev, in.Fragments = nil, []*Fragment{{Services: []*Service{evil}}, shop}
	check("with a host of its own", []uint32{80, 3306})
	in.Fragments = []*Fragment{{Services: []*Service{&restricted}}, shop}
	check("after an edit", nil)
	in.Prev = nil
	check("after a restart", nil)
}

// TestUnseenServiceOwnsNoPort: a service whose address is private in all other namespaces that should see it is seen by
// none of them, and comes first at no port, also once that changes by another tenant's edit.
func TestUnseenServiceOwnsNoPort(t *testing.T) {
	t.Parallel()
	first, second, private := addressed("a", "first", "10.8.0.0/24"), testService("b", "second", ""), addressed("shop", "private", "10.8.0.1")
	first.Hostname, second.Hostname = "first.a.example", "second.b.example"
	first.Ports = []Port{{Name: "p", Number: 3306, Protocol: MySQL}, {Name: "h", Number: 80, Protocol: HTTP}}
	second.Ports = []Port{{Name: "p", Number: 3306, Protocol: MySQL}, {Name: "t", Number: 80, Protocol: TCP}}
	first.ExportTo, private.ExportTo = Exports{"shop"}, Exports{"shop"}
	wider := *first
	wider.ExportTo, wider.Hash = Exports{"pay", "shop"}, Hash{1}
	in := Input{
		Fallback: testMeshConfig(), Bindings: []*Binding{patterns("a", "*.a.example"), patterns("b", "*.b.example"), patterns("shop")},
		Grants: NewGrants([]Grant{{Name: "10.8.0.0/24", Namespace: "a"}}),
	}
	both := []uint32{80, 3306}
	for _, step := range []struct {
		when  string
		first *Service
		shop  []*Service
		want  []uint32
	}{
		{"at once", first, []*Service{private}, nil},
		{"without the private service", first, nil, both},
		{"with it again", first, []*Service{private}, nil},
		{"seen by another namespace", &wider, []*Service{private}, both},
		{"not seen again", first, []*Service{private}, nil},
	} {
		in.Fragments = []*Fragment{{Services: []*Service{step.first}}, {Services: []*Service{second}}, {Services: step.shop}}
		s := Merge(in)
		in.Prev = nil
		if anew := Merge(in); fingerprint(t, s) != fingerprint(t, anew) {
			t.Errorf("%s, the snapshot differs from one built from nothing: %s", step.when, difference(s, anew))
		}
		in.Prev = s
		for _, svc := range s.Services {
			if svc.Name == "second" && !slices.Equal(svc.Yields, step.want) {
				t.Errorf("%s, the other's service yields at %v, want %v", step.when, svc.Yields, step.want)
			}
		}
	}
}

// TestAddressOfALostHostIsDecidedAgain has services come and go, so that one loses its host
// to a source for the whole mesh, and its address and its other names to whoever is next.
func TestAddressOfALostHostIsDecidedAgain(t *testing.T) {
	t.Parallel()
	first, second := addressed("ns1", "a", "10.96.0.9"), addressed("ns2", "b", "10.96.0.9")
	first.Hostname, second.Hostname = "h.ns1.svc.cluster.local", "own.ns2.example"
	alias, next := addressed("ns2", "c", "10.96.0.10"), addressed("ns3", "d", "10.96.0.10")
	alias.Hostname, next.Hostname = "h.ns1", "own.ns3.example"
	taken := testService("shop", "h", "")
	taken.Hostname = first.Hostname
	all := []*Service{first, second, alias, next, taken}
	source := []int{0, 1, 1, 2, 3}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 11))
		in := Input{
			Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"ns1"}}, {Namespaces: []string{"ns2"}}, {Namespaces: []string{"ns3"}}, nil},
			Grants: NewGrants([]Grant{{Name: "own.ns2.example", Namespace: "ns2"}, {Name: "own.ns3.example", Namespace: "ns3"}, {Name: "h.ns1", Namespace: "ns2"}, {Name: "10.96.0.9", Namespace: "ns1"}, {Name: "10.96.0.9", Namespace: "ns2"}, {Name: "10.96.0.10", Namespace: "ns3"}}),
		}
		there := uint(rng.IntN(1 << len(all)))
		seen := map[string]bool{}
		for step := range 30 {
			in.Fragments = []*Fragment{{}, {}, {}, {}}
			for i, svc := range all {
				if there&(1<<i) != 0 {
					f := in.Fragments[source[i]]
					f.Services = append(f.Services, svc)
				}
			}
			s := Merge(in)
			in.Prev = nil
			if anew := Merge(in); fingerprint(t, s) != fingerprint(t, anew) {
				t.Fatalf("seed %d, step %d: the snapshot differs from one built from nothing: %s", seed, step, difference(s, anew))
			}
			in.Prev = s
			seen[fmt.Sprint(seenFrom(s, "third"))] = true
			there ^= 1 << rng.IntN(len(all))
		}
		if len(seen) < 3 {
			t.Errorf("seed %d: others see only %v", seed, seen)
		}
	}
}

// TestChangesAreAsFromNothing changes one object of small meshes in ways that random meshes
// seldom meet, and compares the snapshot with one that is built from nothing.
func TestChangesAreAsFromNothing(t *testing.T) {
	t.Parallel()
	tenants := []*Binding{patterns("ns1", "*.ns1.example", "10.7.0.0/16"), patterns("ns2", "*.ns2.example"), nil}
	declared := addressed("ns1", "a", "10.9.7.7")
	at := func(line int, labels map[string]string) []*Fragment {
		w := testWorkload("shop", "w", "10.9.7.7", "x")
		w.Labels, w.Origin = labels, &Origin{Path: "w.yaml", Line: line}
		return []*Fragment{{Services: []*Service{declared}}, {}, {Workloads: []*Workload{w}}}
	}
	moved, unwritten := at(1, nil), at(1, nil)
	moved[2].Workloads[0].Address, unwritten[2].Workloads[0].Origin = "10.9.7.8", nil
	wild, routes := addressed("ns1", "wild", "10.9.0.0/16"), testVirtualService("ns2", "routes", "")
	wild.Hostname = "*.x.example"
	routes.Spec = &networking.VirtualService{Hosts: []string{"e.x.example"}}
	below := func(services ...*Service) []*Fragment {
		return []*Fragment{{Services: []*Service{wild}}, {VirtualServices: []*VirtualService{routes}}, {Services: services}}
	}
	other := testDerived("shop", "other", 80)
	other.Hostname = "other.x.example"
	first, second, taken := testService("ns1", "first", ""), testService("ns2", "second", ""), testService("shop", "taken", "")
	first.Ports = []Port{{Name: "db", Number: 3306, Protocol: TCP}, {Name: "tcp", Number: 9000, Protocol: TCP}}
	second.Ports, taken.Ports, taken.Hostname = first.Ports[1:], nil, first.Hostname
	ports := func(services ...*Service) []*Fragment {
		return []*Fragment{{Services: []*Service{first}}, {Services: []*Service{second}}, {Services: services}}
	}
	machine, wide := testWorkload("ns1", "machine", "10.8.7.7", "x"), addressed("shop", "wide", "10.8.0.0/16")
	in8 := addressed("ns1", "in8", "10.8.7.8")
	covered := func(services ...*Service) []*Fragment {
		return []*Fragment{{Services: []*Service{in8}, Workloads: []*Workload{machine}}, {}, {Services: services}}
	}
	inlined := testService("ns1", "inlined", "")
	inlined.Resolution, inlined.Inline = ResolutionStatic, []*Workload{{Address: "10.8.7.9"}}
	over := func(services ...*Service) []*Fragment {
		return []*Fragment{{Services: []*Service{in8, inlined}}, {}, {Services: services}}
	}
	single, all := addressed("ns1", "single", "10.7.0.1"), testService("shop", "all", "")
	single.Hostname, all.Hostname = "e.w.example", "*.w.example"
	under := func(services ...*Service) []*Fragment {
		return []*Fragment{{Services: []*Service{single}}, {}, {Services: services}}
	}
	for1, some := testVirtualService("ns1", "for1", ""), testService("shop", "some", "")
	for1.Spec, some.Hostname = &networking.VirtualService{Hosts: []string{"e.v.example"}}, "*.v.example"
	routed := func(services ...*Service) []*Fragment {
		return []*Fragment{{VirtualServices: []*VirtualService{for1}}, {}, {Services: services}}
	}
	web, database := testService("ns1", "web", ""), testService("shop", "database", "")
	web.Ports, database.Ports = []Port{{Name: "http", Number: 9000, Protocol: HTTP}}, first.Ports[1:]
	webs := func(services ...*Service) []*Fragment {
		return []*Fragment{{Services: []*Service{first, web}}, {}, {Services: services}}
	}
	of0, of2 := testVirtualService("ns1", "routes", ""), testVirtualService("ns1", "routes", "")
	of0.Spec, of2.Spec = &networking.VirtualService{Hosts: []string{"taken.u.example"}}, &networking.VirtualService{Hosts: []string{"other.u.example"}}
	hosted := testService("shop", "hosted", "")
	hosted.Hostname = "taken.u.example"
	overriding := func(routes ...*VirtualService) []*Fragment {
		return []*Fragment{{Services: []*Service{first}, VirtualServices: []*VirtualService{of0}}, {}, {Services: []*Service{hosted}, VirtualServices: routes}}
	}
	ours, theirs := testVirtualService("ns1", "ours", ""), testVirtualService("shop", "theirs", "")
	ours.Spec, theirs.Spec = &networking.VirtualService{Hosts: []string{string(web.Hostname)}}, &networking.VirtualService{Hosts: []string{string(web.Hostname)}}
	behind := func(routes ...*VirtualService) []*Fragment {
		return []*Fragment{{Services: []*Service{first, web}, VirtualServices: []*VirtualService{ours}}, {}, {VirtualServices: routes}}
	}
	grants := NewGrants([]Grant{
		{Name: "*.x.example", Namespace: "ns1"}, {Name: "10.9.0.0/16", Namespace: "ns1"}, {Name: "10.8.0.0/16", Namespace: "ns1"}, {Name: "e.w.example", Namespace: "ns1"}, {Name: "e.v.example", Namespace: "ns1"},
	})
	for name, c := range map[string]struct{ before, after []*Fragment }{
		"line_of_a_workload":       {at(1, nil), at(2, nil)},
		"address_of_a_workload":    {at(1, nil), moved},
		"workload_without_a_line":  {at(1, nil), unwritten},
		"workload_gets_a_line":     {unwritten, at(1, nil)},
		"workload_is_an_instance":  {at(1, nil), at(1, map[string]string{LabelConsulService: "web"})},
		"range_of_others_goes":     {covered(wide), covered()},
		"range_over_endpoints":     {over(wide), over()},
		"wildcard_of_others_goes":  {under(all), under()},
		"wildcard_over_routes":     {routed(some), routed()},
		"tcp_at_a_port_of_http":    {webs(), webs(database)},
		"tcp_goes_from_a_port":     {webs(database), webs()},
		"routes_of_others_come":    {behind(), behind(theirs)},
		"routes_of_others_go":      {behind(theirs), behind()},
		"routes_with_its_key_go":   {overriding(of2), overriding()},
		"routes_with_its_key_come": {overriding(), overriding(of2)},
		"first_at_a_port_is_out":   {ports(), ports(taken)},
		"wildcard_loses_its_host":  {below(), below(other)},
		"wildcard_gets_it_back":    {below(other), below()},
		"unrelated_host_of_others": {below(), below(testDerived("shop", "web", 80))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := Input{Fallback: testMeshConfig(), Bindings: tenants, Grants: grants, Fragments: c.before}
			prev := Merge(in)
			in.Prev = prev
			in.Fragments = c.after
			s := Merge(in)
			in.Prev = nil
			anew := Merge(in)
			if fingerprint(t, s) != fingerprint(t, anew) {
				t.Errorf("it differs:\n%s", difference(anew, s))
			}
			if fingerprint(t, prev) == fingerprint(t, anew) {
				t.Error("the change makes no difference")
			}
		})
	}
}
