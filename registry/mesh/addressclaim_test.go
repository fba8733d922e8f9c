package mesh

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestRestrictedServiceOwnsNothing has a tenant, whose names come first, declare a service
// for another's host, with an address and a port: nobody sees it, and so another
// namespace has the address, and is the first at the port, before and after this is on
// record, also once the tenant's host is its own no more by an edit.
func TestRestrictedServiceOwnsNothing(t *testing.T) {
	t.Parallel()
	evil := addressed("evil", "a", "10.96.0.9")
	evil.Hostname, evil.Ports = "own.evil.example", []Port{{Name: "p", Number: 3306, Protocol: MySQL}, {Name: "h", Number: 80, Protocol: HTTP}}
	restricted := *evil
	restricted.Hostname, restricted.Hash = "orders.shop.example", Hash{1}
	db := addressed("shop", "db", "10.96.0.9")
	db.Ports = []Port{{Name: "p", Number: 3306, Protocol: MySQL}, {Name: "t", Number: 80, Protocol: TCP}}
	shop := &Fragment{Services: []*Service{testService("shop", "orders", ""), db}}
	shop.Services[0].Ports[0].Number = 8080
	in := Input{
		Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"evil"}}, {Namespaces: []string{"shop"}}},
		Owners: (*Owners)(nil).With(map[Hostname]Owner{"orders.shop.example": {Namespace: "shop"}}),
	}
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
	in.Prev = Merge(in)
	in.Fragments = []*Fragment{{Services: []*Service{&restricted}}, shop}
	check("after an edit", nil)
	in.Owners = in.Owners.With(recordOf(in.Prev, in.Owners))
	if owner, _ := in.Owners.Of("10.96.0.9"); owner.Namespace != "shop" {
		t.Errorf("the address is on record for %q", owner.Namespace)
	}
	if owner, _ := in.Owners.Of(":3306"); owner.Namespace != "shop" {
		t.Errorf("the port is on record for %q", owner.Namespace)
	}
	check("on record", nil)
	in.Fragments = []*Fragment{{Services: []*Service{evil}}, shop}
	check("after the edit is undone", nil)
	in.Prev = nil
	check("after a restart", nil)
}

// TestCatalogInstanceDoesNotTakeRecordedAddress has Consul register an instance at an
// address that a tenant's service has, as the agent of the tenant's own machine does: who
// had the address first keeps it, the tenant or the instance, also when the instance was
// away for a moment, and after a restart.
func TestCatalogInstanceDoesNotTakeRecordedAddress(t *testing.T) {
	t.Parallel()
	own := addressed("shop", "orders", "10.96.0.5")
	own.Inline = []*Workload{{Address: "10.96.0.5"}}
	static := withEndpoint("shop", "orders")
	wide := addressed("shop", "orders", "10.96.0.0/24")
	instance := &Fragment{Services: []*Service{testDerived("default", "orders", 8080)}, Workloads: []*Workload{testInstance("default", "10.96.0.5", "orders")}}
	binding := []*Binding{{Namespaces: []string{"shop"}}, nil}
	for name, svc := range map[string]*Service{"address": own, "range": wide} {
		tenant := &Fragment{Services: []*Service{svc}}
		in := Input{Fallback: testMeshConfig(), Bindings: binding, Fragments: []*Fragment{tenant, {}}}
		step := func(when string, fragments []*Fragment, sees bool) {
			t.Helper()
			in.Fragments = fragments
			s := Merge(in)
			if got := slices.Contains(seenFrom(s, "third"), "shop"); got != sees {
				t.Errorf("%s: %s, others see the tenant's service: %t, want %t; %v", name, when, got, sees, s.Conflicts)
			}
			in.Prev, in.Owners = s, in.Owners.With(recordOf(s, in.Owners))
		}
		step("alone", []*Fragment{tenant, {}}, true)
		step("with the instance", []*Fragment{tenant, instance}, true)
		in.Prev = nil
		step("after a restart", []*Fragment{tenant, instance}, true)
		in.Prev, in.Owners = nil, nil
		step("the instance alone", []*Fragment{{}, instance}, false)
		record := in.Owners
		step("with the tenant", []*Fragment{tenant, instance}, false)
		in.Owners = record // which rests for days
		step("while the instance is away", []*Fragment{tenant, {}}, false)
		in.Owners = record
		step("when it is back", []*Fragment{tenant, instance}, false)
		in.Prev, in.Owners = nil, nil
		step("both, with no record", []*Fragment{tenant, instance}, false)
	}
	for _, record := range []*Owners{nil, (*Owners)(nil).With(map[Hostname]Owner{"10.96.0.5": {Namespace: "default"}})} {
		s := Merge(Input{Fallback: testMeshConfig(), Bindings: binding, Owners: record, Fragments: []*Fragment{{Services: []*Service{static}}, instance}})
		if got := seenFrom(s, "third"); len(s.Conflicts) > 0 || !slices.Contains(got, "shop") {
			t.Errorf("a STATIC endpoint where an instance is: others see what is of %v; %v", got, s.Conflicts)
		}
	}
	// A tenant's workload at the address of an instance puts nothing on record for it.
	evil := &Fragment{Workloads: []*Workload{testWorkload("shop", "w", "10.96.0.5", "x")}}
	s := Merge(Input{Fallback: testMeshConfig(), Bindings: binding, Fragments: []*Fragment{evil, instance}})
	if owner := recordOf(s, nil)["10.96.0.5"]; owner.Namespace != "default" {
		t.Errorf("the address of an instance is on record for %q", owner.Namespace)
	}
}

// TestAddressOfALostHostIsDecidedAgain has services come and go, so that one loses its host
// to a source for the whole mesh, and its address and its other names to whoever is next.
func TestAddressOfALostHostIsDecidedAgain(t *testing.T) {
	t.Parallel()
	first, second := addressed("ns1", "a", "10.96.0.9"), addressed("ns2", "b", "10.96.0.9")
	first.Hostname, second.Hostname = "h.ns1.svc.cluster.local", "own.ns2.example"
	alias := testService("ns2", "c", "")
	alias.Hostname = "h.ns1"
	taken := testService("shop", "h", "")
	taken.Hostname = first.Hostname
	all := []*Service{first, second, alias, taken}
	source := []int{0, 1, 1, 2}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 11))
		in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"ns1"}}, {Namespaces: []string{"ns2"}}, nil}}
		there := uint(rng.IntN(16))
		seen := map[string]bool{}
		for step := range 30 {
			in.Fragments = []*Fragment{{}, {}, {}}
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
