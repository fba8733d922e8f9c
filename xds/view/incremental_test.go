package view

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/meshgen"
	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// FuzzIncremental changes a mesh at random, with objects of every kind. It compares each
// proxy's view, updated from snapshot to snapshot, with one that is built from nothing.
// What is equal in consecutive views has to be one pointer.
func FuzzIncremental(f *testing.F) {
	for _, seed := range meshgen.Seeds(f, 15, 60) {
		f.Add(seed)
	}
	f.Add(uint64(416)) // a service goes that hid a catalog's, and is not imported itself
	f.Add(uint64(204)) // services come and go beside others whose endpoints change
	f.Fuzz(func(t *testing.T, seed uint64) {
		g := newRandomMesh(t, seed)
		for step := range 40 {
			g.step(t, step)
		}
	})
}

// randomMesh is a mesh that changes at random.
type randomMesh struct {
	rnd     *rand.Rand
	more    *rand.Rand // for later additions, so that the seeds above keep their meaning
	w       *meshFixture
	s       *mesh.Snapshot
	x       *Index
	before  *Index // an index of some time ago
	proxies []Proxy
	views   []*View
	log     []string
}

func newRandomMesh(tb testing.TB, seed uint64) *randomMesh {
	tb.Helper()
	g := &randomMesh{rnd: rand.New(rand.NewPCG(seed, 7)), more: rand.New(rand.NewPCG(seed, 8)), w: newMeshFixture(tb)}
	for range 8 {
		g.service()
		g.routes()
	}
	for range 4 {
		g.workload()
		g.rule()
	}
	for range 10 {
		p := proxyIn(pick(g, "shop", "other", "istio-system"), nil)
		p.Addresses = []string{pick(g, "10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.5")}
		p.Interception = pick(g, InterceptRedirect, InterceptRedirect, InterceptTPROXY, InterceptNone)
		p.Labels = g.labels()
		p.Locality = mesh.ParseLocality(pick(g, "", "eu/a", "us/a"))
		if g.rnd.IntN(8) == 0 {
			p.Type = Router
		}
		g.proxies = append(g.proxies, p)
	}
	g.views = make([]*View, len(g.proxies))
	return g
}

func pick[T any](g *randomMesh, list ...T) T { return list[g.rnd.IntN(len(list))] }

// step makes some changes, and compares the views.
func (g *randomMesh) step(tb testing.TB, n int) {
	tb.Helper()
	g.log = nil
	for range 1 + g.rnd.IntN(2)*g.rnd.IntN(4) {
		g.change()
	}
	if g.rnd.IntN(4) == 0 { // nobody looks at every snapshot
		g.snapshot()
		g.change()
	}
	g.snapshot()
	g.x = g.x.Next(g.s)
	if g.before != nil && g.rnd.IntN(10) == 0 { // somebody is late
		g.x = g.before.Next(g.s)
	}
	if g.rnd.IntN(3) == 0 {
		g.before = g.x
	}
	for i := range g.proxies {
		if g.rnd.IntN(5) == 0 {
			continue // it is busy
		}
		if g.rnd.IntN(40) == 0 {
			g.proxies[i].Labels = g.labels()
		}
		prev := g.views[i]
		got, want := g.x.Rebuild(prev, g.proxies[i]), NewIndex(g.s).Build(g.proxies[i])
		if d := differenceOf(want, got); d != "" {
			tb.Fatalf("step %d, proxy %d %+v: %s\nafter %s", n, i, g.proxies[i], d, strings.Join(g.log, "\n"))
		}
		if d := notShared(prev, got); d != "" {
			tb.Fatalf("step %d, proxy %d %+v: %s\nafter %s", n, i, g.proxies[i], d, strings.Join(g.log, "\n"))
		}
		g.views[i] = got
	}
}

func (g *randomMesh) snapshot() {
	f := smallmesh.Clone(&g.w.f) // the lists are changed, and snapshots keep them
	mc := &mesh.MeshConfig{Spec: g.w.mc}
	if g.s != nil && g.s.MeshConfig.Spec == g.w.mc {
		mc = g.s.MeshConfig
	}
	g.s = mesh.NewSnapshot(g.s, mc, []*mesh.Fragment{f})
}

// differenceOf describes the difference of two views, or returns nothing.
func differenceOf(want, got *View) string {
	if len(want.Layers) != len(got.Layers) {
		return fmt.Sprintf("%d layers, want %d", len(got.Layers), len(want.Layers))
	}
	for i, w := range want.Layers {
		l := got.Layers[i]
		if l.Name != w.Name {
			return fmt.Sprintf("layer %d is %q, want %q", i, l.Name, w.Name)
		}
		for j, p := range l.Parts {
			if j >= len(w.Parts) || w.Parts[j].Hash() != p.Hash() {
				return fmt.Sprintf("%s: part %d is %s", l.Name, j, describe(p)+missing(w.Parts, j))
			}
			if h := rehash(p); h != p.Hash() {
				return fmt.Sprintf("%s: part %d was changed: %s", l.Name, j, describe(p))
			}
		}
		if len(l.Parts) != len(w.Parts) || l.Hash() != w.Hash() {
			return fmt.Sprintf("%s: %d parts, want %d", l.Name, len(l.Parts), len(w.Parts))
		}
	}
	if !shallowEqual(&want.Warnings, &got.Warnings) {
		return fmt.Sprintf("warnings %v, want %v", got.Warnings, want.Warnings)
	}
	if w, g := want.Findings.All(), got.Findings.All(); !slices.Equal(w, g) {
		return fmt.Sprintf("findings %+v, want %+v", g, w)
	}
	if want.Hash() != got.Hash() {
		return "another hash"
	}
	return ""
}

func missing(list []Part, i int) string {
	if i >= len(list) {
		return ", and should not be"
	}
	return ", want " + describe(list[i])
}

func describe(p Part) string {
	switch p := p.(type) {
	case *RouteConfiguration:
		var b strings.Builder
		for _, h := range p.VirtualHosts {
			fmt.Fprintf(&b, "\n  %s %v", h.Name, h.Domains)
			for _, r := range h.Routes {
				fmt.Fprintf(&b, "\n    %v %v %v", r.Config, r.Match, r.Destinations)
			}
		}
		return fmt.Sprintf("%s %v%s\n", p.Name, p.CatchAll, b.String())
	case *Listener:
		var b strings.Builder
		for _, c := range append(slices.Clone(p.Chains), p.Default) {
			if c != nil {
				fmt.Fprintf(&b, "\n  %+v tcp %+v http %+v", c.Match, c.TCP, c.HTTP)
			}
		}
		return p.Name + b.String()
	default:
		return fmt.Sprintf("%+v", p)
	}
}

func rehash(p Part) mesh.Hash {
	switch p := p.(type) {
	case *Cluster:
		return contentHash("Cluster", p)
	case *Endpoints:
		return contentHash("Endpoints", p)
	case *Extension:
		return contentHash("Extension", p)
	case *Listener:
		return contentHash("Listener", p)
	case *RouteConfiguration:
		return contentHash("RouteConfiguration", p)
	default:
		panic("unknown part")
	}
}

// movedExtension reports whether an extension comes from another object: those of many
// workloads are equal.
func movedExtension(a, b Part) bool {
	_, is := a.(*Extension)
	return is && !slices.EqualFunc(a.Origins(), b.Origins(), func(x, y *mesh.Origin) bool { return *x == *y })
}

// notShared describes what is equal in two views, but not the same pointer.
func notShared(prev, next *View) string {
	if prev == nil {
		return ""
	}
	if prev != next && prev.Hash() == next.Hash() && shallowEqual(&prev.Warnings, &next.Warnings) && prev.Findings == next.Findings {
		return "the same view is another pointer"
	}
	parts, layers, hosts := map[mesh.Hash]Part{}, map[mesh.Hash]*Layer{}, map[mesh.Hash]*VirtualHost{}
	for _, l := range prev.Layers {
		layers[l.hash] = l
		for _, p := range l.Parts {
			parts[p.Hash()] = p
			if t, ok := p.(*RouteConfiguration); ok {
				for _, h := range t.VirtualHosts {
					hosts[h.hash] = h
				}
			}
		}
	}
	for _, l := range next.Layers {
		if have := layers[l.hash]; have != nil && have != l {
			return "layer " + l.Name + " is the same and another pointer"
		}
		for _, p := range l.Parts {
			if have := parts[p.Hash()]; have != nil && have != p && !movedExtension(have, p) {
				return "part is the same and another pointer: " + describe(p)
			}
			if t, ok := p.(*RouteConfiguration); ok {
				for _, h := range t.VirtualHosts {
					if have := hosts[h.hash]; have != nil && have != h {
						return "virtual host is the same and another pointer: " + h.Name
					}
				}
			}
		}
	}
	return ""
}
