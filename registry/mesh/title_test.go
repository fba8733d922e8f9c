package mesh

import (
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// hosting is a service of a namespace for a host.
func hosting(namespace, host string) *Service {
	svc := testService(namespace, "s-"+host, "")
	svc.Hostname = Hostname(host)
	return svc
}

// atGateways are routes of a namespace for a host at a shared gateway, and for others besides.
func atGateways(namespace, host string, others ...string) *VirtualService {
	vs := routing(namespace, host)
	vs.Spec.Gateways = append([]string{"edge/gateway"}, others...)
	return vs
}

// byServerName are routes of a namespace for its own host, by a server name.
func byServerName(namespace, sni string, gateways ...string) *VirtualService {
	vs := routing(namespace, "own."+namespace+".example")
	vs.Spec.Gateways = gateways
	vs.Spec.Tls = []*networking.TLSRoute{{Match: []*networking.TLSMatchAttributes{{SniHosts: []string{sni}}}}}
	return vs
}

// giving is a Gateway that gives hosts to namespaces.
func giving(hosts ...string) *Gateway {
	return &Gateway{Meta: testMeta(KindGateway, "edge", "gateway", ""), Spec: &networking.Gateway{Servers: []*networking.Server{{Hosts: hosts}}}}
}

func privately(vs *VirtualService) *VirtualService {
	vs.ExportTo = Exports{vs.Namespace}
	return vs
}

func services(list ...*Service) *Fragment {
	f := &Fragment{Services: list}
	slices.SortFunc(f.Services, compareServiceKeys)
	return f
}

func routesOf(list ...*VirtualService) *Fragment { return &Fragment{VirtualServices: list} }

// TestInheritGrants says which names the first start after an upgrade gives to namespaces. "shop" and "evil" are bound,
// and a third source speaks for everybody.
func TestInheritGrants(t *testing.T) {
	t.Parallel()
	record := func(name, namespace string) Recorded { return Recorded{Name: Hostname(name), Namespace: namespace} }
	routed := func(name, namespace string) Recorded { return Recorded{Hostname(name), namespace, true} }
	grant := func(name, namespace string) Grant { return Grant{Name: Hostname(name), Namespace: namespace} }
	type input struct {
		shop, evil, all *Fragment
		patterns        []Hostname // of shop
		others          []Hostname // patterns of evil
		recorded        []Recorded
	}
	for name, c := range map[string]struct {
		in   input
		want []Grant
	}{
		"nothing":          {input{}, nil},
		"host":             {input{recorded: []Recorded{record("a.example", "shop")}}, []Grant{grant("a.example", "shop")}},
		"of_nobody_bound":  {input{recorded: []Recorded{record("a.example", "gone")}}, nil},
		"port":             {input{recorded: []Recorded{record(":80", "shop"), record("", "shop")}}, nil},
		"own_pattern":      {input{patterns: []Hostname{"*.example"}, recorded: []Recorded{record("a.example", "shop")}}, nil},
		"others_pattern":   {input{others: []Hostname{"*.example"}, recorded: []Recorded{record("a.example", "shop"), record("*.a.example", "shop")}}, nil},
		"pattern_below":    {input{others: []Hostname{"a.corp.example"}, recorded: []Recorded{record("*.corp.example", "shop")}}, nil},
		"own_name":         {input{recorded: []Recorded{record("a.shop.svc.cluster.local", "shop"), record("a.web.svc.cluster.local", "shop")}}, []Grant{grant("a.web.svc.cluster.local", "shop")}},
		"given_by_gateway": {input{all: &Fragment{Gateways: []*Gateway{giving("shop/*.corp.example")}}, recorded: []Recorded{record("a.corp.example", "shop"), record("b.example", "shop")}}, []Grant{grant("b.example", "shop")}},
		"narrower_than_given": {
			input{all: &Fragment{Gateways: []*Gateway{giving("evil/*.corp.example")}}, recorded: []Recorded{record("a.corp.example", "shop")}},
			[]Grant{grant("a.corp.example", "shop")},
		},
		"nested":        {input{recorded: []Recorded{record("*.corp.example", "shop"), record("a.corp.example", "evil")}}, []Grant{grant("a.corp.example", "evil"), grant("*.corp.example", "shop")}},
		"address":       {input{patterns: []Hostname{"*.shop.example"}, shop: services(addressed("shop", "s", "10.1.0.1")), recorded: []Recorded{record("10.1.0.1", "shop"), record("10.1.0.2", "shop")}}, []Grant{grant("10.1.0.1", "shop")}},
		"range":         {input{patterns: []Hostname{"*.shop.example"}, shop: services(addressed("shop", "s", "10.1.0.0/16")), recorded: []Recorded{record("10.1.0.0/16", "shop")}}, []Grant{grant("10.1.0.0/16", "shop")}},
		"address_host":  {input{shop: services(hosting("shop", "10.1.0.1")), recorded: []Recorded{record("10.1.0.1", "shop")}}, []Grant{grant("10.1.0.1", "shop")}},
		"endpoint_only": {input{shop: services(withEndpoint("shop", "s")), recorded: []Recorded{record("10.96.0.5", "shop")}}, nil},
		"address_of_pattern": {
			input{others: []Hostname{"10.1.0.0/16"}, shop: services(addressed("shop", "s", "10.1.0.1")), recorded: []Recorded{record("10.1.0.1", "shop")}}, nil,
		},
		"recorded_routes":           {input{recorded: []Recorded{routed("a.example", "shop")}}, []Grant{grant("a.example", "shop")}},
		"recorded_routes_of_others": {input{recorded: []Recorded{routed("a.corp.example", "shop"), record("*.corp.example", "evil")}}, []Grant{grant("*.corp.example", "evil")}},
		"recorded_routes_below_own": {input{recorded: []Recorded{routed("a.corp.example", "shop"), record("*.corp.example", "shop")}}, []Grant{grant("*.corp.example", "shop"), grant("a.corp.example", "shop")}},

		"gateway_routes":          {input{shop: routesOf(atGateways("shop", "a.example"))}, []Grant{{"a.example", "shop", true}}},
		"gateway_wildcard":        {input{shop: routesOf(atGateways("shop", "*.a.example"))}, []Grant{{"*.a.example", "shop", true}}},
		"gateway_wide_wildcard":   {input{shop: routesOf(atGateways("shop", "*.com"))}, []Grant{{"*.com", "shop", true}}},
		"gateway_all":             {input{shop: routesOf(atGateways("shop", "*"))}, []Grant{{"*", "shop", true}}},
		"gateway_and_mesh":        {input{shop: routesOf(atGateways("shop", "a.example", "mesh"))}, []Grant{grant("a.example", "shop")}},
		"mesh_routes":             {input{shop: routesOf(routing("shop", "a.example"))}, []Grant{grant("a.example", "shop")}},
		"private_routes":          {input{shop: routesOf(privately(atGateways("shop", "a.example")))}, nil},
		"routes_of_pattern":       {input{others: []Hostname{"a.example"}, shop: routesOf(atGateways("shop", "a.example"))}, nil},
		"routes_of_own_pattern":   {input{patterns: []Hostname{"a.example"}, shop: routesOf(atGateways("shop", "a.example"))}, nil},
		"routes_declared":         {input{all: services(hosting("shop", "a.example")), shop: routesOf(atGateways("shop", "a.example"))}, nil},
		"routes_elsewhere":        {input{all: services(hosting("web", "a.example")), shop: routesOf(atGateways("shop", "a.example"))}, nil},
		"routes_operators":        {input{all: routesOf(atGateways("web", "a.example")), shop: routesOf(routing("shop", "b.example"), atGateways("shop", "c.example"))}, []Grant{grant("b.example", "shop"), {"c.example", "shop", true}}},
		"routes_given":            {input{all: &Fragment{Gateways: []*Gateway{giving("shop/*")}}, shop: routesOf(atGateways("shop", "a.example"))}, nil},
		"routes_given_elsewhere":  {input{all: &Fragment{Gateways: []*Gateway{giving("evil/*")}}, shop: routesOf(atGateways("shop", "a.example"))}, nil},
		"routes_recorded_by_evil": {input{recorded: []Recorded{record("*.corp.example", "evil")}, shop: routesOf(atGateways("shop", "a.corp.example"))}, []Grant{grant("*.corp.example", "evil")}},

		"server_name":           {input{patterns: []Hostname{"*.shop.example"}, shop: routesOf(byServerName("shop", "tls.example", "mesh"))}, []Grant{grant("tls.example", "shop")}},
		"server_name_wildcard":  {input{patterns: []Hostname{"*.shop.example"}, shop: routesOf(byServerName("shop", "*.tls.example", "mesh"))}, []Grant{grant("*.tls.example", "shop")}},
		"server_name_gateway":   {input{patterns: []Hostname{"*.shop.example"}, shop: routesOf(byServerName("shop", "tls.example", "edge/gateway"))}, []Grant{{"tls.example", "shop", true}}},
		"server_name_of_others": {input{patterns: []Hostname{"*.shop.example"}, others: []Hostname{"*.tls.example"}, shop: routesOf(byServerName("shop", "a.tls.example", "mesh"))}, nil},

		"subnet":           {input{patterns: []Hostname{"*.shop.example"}, shop: routesOf(matching("shop", "10.1.0.0/16"))}, []Grant{grant("10.1.0.0/16", "shop")}},
		"subnet_too_wide":  {input{patterns: []Hostname{"*.shop.example"}, shop: routesOf(matching("shop", "8.0.0.0/7"))}, nil},
		"subnet_virtual":   {input{patterns: []Hostname{"*.shop.example"}, shop: routesOf(matching("shop", "240.240.0.0/16"))}, nil},
		"subnet_of_others": {input{patterns: []Hostname{"*.shop.example"}, others: []Hostname{"10.1.2.0/24"}, shop: routesOf(matching("shop", "10.1.0.0/16"))}, nil},
		"subnet_recorded":  {input{patterns: []Hostname{"*.shop.example"}, others: []Hostname{"*.evil.example"}, evil: services(addressed("evil", "e", "10.0.0.0/8")), recorded: []Recorded{record("10.0.0.0/8", "evil")}, shop: routesOf(matching("shop", "10.1.0.0/16"))}, []Grant{grant("10.0.0.0/8", "evil")}},
		"subnet_at_gateway": {input{patterns: []Hostname{"*.shop.example"}, shop: routesOf(func() *VirtualService {
			vs := matching("shop", "10.1.0.0/16")
			vs.Spec.Gateways = []string{"edge/gateway"}
			return vs
		}())}, nil},

		"wide_wildcard":         {input{shop: services(hosting("shop", "*.com"))}, []Grant{grant("*.com", "shop")}},
		"wide_wildcard_of_two":  {input{shop: services(hosting("shop", "*.com")), evil: services(hosting("evil", "*.com"))}, []Grant{grant("*.com", "evil")}},
		"wide_wildcard_unbound": {input{shop: services(hosting("shop", "*.com")), all: services(hosting("web", "*"))}, nil},
		"unrecorded_host":       {input{shop: services(hosting("shop", "a.example"), hosting("shop", "*.corp.example"))}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := Input{
				Fallback: testMeshConfig(), Fragments: []*Fragment{c.in.shop, c.in.evil, c.in.all},
				Bindings: []*Binding{patterns("shop", c.in.patterns...), patterns("evil", c.in.others...), nil},
			}
			if got := InheritGrants(in, c.in.recorded); !slices.Equal(got, c.want) {
				t.Errorf("granted %v, want %v", got, c.want)
			}
			in.Grants = NewGrants([]Grant{grant("*.example", "evil"), grant("*.com", "evil"), {"*", "evil", true}}) // of an earlier reading
			if got := InheritGrants(in, c.in.recorded); !slices.Equal(got, c.want) {
				t.Errorf("with earlier grants, granted %v, want %v", got, c.want)
			}
			in.Grants = NewGrants(c.want)
			s := Merge(in)
			same := func(o OpenGrant, g Grant) bool { return o.Grant == g }
			if open := s.OpenGrants(); !slices.EqualFunc(open, c.want, same) {
				t.Errorf("of %v, settings do not give %v", c.want, open)
			}
			for _, g := range c.want {
				checkGranted(t, s, g)
			}
		})
	}
}

// checkGranted wants what the namespace of a grant says of the name to be seen by a third one.
func checkGranted(t *testing.T, s *Snapshot, g Grant) {
	t.Helper()
	for _, svc := range s.Services {
		if svc.Namespace == g.Namespace && (svc.Hostname == g.Name || slices.Contains(addressNames(svc), g.Name)) && onlyOwn(svc.ExportTo, nil, svc.Namespace) {
			t.Errorf("%v: others do not see %s: %v", g, svc.Key, s.Conflicts)
		}
	}
	for _, vs := range s.VirtualServices {
		if vs.Namespace == g.Namespace && slices.Contains(append(routedNames(vs), subnetNames(vs)...), g.Name) && !s.VirtualServiceVisibleTo(vs, "third") {
			t.Errorf("%v: others do not get the routes of %s: %v", g, vs.Key, s.Conflicts)
		}
	}
}

// TestGrantsNest says whose a name is if grants, Gateways, patterns and declarations differ. "shop" and "evil" both declare
// the host and route it at gateways; the third source speaks for everybody.
func TestGrantsNest(t *testing.T) {
	t.Parallel()
	const both = "evil shop"
	grant := func(name, namespace string) Grant { return Grant{Name: Hostname(name), Namespace: namespace} }
	gateway := func(name, namespace string) Grant { return Grant{Hostname(name), namespace, true} }
	for name, c := range map[string]struct {
		host         string
		grants       []Grant
		patterns     []Hostname // of shop
		given        string
		declared     *Service
		host0, route string // whose service, and whose routes at gateways, others see
	}{
		"nobody":                     {host: "a.corp.example"},
		"granted":                    {host: "a.corp.example", grants: []Grant{grant("a.corp.example", "shop")}, host0: "shop", route: "shop"},
		"below_a_granted_wildcard":   {host: "a.corp.example", grants: []Grant{grant("*.corp.example", "shop")}, host0: "shop", route: "shop"},
		"narrower_grant":             {host: "a.corp.example", grants: []Grant{grant("*.corp.example", "evil"), grant("a.corp.example", "shop")}, host0: "shop", route: "shop"},
		"narrower_wildcard":          {host: "a.b.corp.example", grants: []Grant{grant("*.corp.example", "evil"), grant("*.b.corp.example", "shop")}, host0: "shop", route: "shop"},
		"beside_the_narrower_one":    {host: "x.corp.example", grants: []Grant{grant("*.corp.example", "evil"), grant("a.corp.example", "shop")}, host0: "evil", route: "evil"},
		"wildcard_with_others_below": {host: "*.corp.example", grants: []Grant{grant("*.corp.example", "evil"), grant("a.corp.example", "shop")}, route: "evil"},
		"wildcard_with_own_below":    {host: "*.corp.example", grants: []Grant{grant("*.corp.example", "shop"), grant("a.corp.example", "shop")}, host0: "shop", route: "shop"},
		"of_two":                     {host: "a.corp.example", grants: []Grant{grant("a.corp.example", "shop"), grant("a.corp.example", "evil")}, host0: both, route: both},
		"only_at_gateways":           {host: "a.corp.example", grants: []Grant{gateway("a.corp.example", "shop")}, route: "shop"},
		"service_before_routes":      {host: "a.corp.example", grants: []Grant{grant("*.corp.example", "evil"), gateway("a.corp.example", "shop")}, host0: "evil", route: "evil"},
		"of_a_namespace_without_source": {
			host: "a.corp.example", grants: []Grant{grant("*.corp.example", "shop"), grant("a.corp.example", "gone")},
		},
		"wider_than_one_of_a_namespace_without_source": {host: "*.corp.example", grants: []Grant{grant("*.corp.example", "shop"), grant("a.corp.example", "gone")}, route: "shop"},

		"pattern_before_grant":          {host: "a.corp.example", grants: []Grant{grant("a.corp.example", "evil")}, patterns: []Hostname{"*.corp.example"}, host0: "shop", route: "shop"},
		"pattern_below_granted":         {host: "*.corp.example", grants: []Grant{grant("*.corp.example", "evil")}, patterns: []Hostname{"a.corp.example"}},
		"gateway_before_wider_grant":    {host: "a.corp.example", grants: []Grant{grant("*.corp.example", "evil")}, given: "shop/a.corp.example", host0: "shop", route: "shop"},
		"grant_before_wider_gateway":    {host: "a.corp.example", grants: []Grant{grant("a.corp.example", "shop")}, given: "evil/*.corp.example", host0: "shop", route: "shop"},
		"gateway_of_the_same_name":      {host: "a.corp.example", grants: []Grant{grant("a.corp.example", "evil")}, given: "shop/a.corp.example", host0: "shop", route: "shop"},
		"wide_gateway_is_for_gateways":  {host: "a.corp.example", given: "shop/*.example", route: "shop"},
		"wide_grant":                    {host: "a.corp.example", grants: []Grant{grant("*.example", "shop")}, host0: "shop", route: "shop"},
		"own_name_before_wider_grant":   {host: "a.shop.svc.cluster.local", grants: []Grant{grant("*.svc.cluster.local", "evil")}, host0: "shop", route: "shop"},
		"declaration_before_grant":      {host: "a.corp.example", grants: []Grant{grant("a.corp.example", "shop")}, declared: hosting("web", "a.corp.example")},
		"wide_declaration_before_grant": {host: "a.corp.example", grants: []Grant{grant("a.corp.example", "shop")}, declared: hosting("web", "*.corp.example")},

		"address":              {host: "10.1.0.1", grants: []Grant{grant("10.1.0.0/24", "shop")}, host0: "shop", route: "shop"},
		"narrower_range":       {host: "10.1.0.1", grants: []Grant{grant("10.0.0.0/8", "evil"), grant("10.1.0.0/16", "shop")}, host0: "shop", route: "shop"},
		"address_in_range":     {host: "10.1.0.1", grants: []Grant{grant("10.1.0.0/16", "evil"), grant("10.1.0.1", "shop")}, host0: "shop", route: "shop"},
		"address_beside":       {host: "10.1.0.2", grants: []Grant{grant("10.1.0.0/16", "evil"), grant("10.1.0.1", "shop")}, host0: "evil", route: "evil"},
		"address_v6":           {host: "fd00::1", grants: []Grant{grant("fd00::/16", "evil"), grant("fd00::/64", "shop")}, host0: "shop", route: "shop"},
		"pattern_of_addresses": {host: "10.1.0.1", grants: []Grant{grant("10.1.0.1", "evil")}, patterns: []Hostname{"10.0.0.0/8"}, host0: "shop", route: "shop"},
		// At gateways, an address is a host as others are.
		"addresses_of_operators": {host: "10.1.0.1", grants: []Grant{grant("10.1.0.1", "shop")}, declared: addressed("web", "w", "10.1.0.0/24"), route: "shop"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{patterns("shop", c.patterns...), patterns("evil"), nil}, Grants: NewGrants(c.grants), Fragments: []*Fragment{{}, {}, {}}}
			for i, ns := range []string{"shop", "evil"} {
				svc := hosting(ns, c.host)
				if isAddress(svc.Hostname) { // has the same owner as an address
					svc.Addresses = []string{c.host}
				}
				vs := atGateways(ns, c.host)
				in.Fragments[i] = &Fragment{Services: []*Service{svc}, VirtualServices: []*VirtualService{vs}}
			}
			if c.given != "" {
				in.Fragments[2].Gateways = []*Gateway{giving(c.given)}
			}
			if c.declared != nil {
				in.Fragments[2].Services = []*Service{c.declared}
			}
			var seen []string
			s := Merge(in)
			for _, svc := range s.ServicesVisibleTo("third") {
				if svc.Namespace != "web" {
					seen = append(seen, svc.Namespace)
				}
			}
			slices.Sort(seen)
			if got := strings.Join(seen, " "); got != c.host0 {
				t.Errorf("others see the service of %q, want %q: %v", got, c.host0, s.Conflicts)
			}
			routed := routesSeenFrom(s, "third")
			slices.Sort(routed)
			if got := strings.Join(routed, " "); got != c.route {
				t.Errorf("gateways of others have the routes of %q, want %q: %v", got, c.route, s.Conflicts)
			}
		})
	}
}
