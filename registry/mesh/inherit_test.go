package mesh

import (
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestUpgradeKeepsTheOrderAtPorts: a namespace that had a port by record keeps it before namespaces that would come
// first without. Where the order is the same, or an operator's services come first, nothing is granted, and a grant for
// HTTP does not put other protocols first.
func TestUpgradeKeepsTheOrderAtPorts(t *testing.T) {
	t.Parallel()
	service := func(ns string, protocol Protocol) *Service {
		s := testService(ns, "x", "x")
		s.Hostname = Hostname("x." + ns + ".svc.cluster.local")
		s.Ports = []Port{{Number: 5000, Name: "p", Protocol: protocol}}
		return s
	}
	for name, c := range map[string]struct {
		recorded []Recorded
		a, b     []*Service // those of the tenants
		patterns []Hostname // of the first one
		unbound  []*Service
		grants   []string
		behind   string // whose services come behind others
	}{
		"second_by_name":   {[]Recorded{{Name: ":5000", Namespace: "b"}}, []*Service{service("a", TCP)}, []*Service{service("b", TCP)}, nil, nil, []string{":5000"}, "a"},
		"first_by_name":    {[]Recorded{{Name: ":5000", Namespace: "a"}}, []*Service{service("a", TCP)}, []*Service{service("b", TCP)}, nil, nil, nil, "b"},
		"http_came_later":  {[]Recorded{{Name: ":5000", Namespace: "b"}}, []*Service{service("a", HTTP)}, []*Service{service("b", TCP)}, nil, nil, []string{":5000"}, "a"},
		"http_with_record": {[]Recorded{{Name: ":b:5000", Namespace: "b"}}, []*Service{service("a", TCP)}, []*Service{service("b", HTTP)}, []Hostname{"x.a.svc.cluster.local"}, nil, []string{":http:5000"}, "a"},
		"operator":         {[]Recorded{{Name: ":5000", Namespace: "b"}}, nil, []*Service{service("b", TCP)}, nil, []*Service{service("platform", TCP)}, nil, "b"},
		"http_only":        {[]Recorded{{Name: ":b:5000", Namespace: "b"}}, []*Service{service("a", HTTP)}, []*Service{service("b", TCP)}, nil, nil, nil, "b"},
		"no_service":       {[]Recorded{{Name: ":5000", Namespace: "b"}}, []*Service{service("a", TCP)}, nil, nil, nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := Input{
				Fallback: testMeshConfig(), Bindings: []*Binding{nil, {Namespaces: []string{"a"}, Hosts: c.patterns}, {Namespaces: []string{"b"}}},
				Fragments: []*Fragment{{Services: c.unbound}, {Services: c.a}, {Services: c.b}},
			}
			list := InheritGrants(in, c.recorded)
			var names []string
			for _, g := range list {
				names = append(names, string(g.Name))
			}
			if !slices.Equal(names, c.grants) {
				t.Fatalf("grants are %q, want %q", names, c.grants)
			}
			in.Grants = NewGrants(list)
			s := Merge(in)
			var behind []string
			for _, svc := range s.Services {
				if len(svc.Yields) > 0 {
					behind = append(behind, svc.Namespace)
				}
			}
			if strings.Join(behind, " ") != c.behind {
				t.Errorf("services of %q come behind others, want those of %q", behind, c.behind)
			}
			if open := s.OpenGrants(); len(open) != len(c.grants) {
				t.Errorf("open grants: %v", open)
			}
		})
	}
}

// TestOnePatternOfTwoDirectories: sources of one namespace may have one pattern, and routes of both are for everybody. A
// grant is open until each source that names the host has a pattern.
func TestOnePatternOfTwoDirectories(t *testing.T) {
	t.Parallel()
	hosted := testService("shop", "web", "")
	hosted.Hostname = "web.example"
	routes := testVirtualService("shop", "web", "")
	routes.Spec = &networking.VirtualService{Hosts: []string{"web.example"}}
	one, other := &Binding{Namespaces: []string{"shop"}, Hosts: []Hostname{"web.example"}, Source: "/srv/one"}, &Binding{Namespaces: []string{"shop"}, Source: "/srv/other"}
	merge := func(grants ...Grant) *Snapshot {
		return Merge(Input{
			Fallback: testMeshConfig(), Bindings: []*Binding{one, other}, Grants: NewGrants(grants),
			Fragments: []*Fragment{{Services: []*Service{hosted}}, {VirtualServices: []*VirtualService{routes}}},
		})
	}
	routed := func(s *Snapshot) bool {
		return slices.ContainsFunc(s.VirtualServices, func(vs *VirtualService) bool { return s.VirtualServiceVisibleTo(vs, "third") })
	}
	without := merge()
	if routed(without) {
		t.Error("others see routes of a source without a pattern")
	}
	if told := slices.ContainsFunc(without.Conflicts, func(c Conflict) bool {
		return strings.HasSuffix(c.Reason, "write --config-hosts '/srv/other=web.example'")
	}); !told {
		t.Errorf("nothing says what to write: %+v", without.Conflicts)
	}
	open := merge(Grant{Name: "web.example", Namespace: "shop"}).OpenGrants()
	if len(open) != 1 || !slices.Equal(open[0].Sources, []string{"/srv/other"}) || open[0].Overlaps != "" {
		t.Errorf("the source that routes the host should need a pattern, too: %+v", open)
	}
	other.Hosts = one.Hosts
	if p, q, overlap := Overlap(one, other); overlap {
		t.Errorf("%q and %q should be allowed for one namespace", p, q)
	}
	if !routed(merge()) {
		t.Error("others do not see routes of a source with the pattern")
	}
	if open := merge(Grant{Name: "web.example", Namespace: "shop"}).OpenGrants(); len(open) != 0 {
		t.Errorf("patterns of both give the host: %+v", open)
	}
	if _, _, overlap := Overlap(one, &Binding{Namespaces: []string{"pay"}, Hosts: []Hostname{"*.example"}}); !overlap {
		t.Error("patterns of different namespaces must not overlap")
	}
}

// TestUpgradeKeepsVirtualAddresses: a single address of the ranges in which the control plane gives addresses, which a
// tenant wrote into a service and had by record, stays; a range of them was nobody's before, and is not granted.
func TestUpgradeKeepsVirtualAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{"240.1.2.3": true, "2001:2::5": true, "240.1.0.0/16": false} {
		svc := testService("shop", "db", "")
		svc.Hostname, svc.Addresses = "db.shop.svc.cluster.local", []string{address}
		in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"shop"}}}, Fragments: []*Fragment{{Services: []*Service{svc}}}}
		if seen := seenFrom(Merge(in), "third"); len(seen) != 0 {
			t.Errorf("without a record, others see %v with %s", seen, address)
		}
		var recorded []Recorded
		if want {
			recorded = []Recorded{{Name: Hostname(address), Namespace: "shop"}}
		}
		in.Grants = NewGrants(InheritGrants(in, recorded))
		if seen := seenFrom(Merge(in), "third"); slices.Contains(seen, "shop") != want {
			t.Errorf("with the record, others see %v with %s, want %v", seen, address, want)
		}
	}
}

// TestGrantsAreNamesInAnyCase: people edit them.
func TestGrantsAreNamesInAnyCase(t *testing.T) {
	t.Parallel()
	got := NewGrants([]Grant{{Name: "Orders.Example.", Namespace: "shop"}, {Name: "FD00::1", Namespace: "shop"}}).All()
	want := []Grant{{Name: "fd00::1", Namespace: "shop"}, {Name: "orders.example", Namespace: "shop"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
