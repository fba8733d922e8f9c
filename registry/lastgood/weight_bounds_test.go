package lastgood_test

import (
	"fmt"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestProductsOfWeightsDoNotOverflow has an object whose product is beyond an int64: it is refused, and does not make
// the sum negative, within which all else would be.
func TestProductsOfWeightsDoNotOverflow(t *testing.T) {
	t.Parallel()
	sized := func(kind mesh.Kind, name string, weight int, f *mesh.Fragment) lastgood.Sized {
		return lastgood.Sized{Key: mesh.Key{Kind: kind, Namespace: "evil", Name: name}, Expansion: 1, Weight: weight, Fragment: f}
	}
	var services []*mesh.Service
	ports := make([]mesh.Port, 65_535)
	for i := range 200 {
		services = append(services, &mesh.Service{Hostname: mesh.Hostname(fmt.Sprintf("h%d.evil.test", i)), Ports: ports})
	}
	meta := func(name string) mesh.Meta { return mesh.Meta{Key: mesh.Key{Namespace: "evil", Name: name}} }
	routes := &mesh.VirtualService{Meta: meta("v"), Spec: &networking.VirtualService{Hosts: []string{"*.evil.test"}, Gateways: []string{"mesh"}}}
	rule := &mesh.DestinationRule{Meta: meta("r"), Spec: &networking.DestinationRule{Host: "*.evil.test"}}
	list := []lastgood.Sized{sized(mesh.KindServiceEntry, "s", 1, &mesh.Fragment{Services: services})}
	vs := sized(mesh.KindVirtualService, "v", 1<<40, &mesh.Fragment{VirtualServices: []*mesh.VirtualService{routes}})
	dr := sized(mesh.KindDestinationRule, "r", 1<<40, &mesh.Fragment{DestinationRules: []*mesh.DestinationRule{rule}})
	for _, large := range []lastgood.Sized{vs, dr} {
		refused := lastgood.OverLimit(append(list[:1:1], large), lastgood.DefaultMaxExpansion)
		if x, is := refused[large.Key]; !is || len(refused) != 1 || x.Total <= 0 {
			t.Errorf("%s: refused: %v", large.Key, refused)
		}
	}
}
