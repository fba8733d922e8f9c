package mesh

import (
	"maps"
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestFirstOfTwoBoundSourcesWithOneKey: two sources are bound to one namespace, and both have
// routes with one key, for a host of somebody else. Those of the first source are in force, and
// so restricted; nothing is told of the others'.
func TestFirstOfTwoBoundSourcesWithOneKey(t *testing.T) {
	t.Parallel()
	hosted := testService("shop", "hosted", "")
	hosted.Hostname = "hosted.example"
	routes := func(path string) *VirtualService {
		vs := testVirtualService("ns2", "routes", path)
		vs.Origin = &Origin{Path: path}
		vs.Spec = &networking.VirtualService{Hosts: []string{"hosted.example"}}
		return vs
	}
	s := Merge(Input{
		Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"ns2"}}, {Namespaces: []string{"ns2"}}, nil},
		Fragments: []*Fragment{{VirtualServices: []*VirtualService{routes("a.yaml")}}, {VirtualServices: []*VirtualService{routes("b.yaml")}}, {Services: []*Service{hosted}}},
	})
	if got := seenFrom(s, "third"); !slices.Equal(got, []string{"shop"}) {
		t.Errorf("others see what is of %v", got)
	}
	told := 0
	for _, c := range s.Conflicts {
		if c.Foreign {
			told++
			if c.Dropped.Path != "a.yaml" {
				t.Errorf("a conflict of what is not in force: %s", c.Reason)
			}
		}
	}
	if told != 1 {
		t.Errorf("%d conflicts of a host, want 1", told)
	}
}

// TestRoutesWithoutHostsOpenNoOthers: two sources are bound to one namespace. One has routes without a host, for a
// server name of somebody else, and the other has routes with the same key for a host of somebody else: the first are in
// force, so that nobody gets the others.
func TestRoutesWithoutHostsOpenNoOthers(t *testing.T) {
	t.Parallel()
	without := byServerName("ns2", "hosted.example", "mesh")
	without.Spec.Hosts = nil
	others := routing("ns2", "hosted.example")
	others.Name = without.Name
	for _, bindings := range [][]*Binding{{{Namespaces: []string{"ns2"}}, {Namespaces: []string{"ns2"}}, patterns("shop", "hosted.example")}, {{Namespaces: []string{"ns2"}}, {Namespaces: []string{"ns2"}}, nil}} {
		in := Input{
			Fallback: testMeshConfig(), Bindings: bindings,
			Fragments: []*Fragment{{VirtualServices: []*VirtualService{without}}, {VirtualServices: []*VirtualService{others}}, {Services: []*Service{hosting("shop", "hosted.example")}}},
		}
		s := Merge(in)
		if got := s.VirtualServices; len(got) != 1 || len(got[0].Spec.Hosts) > 0 {
			t.Errorf("routes in force: %v; conflicts: %v", got, s.Conflicts)
		}
		in.Fragments[0] = &Fragment{}
		if s := Merge(in); slices.Contains(routesSeenFrom(s, "third"), "ns2") || len(s.Conflicts) == 0 {
			t.Errorf("others have the routes of %v; conflicts: %v", routesSeenFrom(s, "third"), s.Conflicts)
		}
	}
}

// TestServerNamesOfPrivateServices: routes by server name, from a bound source, do not reach
// clients in a namespace that has a service with that name to itself, and that is told.
func TestServerNamesOfPrivateServices(t *testing.T) {
	t.Parallel()
	private := testService("ns3", "own", "")
	private.Hostname, private.ExportTo = "own.example", Exports{"ns3"}
	routes := testVirtualService("ns1", "routes", "")
	routes.Spec = &networking.VirtualService{
		Hosts: []string{"mine.example"},
		Tls:   []*networking.TLSRoute{{Match: []*networking.TLSMatchAttributes{{SniHosts: []string{"own.example"}}}}},
	}
	s := Merge(Input{
		Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"ns1"}}, nil}, Grants: NewGrants([]Grant{{Name: "mine.example", Namespace: "ns1"}, {Name: "own.example", Namespace: "ns1"}}),
		Fragments: []*Fragment{{VirtualServices: []*VirtualService{routes}}, {Services: []*Service{private}}},
	})
	for ns, want := range map[string]bool{"ns1": true, "ns2": true, "ns3": false} {
		if got := slices.Contains(seenFrom(s, ns), "ns1"); got != want {
			t.Errorf("clients in %s have the routes: %v", ns, got)
		}
	}
	if len(s.Conflicts) != 1 || s.Conflicts[0].Host != "own.example" || !s.Conflicts[0].Foreign {
		t.Errorf("conflicts %+v", s.Conflicts)
	}
}

// TestWildcardLeavesWhatGatewaysGiveToOthers: of names that Gateways give, the narrowest counts. So a wildcard that is
// given to one namespace is for its own clients only where a name below is given to another: it would take the requests
// of others' clients for that name. A pattern gives it, and what the namespace had before an upgrade stays.
func TestWildcardLeavesWhatGatewaysGiveToOthers(t *testing.T) {
	t.Parallel()
	const wildcard = "*.corp.example"
	for name, c := range map[string]struct {
		gives    []string
		pattern  Hostname
		grants   []Grant
		recorded []Recorded
		own      bool // limited to its own namespace
	}{
		"alone":          {gives: []string{"shop/" + wildcard}},
		"below":          {gives: []string{"shop/" + wildcard, "bank/pay.corp.example"}, own: true},
		"wildcard_below": {gives: []string{"shop/" + wildcard, "bank/*.pay.corp.example"}, own: true},
		"own_below":      {gives: []string{"shop/" + wildcard, "shop/pay.corp.example"}},
		"shared":         {gives: []string{"shop/" + wildcard, "shop/pay.corp.example", "bank/pay.corp.example"}},
		"beside":         {gives: []string{"shop/" + wildcard, "bank/pay.other.example", "bank/*"}},
		"pattern":        {gives: []string{"shop/" + wildcard, "bank/pay.corp.example"}, pattern: wildcard},
		"granted":        {gives: []string{"shop/" + wildcard, "bank/pay.corp.example"}, grants: []Grant{{Name: wildcard, Namespace: "shop"}}},
		"upgraded":       {gives: []string{"shop/" + wildcard, "bank/pay.corp.example"}, recorded: []Recorded{{Name: wildcard, Namespace: "shop"}}},
		"granted_below":  {gives: []string{"shop/" + wildcard}, grants: []Grant{{Name: wildcard, Namespace: "shop"}, {Name: "pay.corp.example", Namespace: "bank"}}, own: true},
	} {
		shop := &Binding{Namespaces: []string{"shop"}}
		if c.pattern != "" {
			shop.Hosts = []Hostname{c.pattern}
		}
		in := Input{
			Fallback: testMeshConfig(), Bindings: []*Binding{nil, shop, {Namespaces: []string{"bank"}}},
			Fragments: []*Fragment{{Gateways: []*Gateway{giving(c.gives...)}}, {Services: []*Service{hosting("shop", wildcard)}, VirtualServices: []*VirtualService{routing("shop", wildcard)}}, {}},
		}
		grants := c.grants
		if c.recorded != nil {
			grants = InheritGrants(in, c.recorded)
		}
		in.Grants = NewGrants(grants)
		s := Merge(in)
		if got := onlyOwn(s.Services[0].ExportTo, nil, "shop"); got != c.own {
			t.Errorf("%s: the service is for its own namespace only: %v; conflicts: %v", name, got, s.Conflicts)
		}
		if got := onlyOwn(s.VirtualServices[0].ExportTo, nil, "shop"); got != c.own {
			t.Errorf("%s: the routes are for their own namespace only: %v; conflicts: %v", name, got, s.Conflicts)
		}
		if open := s.OpenGrants(); c.recorded != nil && len(open) != 1 {
			t.Errorf("%s: %v are to be moved into settings, want the wildcard", name, open)
		}
	}
}

// TestGatewayGivesWideNamesAtItselfAlone: "shop/*" of a Gateway gives the namespace hosts that nobody has at that Gateway,
// and at no other one, although that serves all hosts. Names that are not too wide are given everywhere.
func TestGatewayGivesWideNamesAtItselfAlone(t *testing.T) {
	t.Parallel()
	gateway := func(name string, hosts ...string) *Gateway {
		g := giving(hosts...)
		g.Name = name
		return g
	}
	for name, c := range map[string]struct {
		a, b     string // what the Gateways give
		gateways string // of the routes
		tls      bool
		grants   []Grant
		pattern  Hostname
		want     string // for others, by host
		upgraded bool   // grants are made
	}{
		"given_here":   {a: "shop/*", b: "*", gateways: "edge/a", want: "free.example:edge/a www.free.example:edge/a"},
		"not_there":    {a: "shop/*", b: "*", gateways: "edge/b"},
		"both":         {a: "shop/*", b: "*", gateways: "edge/a edge/b", want: "free.example:edge/a www.free.example:edge/a"},
		"tls":          {a: "shop/*", b: "*", gateways: "edge/a edge/b", tls: true, want: "free.example:edge/a www.free.example:edge/a"},
		"tls_there":    {a: "shop/*", b: "*", gateways: "edge/b", tls: true},
		"given_twice":  {a: "shop/*", b: "shop/*.example", gateways: "edge/a edge/b", want: "free.example:edge/a,edge/b www.free.example:edge/a,edge/b"},
		"of_another":   {a: "shop/*", b: "bank/*.example", gateways: "edge/a edge/b", want: "free.example:edge/a www.free.example:edge/a"},
		"some_of_them": {a: "shop/*", b: "shop/*.free.example", gateways: "edge/a edge/b", want: "free.example:edge/a www.free.example:edge/a,edge/b"},
		"some_by_tls":  {a: "shop/*", b: "shop/*.free.example", gateways: "edge/a edge/b", tls: true, want: "free.example:edge/a www.free.example:edge/a"},
		"narrow":       {a: "shop/*.free.example", b: "*", gateways: "edge/b", want: "www.free.example:edge/b"},
		"granted":      {a: "shop/*", b: "*", gateways: "edge/a edge/b", grants: []Grant{{Name: "*.example", Namespace: "shop", Gateways: true}}, want: "free.example:edge/a,edge/b www.free.example:edge/a,edge/b"},
		"pattern":      {a: "shop/*", b: "*", gateways: "edge/b", pattern: "*.example", want: "free.example:edge/b www.free.example:edge/b"},
		"upgraded":     {a: "shop/*", b: "*", gateways: "edge/a edge/b", upgraded: true, want: "free.example:edge/a,edge/b www.free.example:edge/a,edge/b"},
		"own_gateway":  {a: "shop/*", b: "*", gateways: "edge/a shop/own", want: "free.example:edge/a,shop/own www.free.example:edge/a,shop/own"},
	} {
		vs := routing("shop", "free.example")
		vs.Spec.Hosts, vs.Spec.Gateways = append(vs.Spec.Hosts, "www.free.example"), strings.Fields(c.gateways)
		if c.tls {
			vs.Spec.Tls = []*networking.TLSRoute{{Match: []*networking.TLSMatchAttributes{{SniHosts: []string{"free.example"}}}}}
		}
		in := Input{
			Fallback: testMeshConfig(), Bindings: []*Binding{nil, {Namespaces: []string{"shop"}, Hosts: []Hostname{}}, {Namespaces: []string{"bank"}}},
			Fragments: []*Fragment{{Gateways: []*Gateway{gateway("a", c.a), gateway("b", c.b)}}, routesOf(vs), {}}, Grants: NewGrants(c.grants),
		}
		if c.pattern != "" {
			in.Bindings[1].Hosts = []Hostname{c.pattern}
		}
		if c.upgraded {
			in.Grants = NewGrants(InheritGrants(in, nil))
		}
		s := Merge(in)
		at := map[string][]string{}
		own := map[string]int{}
		for _, x := range s.VirtualServices {
			for _, h := range x.Spec.Hosts {
				if onlyOwn(x.ExportTo, nil, "shop") {
					own[h] += len(x.Spec.Gateways)
				} else {
					at[h] = append(at[h], x.Spec.Gateways...)
				}
				own[h] += 0
			}
		}
		var got []string
		for _, h := range slices.Sorted(maps.Keys(at)) {
			slices.Sort(at[h])
			got = append(got, h+":"+strings.Join(at[h], ","))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: others have %q, want %q; conflicts: %v", name, got, c.want, s.Conflicts)
		}
		for h, n := range own { // its own gateways follow all routes, each once
			if n+len(at[h]) != len(vs.Spec.Gateways) {
				t.Errorf("%s: %s has %d Gateways for others and %d for its own namespace", name, h, len(at[h]), n)
			}
		}
		if len(own) != 2 {
			t.Errorf("%s: routes are for %v", name, own)
		}
		if open := s.OpenGrants(); c.upgraded && len(open) != 2 {
			t.Errorf("%s: %v are to be moved into settings, want two", name, open)
		}
		in.Prev = s
		in.Fragments = slices.Clone(in.Fragments)
		in.Fragments[0] = &Fragment{Gateways: []*Gateway{gateway("a", c.b), gateway("b", c.a)}}
		next := Merge(in)
		in.Prev = nil
		if fingerprint(t, Merge(in)) != fingerprint(t, next) {
			t.Errorf("%s: it depends on the snapshot before", name)
		}
	}
}
