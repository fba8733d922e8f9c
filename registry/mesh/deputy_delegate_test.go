package mesh

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// includingMesh is made of VirtualServices that include others, and services.
type includingMesh struct{ operator, shop, bank Fragment }

func (m *includingMesh) input() Input {
	fragments := []*Fragment{m.operator.Sorted(), m.shop.Sorted(), m.bank.Sorted()}
	for i, name := range []string{"operator", "shop", "bank"} {
		fragments[i].Source = name
	}
	return Input{
		Fallback: testMeshConfig(), Fragments: fragments,
		Bindings: []*Binding{nil, {Namespaces: []string{"shop"}, RoutesOnly: true}, {Namespaces: []string{"bank"}, Hosts: []Hostname{"*.bank.internal"}}},
	}
}

// includes is a VirtualService that includes those of shop with the names.
func includes(name string, gateways, names []string) *VirtualService {
	spec := &networking.VirtualService{Hosts: []string{name + ".internal"}, Gateways: gateways}
	for _, x := range names {
		spec.Http = append(spec.Http, &networking.HTTPRoute{Delegate: &networking.Delegate{Name: x, Namespace: "shop"}})
	}
	return &VirtualService{Meta: testMeta(KindVirtualService, "corp", name, fmt.Sprint(spec)), Spec: spec}
}

// leadsTo is a VirtualService of shop without hosts.
func leadsTo(name string, hosts []string) *VirtualService {
	spec := &networking.VirtualService{}
	for _, h := range hosts {
		spec.Http = append(spec.Http, &networking.HTTPRoute{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: h}}}})
	}
	return &VirtualService{Meta: testMeta(KindVirtualService, "shop", name, fmt.Sprint(spec)), Spec: spec}
}

func numbered(format string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i)
	}
	return out
}

// TestDelegatesAreJudgedInLinearTime counts allocations: twice the input takes at most two and a half times as many.
func TestDelegatesAreJudgedInLinearTime(t *testing.T) { //nolint:paralleltest // it counts allocations
	services := func(n int, exports ...string) []*Service {
		var out []*Service
		for _, h := range numbered("h%05d.bank.internal", n) {
			s := tableService("bank", h, 80)
			s.ExportTo = exports
			out = append(out, s)
		}
		return out
	}
	gateways := func(n int) []string { return numbered("g%05d/gw", n) }
	for name, mesh := range map[string]func(n int) *includingMesh{
		"a delegate that many include": func(n int) *includingMesh {
			m := &includingMesh{shop: Fragment{VirtualServices: []*VirtualService{leadsTo("d", numbered("h%05d.bank.internal", n))}}, bank: Fragment{Services: services(n)}}
			for i, g := range gateways(n) {
				m.operator.VirtualServices = append(m.operator.VirtualServices, includes(fmt.Sprintf("r%05d", i), []string{g}, []string{"d"}))
			}
			return m
		},
		"many delegates": func(n int) *includingMesh {
			m := &includingMesh{bank: Fragment{Services: services(n)}}
			for i, name := range numbered("d%05d", n) {
				m.shop.VirtualServices = append(m.shop.VirtualServices, leadsTo(name, []string{fmt.Sprintf("h%05d.bank.internal", i)}))
			}
			for _, name := range []string{"r", "s"} {
				m.operator.VirtualServices = append(m.operator.VirtualServices, includes(name, gateways(n), numbered("d%05d", n)))
			}
			return m
		},
		"named gateways": func(n int) *includingMesh {
			m := &includingMesh{bank: Fragment{Services: services(1, append(numbered("g%05d", n), "bank")...)}}
			m.shop.VirtualServices = []*VirtualService{leadsTo("d", slices.Repeat([]string{"h00000.bank.internal"}, n))}
			m.operator.VirtualServices = []*VirtualService{includes("r", gateways(n), []string{"d"})}
			return m
		},
		"a tenant's own": func(n int) *includingMesh {
			m := &includingMesh{bank: Fragment{Services: services(n)}}
			m.shop.VirtualServices = []*VirtualService{leadsTo("d", numbered("h%05d.bank.internal", n)), includes("r", gateways(n), slices.Repeat([]string{"d"}, n))}
			m.shop.VirtualServices[1].Namespace = "shop"
			return m
		},
	} {
		var steps [2]float64
		for i, n := range []int{400, 800} {
			in := mesh(n).input()
			steps[i] = testing.AllocsPerRun(1, func() {
				d := (&deputies{}).next(in.Fragments, in.Bindings, [2][]string{{"*"}, {"*"}})
				if len(d.conflicts) == 0 {
					t.Errorf("%s: nothing is refused", name)
				}
			})
		}
		if steps[1] > 2.5*steps[0] {
			t.Errorf("%s: twice the input takes %.0f steps instead of %.0f", name, steps[1], steps[0])
		}
	}
}

// TestJudgedDelegatesAfterChanges changes a mesh at random, and compares what is made from what was before with what
// is made from nothing.
func TestJudgedDelegatesAfterChanges(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 2))
	some := func(list ...string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(string) bool { return rng.IntN(2) == 0 })
	}
	m, refusals := &includingMesh{}, 0
	var prev *Snapshot
	for step := range 400 {
		switch rng.IntN(4) {
		case 0:
			m.operator.VirtualServices = []*VirtualService{includes("r", append(some("edge/a", "front/b", "mesh"), "other/c"), some("d", "e"))}
		case 1:
			m.shop.VirtualServices = nil
			for _, name := range some("d", "e") {
				m.shop.VirtualServices = append(m.shop.VirtualServices, leadsTo(name, some("a.bank.internal", "b.bank.internal", "none.internal")))
			}
			if rng.IntN(3) == 0 {
				own := includes("own", []string{"edge/a", "mesh"}, some("d", "e"))
				own.Namespace = "shop"
				m.shop.VirtualServices = append(m.shop.VirtualServices, own)
			}
		case 2:
			m.bank.Services = nil
			for _, h := range some("a.bank.internal", "b.bank.internal") {
				s := tableService("bank", h, 80)
				s.ExportTo = some("edge", "front", "*", "shop")
				s.Hash = testMeta(KindServiceEntry, "bank", h, fmt.Sprint(s.ExportTo)).Hash
				m.bank.Services = append(m.bank.Services, s)
			}
		case 3:
			m.operator.Services = nil
			for _, h := range some("a.bank.internal") {
				s := tableService("corp", h, 80)
				s.ExportTo = some("edge", "front")
				s.Hash = testMeta(KindServiceEntry, "corp", h, fmt.Sprint(s.ExportTo)).Hash
				m.operator.Services = append(m.operator.Services, s)
			}
		}
		in := m.input()
		want := Merge(in)
		in.Prev = prev
		got := Merge(in)
		text := func(s *Snapshot) string {
			var out []string
			for _, vs := range s.VirtualServices {
				out = append(out, fmt.Sprintf("%s %x %s", vs.Key, vs.Hash, vs.Refused))
				refusals += vs.Refused.Len()
			}
			for _, c := range s.Conflicts {
				out = append(out, fmt.Sprintf("%s %s %s", c.Key, c.Field, c.Reason))
			}
			return fmt.Sprint(out)
		}
		if text(got) != text(want) {
			t.Fatalf("step %d: %s\nwithout what was before: %s", step, text(got), text(want))
		}
		prev = got
	}
	if refusals < 50 {
		t.Errorf("only %d routes were refused", refusals)
	}
}
