package mesh

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
)

// TestRoutesOfATenantByOtherWays: a route of a tenant at a gateway of another namespace leads to a third tenant by a
// delegate, or while the tenant declares the same host for its own namespace. Both are as without these.
func TestRoutesOfATenantByOtherWays(t *testing.T) {
	t.Parallel()
	const to = `{"destination": {"host": "bank.bank.internal"}}`
	const mine = `{"destination": {"host": "a.shop.internal"}}`
	virtualService := func(ns, name, spec string, exports ...string) *VirtualService {
		vs := &VirtualService{Meta: Meta{Key: Key{KindVirtualService, ns, name}, Hash: Hash{3}, Origin: &Origin{Source: ns, Path: name + ".yaml"}}, Spec: &networking.VirtualService{}, ExportTo: exports}
		if err := protojson.Unmarshal([]byte(`{`+spec+`}`), vs.Spec); err != nil {
			t.Fatal(err)
		}
		return vs
	}
	service := func(ns, host string, exports ...string) *Service {
		s := tableService(ns, host, 80)
		s.ExportTo = exports
		return s
	}
	bank := []*Service{service("bank", "bank.bank.internal")}
	root := func(routes string) *VirtualService {
		return virtualService("shop", "r", `"hosts": ["a.shop.internal"], "gateways": ["edge/shared", "mesh"], "http": [`+routes+`]`)
	}
	const included = `"http": [{"route": [` + mine + `, ` + to + `]}]`
	delegate := func(ns string) string {
		return `{"match": [{"uri": {"prefix": "/x"}}], "delegate": {"name": "d", "namespace": "` + ns + `"}}`
	}
	for name, c := range map[string]struct {
		operator, shop, bank Fragment
		field                string
	}{
		"own delegate":               {shop: Fragment{VirtualServices: []*VirtualService{virtualService("shop", "d", included), root(delegate("shop"))}}, bank: Fragment{Services: bank}, field: "spec.http[0].delegate"},
		"another's delegate":         {shop: Fragment{VirtualServices: []*VirtualService{root(delegate("bank"))}}, bank: Fragment{Services: bank, VirtualServices: []*VirtualService{virtualService("bank", "d", included)}}, field: "spec.http[0].delegate"},
		"the operator's delegate":    {operator: Fragment{VirtualServices: []*VirtualService{virtualService("corp", "d", included)}}, shop: Fragment{VirtualServices: []*VirtualService{root(delegate("corp"))}}, bank: Fragment{Services: bank}, field: "spec.http[0].delegate"},
		"a delegate that may not be": {shop: Fragment{VirtualServices: []*VirtualService{root(delegate("bank"))}}, bank: Fragment{Services: bank, VirtualServices: []*VirtualService{virtualService("bank", "d", included, "bank")}}},
		"the service lets it":        {shop: Fragment{VirtualServices: []*VirtualService{virtualService("shop", "d", included), root(delegate("shop"))}}, bank: Fragment{Services: []*Service{service("bank", "bank.bank.internal", "edge", "shop")}}},
		"the gateway sees no such":   {shop: Fragment{VirtualServices: []*VirtualService{virtualService("shop", "d", included), root(delegate("shop"))}}, bank: Fragment{Services: []*Service{service("bank", "bank.bank.internal", "bank")}}},
		"own copy":                   {shop: Fragment{Services: []*Service{service("shop", "bank.bank.internal", "shop")}, VirtualServices: []*VirtualService{root(`{"route": [` + to + `]}`)}}, bank: Fragment{Services: bank}, field: "spec.http[0].route[0].destination"},
		"limited copy":               {shop: Fragment{Services: []*Service{service("shop", "bank.bank.internal")}, VirtualServices: []*VirtualService{root(`{"route": [` + to + `]}`)}}, bank: Fragment{Services: bank}, field: "spec.http[0].route[0].destination"},
	} {
		for _, only := range []bool{false, true} {
			c.operator.Source, c.shop.Source, c.bank.Source = "operator", "shop", "bank"
			in := Input{
				Fallback: testMeshConfig(), Fragments: []*Fragment{&c.operator, &c.shop, &c.bank},
				Bindings: []*Binding{nil, {Namespaces: []string{"shop"}, Hosts: []Hostname{"*.shop.internal"}, RoutesOnly: only}, {Namespaces: []string{"bank"}, Hosts: []Hostname{"*.bank.internal"}}},
			}
			s := Merge(in)
			var fields []string
			for _, x := range s.Conflicts {
				if x.Kind == ConflictRoute && x.Refused == only {
					fields = append(fields, x.Key.Name+" "+x.Field)
				}
			}
			var want []string
			if c.field != "" {
				want = []string{"r " + c.field}
			}
			if !slices.Equal(fields, want) {
				t.Errorf("%s, %t: reported %q, want %q", name, only, fields, want)
			}
			closed := map[string]bool{}
			for _, x := range s.VirtualServices {
				for _, g := range x.Spec.GetGateways() {
					r := x.Spec.GetHttp()[0]
					closed[g] = r.GetDirectResponse().GetStatus() == 503 && len(r.GetRoute()) == 0 && r.GetDelegate() == nil
				}
			}
			if shut := only && c.field != ""; closed["edge/shared"] != shut || closed["mesh"] {
				t.Errorf("%s, %t: answers 503 at %v, want it at the gateway: %t", name, only, closed, shut)
			}
			in.Prev = s
			if again := Merge(in); !slices.Equal(again.VirtualServices, s.VirtualServices) {
				t.Errorf("%s, %t: the next snapshot has other objects", name, only)
			}
		}
	}
}
