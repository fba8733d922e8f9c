package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestSilentEndpoints combines endpoints of every health in two localities, with every kind of
// outlier detection. Silent ones are the last priority, or left out where Envoy would spill to
// them or not panic because of them. Where no other may get requests, they are as others.
func TestSilentEndpoints(t *testing.T) {
	t.Parallel()
	rules := map[string]string{
		"":       ``,
		"eject":  `"outlierDetection":{"consecutive5xxErrors":1}`,
		"panics": `"outlierDetection":{"consecutive5xxErrors":1,"minHealthPercent":50}`,
	}
	const near, far = "eu/a", "us/a"
	kinds := []mesh.Health{mesh.HealthUnknown, mesh.Healthy, mesh.Unhealthy, mesh.Silent}
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		for set := range 1 << (2 * len(kinds)) {
			w := newMeshFixture(t)
			svc := w.service("shop", "orders.shop", 80)
			svc.Inline = nil
			live, places := 0, map[string]bool{}
			for i, locality := range []string{near, far} {
				for j, h := range kinds {
					if set&(1<<(i*len(kinds)+j)) == 0 {
						continue
					}
					svc.Inline = append(svc.Inline, &mesh.Workload{
						Meta: mesh.Meta{Key: mesh.Key{Namespace: "shop"}, Origin: svc.Origin}, Address: fmt.Sprintf("10.0.%d.%d", i, h),
						Locality: mesh.ParseLocality(locality), Health: h,
					})
					if h == mesh.HealthUnknown || h == mesh.Healthy {
						live++
					}
					if h != mesh.Silent && (h != mesh.Unhealthy || rule != "panics") {
						places[locality] = true
					}
				}
			}
			if rules[rule] != "" {
				w.rule("shop", "orders", `{"host":"orders.shop","trafficPolicy":{`+rules[rule]+`}}`)
			}
			w.mc.LocalityLbSetting = &networking.LocalityLoadBalancerSetting{Enabled: wrapperspb.Bool(true)}
			p := proxyIn("shop", nil)
			p.Locality = mesh.ParseLocality(near)
			e := findPart(t, Build(w.snapshot(), p), func(e *Endpoints) bool { return e.Ref.Host == "orders.shop" })

			failover := rule == "eject" && len(places) > 1
			for _, l := range e.Localities {
				for _, x := range l.Endpoints {
					silent := strings.HasSuffix(x.Address, fmt.Sprintf(".%d", mesh.Silent))
					switch {
					case l.LastResort != (silent && live > 0):
						t.Fatalf("%q, %b: %s is a last resort: %v, with %d live ones", rule, set, x.Address, l.LastResort, live)
					case l.LastResort && (l.Priority != 1 || failover || rule == "panics"):
						t.Fatalf("%q, %b: last resort %s has priority %d", rule, set, x.Address, l.Priority)
					case x.Unhealthy != strings.HasSuffix(x.Address, fmt.Sprintf(".%d", mesh.Unhealthy)):
						t.Fatalf("%q, %b: %s is unhealthy: %v", rule, set, x.Address, x.Unhealthy)
					}
				}
			}
			last := slices.ContainsFunc(e.Localities, func(l LocalityEndpoints) bool { return l.LastResort })
			some := slices.ContainsFunc(svc.Inline, func(m *mesh.Workload) bool { return m.Health == mesh.Silent })
			if want := some && live > 0 && !failover && rule != "panics"; last != want {
				t.Fatalf("%q, %b: there is a last resort: %v, want %v", rule, set, last, want)
			}
			if some && live == 0 && !slices.ContainsFunc(e.Localities, func(l LocalityEndpoints) bool {
				return slices.ContainsFunc(l.Endpoints, func(x Endpoint) bool { return !x.Unhealthy })
			}) {
				t.Fatalf("%q, %b: nobody is there: %+v", rule, set, e.Localities)
			}
		}
	}
}
