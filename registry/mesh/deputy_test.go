package mesh

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
)

// TestRoutesOfATenantToThirdNamespaces: a route of a tenant at a gateway of another namespace to a service of a third
// tenant is reported, unless somebody let it; with RoutesOnly that gateway does not follow it, and
// sidecars and gateways of the tenant do.
func TestRoutesOfATenantToThirdNamespaces(t *testing.T) {
	t.Parallel()
	const to = `{"destination": {"host": "bank.bank.internal", "port": {"number": 80}}}`
	const mine = `{"destination": {"host": "a.shop.internal"}}`
	service := func(ns, host string, exports ...string) *Service {
		s := tableService(ns, host, 80)
		s.ExportTo = exports
		return s
	}
	for name, c := range map[string]struct {
		vs       string
		exports  []string
		operator *Service
		bank     *Service
		shop     *Service
		fields   []string
	}{
		"route":          {vs: `"gateways": ["edge/shared", "mesh"], "http": [{"route": [` + mine + `]}, {"route": [` + mine + `, ` + to + `]}]`, fields: []string{"spec.http[1].route[1].destination"}},
		"mirror":         {vs: `"gateways": ["mesh", "shop/own", "edge/shared"], "http": [{"route": [` + mine + `], "mirror": {"host": "bank.bank.internal"}}]`, fields: []string{"spec.http[0].mirror"}},
		"mirrors":        {vs: `"gateways": ["edge/shared"], "http": [{"route": [` + mine + `], "mirrors": [` + to + `]}]`, fields: []string{"spec.http[0].mirrors[0].destination"}},
		"tcp":            {vs: `"gateways": ["edge/shared"], "tcp": [{"route": [` + to + `]}]`, fields: []string{"spec.tcp[0].route[0].destination"}},
		"tls":            {vs: `"gateways": ["edge/shared"], "tls": [{"match": [{"sniHosts": ["a.shop.internal"]}], "route": [` + to + `]}]`, fields: []string{"spec.tls[0].route[0].destination"}},
		"all_namespaces": {vs: `"gateways": ["edge/shared"], "tcp": [{"route": [` + to + `]}]`, bank: service("bank", "bank.bank.internal", "*"), fields: []string{"spec.tcp[0].route[0].destination"}},
		"sidecars":       {vs: `"gateways": ["mesh"], "http": [{"route": [` + to + `]}]`},
		"own_gateway":    {vs: `"gateways": ["shop/own"], "http": [{"route": [` + to + `]}]`},
		"own_service":    {vs: `"gateways": ["edge/shared"], "http": [{"route": [` + mine + `]}]`},
		"named":          {vs: `"gateways": ["edge/shared"], "http": [{"route": [` + to + `]}]`, bank: service("bank", "bank.bank.internal", "edge", "shop")},
		"operators":      {vs: `"gateways": ["edge/shared"], "http": [{"route": [` + to + `]}]`, operator: service("corp", "bank.bank.internal")},
		"impostor":       {vs: `"gateways": ["edge/shared"], "tcp": [{"route": [` + to + `]}]`, shop: service("shop", "bank.bank.internal"), fields: []string{"spec.tcp[0].route[0].destination"}},
		"private_name":   {vs: `"gateways": ["edge/shared"], "tcp": [{"route": [` + to + `]}]`, shop: service("shop", "bank.bank.internal", "shop"), fields: []string{"spec.tcp[0].route[0].destination"}},
		"nowhere":        {vs: `"gateways": ["edge/shared"], "http": [{"route": [` + to + `]}]`, bank: service("bank", "other.bank.internal")},
		"private":        {vs: `"gateways": ["edge/shared"], "http": [{"route": [` + to + `]}]`, exports: []string{"shop"}},
	} {
		for _, only := range []bool{false, true} {
			vs := &VirtualService{
				Meta: Meta{Key: Key{KindVirtualService, "shop", "r"}, Hash: Hash{3}, Origin: &Origin{Source: "shop", Path: "r.yaml"}},
				Spec: &networking.VirtualService{}, ExportTo: c.exports,
			}
			if err := protojson.Unmarshal([]byte(`{"hosts": ["a.shop.internal"], `+c.vs+`}`), vs.Spec); err != nil {
				t.Fatal(err)
			}
			operator, bank := &Fragment{Source: "operator"}, &Fragment{Source: "bank", Services: []*Service{service("bank", "bank.bank.internal")}}
			if c.operator != nil {
				operator.Services = []*Service{c.operator}
			}
			if c.bank != nil {
				bank.Services = []*Service{c.bank}
			}
			shop := &Fragment{Source: "shop", Services: []*Service{service("shop", "a.shop.internal")}, VirtualServices: []*VirtualService{vs}}
			if c.shop != nil {
				shop.Services = append(shop.Services, c.shop)
			}
			in := Input{
				Fallback: testMeshConfig(), Fragments: []*Fragment{operator, shop, bank},
				Bindings: []*Binding{nil, {Namespaces: []string{"shop"}, Hosts: []Hostname{"*.shop.internal"}, RoutesOnly: only}, {Namespaces: []string{"bank"}, Hosts: []Hostname{"*.bank.internal"}}},
			}
			s := Merge(in)
			var fields []string
			for _, x := range s.Conflicts {
				if x.Kind == ConflictRoute && x.Refused == only && x.Key == vs.Key {
					fields = append(fields, x.Field)
				}
			}
			if !slices.Equal(fields, c.fields) {
				t.Errorf("%s, %t: reported %q, want %q", name, only, fields, c.fields)
			}
			followed := map[string]bool{}
			for _, x := range s.VirtualServices {
				leads := false
				for _, d := range destinationsOf(x.Spec) {
					leads = leads || d.GetHost() == "bank.bank.internal"
				}
				for _, g := range x.Spec.GetGateways() {
					followed[g] = followed[g] || leads
				}
			}
			for _, g := range vs.Spec.GetGateways() {
				want := name != "own_service" && (g != "edge/shared" || !only || len(c.fields) == 0)
				if got, is := followed[g]; !is || got != want {
					t.Errorf("%s, %t: %s follows the route: %t, want %t", name, only, g, got, want)
				}
			}
			in.Prev = s
			if again := Merge(in); !slices.Equal(again.VirtualServices, s.VirtualServices) {
				t.Errorf("%s, %t: the next snapshot has other objects", name, only)
			}
		}
	}
}

// TestDelegatesAreJudged: what a VirtualService includes speaks with the identity of the gateway, too. A route in a
// delegate of a tenant is judged as the tenant's, whoever includes it; and what a tenant includes of others is judged
// as its own route.
func TestDelegatesAreJudged(t *testing.T) {
	t.Parallel()
	service := func(ns, host string, exports ...string) *Service {
		s := tableService(ns, host, 80)
		s.ExportTo = exports
		return s
	}
	object := func(ns, name, spec string, exports ...string) *VirtualService {
		vs := &VirtualService{
			Meta: Meta{Key: Key{KindVirtualService, ns, name}, Hash: Hash{3, byte(len(name))}, Origin: &Origin{Source: ns, Path: name + ".yaml"}},
			Spec: &networking.VirtualService{}, ExportTo: exports,
		}
		if err := protojson.Unmarshal([]byte(spec), vs.Spec); err != nil {
			t.Fatal(err)
		}
		return vs
	}
	const (
		bank     = `{"http": [{"route": [{"destination": {"host": "a.shop.internal"}}]}, {"route": [{"destination": {"host": "bank.bank.internal"}}]}]}`
		includes = `{"hosts": ["a.shop.internal"], "gateways": [%s], "http": [{"delegate": {"name": "part", "namespace": "%s"}}]}`
	)
	for name, c := range map[string]struct {
		operator, shop, bank []*VirtualService
		exports              []string // of the service
		object, field        string   // of the finding
		// refused are the namespaces whose gateways do not follow the delegate's route to the bank, split the gateways for
		// which the root is split off.
		refused, split []string
	}{
		"of_a_tenant_in_the_operators": {
			operator: []*VirtualService{object("corp", "root", fmt.Sprintf(includes, `"edge/shared", "mesh", "shop/own", "more/other"`, "shop"))},
			shop:     []*VirtualService{object("shop", "part", bank)},
			object:   "shop/part", field: "spec.http[1].route[0].destination", refused: []string{"edge", "more"},
		},
		"of_a_tenant_in_its_own": {
			shop:   []*VirtualService{object("shop", "part", bank), object("shop", "root", fmt.Sprintf(includes, `"edge/shared", "mesh"`, "shop"))},
			object: "shop/root", field: "spec.http[0].delegate", split: []string{"edge/shared"},
		},
		"of_a_tenant_in_both": {
			operator: []*VirtualService{object("corp", "root", fmt.Sprintf(includes, `"edge/shared"`, "shop"))},
			shop:     []*VirtualService{object("shop", "part", bank), object("shop", "root", fmt.Sprintf(includes, `"other/gw"`, "shop"))},
			exports:  []string{"edge", "bank"}, object: "shop/part", field: "spec.http[1].route[0].destination", refused: []string{"edge"},
		},
		"unseen": {
			operator: []*VirtualService{object("corp", "root", fmt.Sprintf(includes, `"edge/shared"`, "shop"))},
			shop:     []*VirtualService{object("shop", "part", bank)}, exports: []string{"other"},
		},
		"of_a_tenant_in_the_banks": { // the bank's own gateway is of another namespace, too
			bank:   []*VirtualService{object("bank", "root", fmt.Sprintf(includes, `"bank/own"`, "shop"))},
			shop:   []*VirtualService{object("shop", "part", bank)},
			object: "shop/part", field: "spec.http[1].route[0].destination", refused: []string{"bank"},
		},
		"of_the_operator_in_a_tenants": {
			operator: []*VirtualService{object("corp", "part", bank)},
			shop:     []*VirtualService{object("shop", "root", fmt.Sprintf(includes, `"edge/shared", "mesh"`, "corp"))},
			object:   "shop/root", field: "spec.http[0].delegate", split: []string{"edge/shared"},
		},
		"of_the_bank_in_a_tenants": {
			bank:   []*VirtualService{object("bank", "part", `{"http": [{"route": [{"destination": {"host": "bank.bank.internal"}}]}]}`)},
			shop:   []*VirtualService{object("shop", "root", fmt.Sprintf(includes, `"edge/shared"`, "bank"))},
			object: "shop/root", field: "spec.http[0].delegate", split: []string{"edge/shared"},
		},
		"private": {
			operator: []*VirtualService{object("corp", "root", fmt.Sprintf(includes, `"edge/shared"`, "shop"))},
			shop:     []*VirtualService{object("shop", "part", bank, "shop")},
		},
		"named": {
			operator: []*VirtualService{object("corp", "root", fmt.Sprintf(includes, `"edge/shared"`, "shop"))},
			shop:     []*VirtualService{object("shop", "part", bank)}, exports: []string{"edge", "shop"},
		},
		"sidecars": {
			operator: []*VirtualService{object("corp", "root", fmt.Sprintf(includes, `"mesh", "shop/own"`, "shop"))},
			shop:     []*VirtualService{object("shop", "part", bank)},
		},
		"operators_only": {
			operator: []*VirtualService{object("corp", "part", bank), object("corp", "root", fmt.Sprintf(includes, `"edge/shared"`, "corp"))},
		},
	} {
		for _, only := range []bool{false, true} {
			in := Input{
				Fallback: testMeshConfig(), Fragments: []*Fragment{
					{Source: "operator", VirtualServices: c.operator},
					{Source: "shop", Services: []*Service{service("shop", "a.shop.internal")}, VirtualServices: c.shop},
					{Source: "bank", Services: []*Service{service("bank", "bank.bank.internal", c.exports...)}, VirtualServices: c.bank},
				},
				Bindings: []*Binding{nil, {Namespaces: []string{"shop"}, Hosts: []Hostname{"*.shop.internal"}, RoutesOnly: only}, {Namespaces: []string{"bank"}, Hosts: []Hostname{"*.bank.internal", "a.shop.internal"}, RoutesOnly: only}},
			}
			s := Merge(in)
			var found, want []string
			for _, x := range s.Conflicts {
				if x.Kind == ConflictRoute && x.Refused == only {
					found = append(found, x.Key.Namespace+"/"+x.Key.Name+" "+x.Field)
				}
			}
			if c.object != "" {
				want = []string{c.object + " " + c.field}
			}
			if !slices.Equal(found, want) {
				t.Errorf("%s, %t: reported %q, want %q", name, only, found, want)
			}
			var refused, split []string
			for _, x := range s.VirtualServices {
				for _, ns := range []string{"bank", "edge", "more", "other"} {
					if x.Refused.At(0, ns) {
						t.Errorf("%s, %t: the route to the own service is refused at %s", name, only, ns)
					}
					included := slices.ContainsFunc([][]*VirtualService{c.operator, c.shop, c.bank}, func(list []*VirtualService) bool {
						return slices.ContainsFunc(list, func(root *VirtualService) bool {
							return slices.Contains(namespacesOfGateways(root.Spec.GetGateways()), ns)
						})
					})
					if x.Refused.At(1, ns) && included {
						refused = append(refused, ns)
					}
				}
				if x.Spec.GetHttp()[0].GetDirectResponse().GetStatus() == 503 {
					split = append(split, x.Spec.GetGateways()...)
				}
			}
			if !slices.Equal(refused, c.refused) && only || !slices.Equal(split, c.split) && only || !only && len(refused)+len(split) > 0 {
				t.Errorf("%s, %t: refused at %q and %q, want %q and %q", name, only, refused, split, c.refused, c.split)
			}
			in.Prev = s
			if again := Merge(in); !slices.Equal(again.VirtualServices, s.VirtualServices) {
				t.Errorf("%s, %t: the next snapshot has other objects", name, only)
			}
		}
	}
}
