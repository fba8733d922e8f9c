package mesh

import (
	"maps"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestPrivateHostsAreNotRouted has a tenant route, and declare, a host that another
// namespace keeps to itself, by any name: clients of that namespace are not
// concerned, all others are.
func TestPrivateHostsAreNotRouted(t *testing.T) {
	t.Parallel()
	private := testService("shop", "db", "db")
	private.Hostname, private.ExportTo, private.Addresses = "db.shop.svc.cluster.local", Exports{"shop"}, []string{"10.96.0.7"}
	for _, h := range []string{"db.shop.svc.cluster.local", "db.shop.svc.cluster.local.", "*.cluster.local", "db.shop", "10.96.0.7"} {
		vs := testVirtualService("evil", "x", "x")
		vs.Spec = &networking.VirtualService{Gateways: []string{"mesh"}, Hosts: []string{h, "own.evil.internal"}}
		own := testService("evil", "x", "x")
		own.Hostname = Hostname(h)
		for _, services := range [][]*Service{nil, {own}} {
			in := Input{
				Fallback: testMeshConfig(), Fragments: []*Fragment{{}, {Services: services, VirtualServices: []*VirtualService{vs}}},
				Bindings: []*Binding{{Namespaces: []string{"shop"}}, patterns("evil", "*.evil.internal")},
				Grants:   NewGrants([]Grant{{Name: Hostname(h), Namespace: "evil"}}),
			}
			in.Prev = Merge(in)
			in.Fragments = []*Fragment{{Services: []*Service{private}}, in.Fragments[1]}
			s := Merge(in)
			seen := map[string][]string{}
			for _, vs := range s.VirtualServices {
				for _, ns := range []string{"shop", "evil", "web"} {
					if s.VirtualServiceVisibleTo(vs, ns) {
						seen[ns] = append(seen[ns], vs.Spec.Hosts...)
					}
				}
			}
			told := 1
			if isAddress(Hostname(h)) && len(services) > 0 {
				told = 2 // a service of that address is kept out, too
			}
			if len(seen["shop"]) != 1 || len(seen["evil"]) != 2 || len(seen["web"]) != 2 || len(s.Conflicts) != told {
				t.Errorf("%s: routes reach %v, conflicts: %v", h, seen, s.Conflicts)
			}
		}
	}
}

// TestOverriddenRoutesAreNotSplit has an operator write the same VirtualService as a
// tenant, before and after it: nothing of the tenant's is in force, not even for its own
// clients.
func TestOverriddenRoutesAreNotSplit(t *testing.T) {
	t.Parallel()
	orders := testService("shop", "orders", "orders")
	mine := routing("evil", "own.evil.example")
	mine.Spec.Hosts = append(mine.Spec.Hosts, string(orders.Hostname))
	override := routing("evil", "own.evil.example")
	in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{patterns("evil", "own.evil.example"), nil}}
	with, without := &Fragment{Services: []*Service{orders}, VirtualServices: []*VirtualService{override}}, &Fragment{Services: []*Service{orders}}
	for step, f := range []*Fragment{without, with, without, with} {
		in.Fragments = []*Fragment{{VirtualServices: []*VirtualService{mine}}, f}
		in.Prev = Merge(in)
		want := 2 // its own hosts for all, the other for its own namespace
		if f == with {
			want = 1
		}
		if got := in.Prev.VirtualServices; len(got) != want || f == with && got[0] != override {
			t.Errorf("step %d: %d VirtualServices are in force", step, len(got))
		}
	}
}

// TestPrivateHostsOfTLSRoutes has a tenant route TLS for two hosts of which another namespace has
// one to itself, by two services. The rules match both hosts, so that none of them reaches that
// namespace, which is named once.
func TestPrivateHostsOfTLSRoutes(t *testing.T) {
	t.Parallel()
	private := func(name string) *Service {
		s := testService("shop", name, name)
		s.Hostname, s.ExportTo = Hostname(name+".db.internal"), Exports{"shop"}
		return s
	}
	for _, tls := range []bool{false, true} {
		vs := testVirtualService("evil", "x", "x")
		vs.Spec = &networking.VirtualService{Gateways: []string{"mesh"}, Hosts: []string{"*.db.internal", "own.evil.internal"}}
		if tls {
			vs.Spec.Tls = []*networking.TLSRoute{{Match: []*networking.TLSMatchAttributes{{SniHosts: []string{"own.evil.internal"}}}}}
		}
		s := Merge(Input{
			Fallback: testMeshConfig(), Bindings: []*Binding{{Namespaces: []string{"shop"}}, patterns("evil", "*.evil.internal")},
			Grants:    NewGrants([]Grant{{Name: "*.db.internal", Namespace: "evil"}}),
			Fragments: []*Fragment{{Services: []*Service{private("a"), private("b")}}, {VirtualServices: []*VirtualService{vs}}},
		})
		reach := map[string]string{}
		for _, vs := range s.VirtualServices {
			for _, h := range vs.Spec.Hosts {
				reach[h] = strings.Join(vs.ExportTo, " ")
			}
		}
		want := map[string]string{"*.db.internal": "!shop *", "own.evil.internal": ""}
		if tls {
			want["own.evil.internal"] = "!shop *"
		}
		if !maps.Equal(reach, want) {
			t.Errorf("with TLS %v: %q, want %q", tls, reach, want)
		}
	}
}
