package view

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/meshgen"
	"github.com/fairlead/fairlead/registry/mesh"
)

// A rule, a policy or a Sidecar with listeners of its own, without which a listener would be
// another one, is among the listener's origins: that is where people look for it. A service
// is not, if it only keeps another one from the address.
func TestOriginsOfListenersAreWhole(t *testing.T) {
	t.Parallel()
	objects := variants(t)
	seeds, found := meshgen.Seeds(t, 50, 300), 0
	for _, seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 23))
		state := make([]int, len(objects))
		for i := range state {
			state[i] = rnd.IntN(1 + len(objects[i]))
		}
		p := proxyIn("shop", map[string]string{"app": "a"})
		p.Interception = []Interception{InterceptRedirect, InterceptNone}[seed%2]
		build := func(without int) (*mesh.Fragment, map[string]*Listener) {
			w := newMeshFixture(t)
			for i, variant := range state {
				if variant > 0 && i != without {
					objects[i][variant-1](&w.f)
				}
			}
			w.f = *w.f.Sorted()
			out := map[string]*Listener{}
			for part := range Build(w.snapshot(), p).Parts() {
				if l, ok := part.(*Listener); ok {
					out[l.Name] = l
				}
			}
			return &w.f, out
		}
		f, whole := build(-1)
		for i, variant := range state {
			path := fmt.Sprintf("o%d.yaml", i)
			is := func(o *mesh.Origin) bool { return o != nil && o.Path == path }
			filters := func(s *mesh.Sidecar) bool {
				return is(s.Origin) && !slices.ContainsFunc(s.Spec.GetEgress(), func(e *networking.IstioEgressListener) bool {
					return e.GetPort() != nil || e.GetBind() != ""
				})
			}
			if variant == 0 || slices.ContainsFunc(f.Sidecars, filters) ||
				slices.ContainsFunc(f.Services, func(s *mesh.Service) bool { return is(s.Origin) }) {
				continue
			}
			_, others := build(i)
			for name, l := range others {
				have := whole[name]
				if have == nil || have.Hash() == l.Hash() {
					continue
				}
				found++
				if !slices.ContainsFunc(have.Origins(), is) && !slices.ContainsFunc(l.Origins(), is) {
					t.Errorf("seed %d: variant %d of object %d changes listener %s, of %v", seed, variant, i, name, have.Origins())
				}
			}
		}
	}
	if len(seeds) >= 50 && found < 5 {
		t.Errorf("only %d listeners depend on some object", found)
	}
}
