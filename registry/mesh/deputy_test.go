package mesh

import (
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
